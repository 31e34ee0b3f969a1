"""Parts of a policy: network, heads, tokenizer, settings, and what changes while it is used.

Shapes: B rows, D stochastic steps, H actions of a chunk, W padded dimensions, K executed actions, A dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied.types import EnvSpec

from ..shared.compiled import CompiledBlocks, bucket, filled
from ..shared.constants import constant
from ..shared.precision import number_format
from ..shared.prompts import padded_behind
from .inputs.normalization import Scale, padded
from .inputs.pictures import prepare
from .inputs.texts import Tokenizer, as_texts, check_length, state_prompt
from .network.heads import NoiseHead, NoisePolicyHead, ValueHead
from .network.model import Context, FlowVLA, Inputs
from .sampling.chains import Field, Velocity
from .sampling.steps import Step
from .settings import Settings


@dataclass
class Situation:
    """State of a policy that changes while it is used."""

    state: Scale
    action: Scale
    name: str = ""  # of the data set whose statistics these are; "" = none yet, or the folder's only ones
    env: EnvSpec | None = None  # env that the policy is bound to
    order: tuple[int, ...] = ()  # the env's cameras that are read, by number
    least: int = 0  # tokens that prompts are padded to


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a policy."""

    model: FlowVLA
    value_head: ValueHead | None
    noise_head: NoiseHead | None
    noise_policy: NoisePolicyHead | None
    tokenizer: Tokenizer | None  # None: the folder has none
    settings: Settings
    steps: tuple[Step, ...]  # of a chain while acting for training
    prompt_tokens: int  # tokens of a prompt at most
    source: Path | None  # folder that the network is from
    places: tuple[str, ...] | None  # names of its places for pictures; None: any number of cameras
    now: Situation
    compiled: CompiledBlocks | None = None  # None: neither acting nor learning runs compiled layers

    @property
    def device(self) -> torch.device:
        """Device on which the policy computes."""
        return self.model.action_out_proj.weight.device

    @property
    def state_in_text(self) -> bool:
        """Whether the state stands in the prompt, which is then another one for each observation."""
        return self.model.sizes.state_place == "text" and self.settings.state_in_prompt

    def number_format(self) -> AbstractContextManager[Any]:
        """Context of the settings' number format. In fp32 it leaves no trace in an exported program."""
        precision = self.settings.precision
        return nullcontext() if precision == "fp32" else number_format(self.device, precision)

    def read(self, obs: Mapping[str, Tensor]) -> Context:
        """Makes the trunk's one pass over B observations."""
        inputs = self.inputs(obs)
        if not self._fills:
            with self.number_format():
                return self.model.read(inputs)
        rows = len(inputs.tokens)
        # of one layout in memory, too: else the layers would be compiled for each
        inputs = Inputs(*(filled(values, bucket(rows)).contiguous() for values in inputs))
        with self.number_format():
            context = self.model.read(inputs)
        return context if context.hidden is None else replace(context, hidden=context.hidden[:rows])

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Context in which calls are those of ``act``: compiled or not."""
        with nullcontext() if self.compiled is None else self.compiled.switched(self.settings.acts_compiled):
            yield

    @property
    def _fills(self) -> bool:
        """Whether rows are filled up to a power of two, for which compiled layers are made."""
        return self.compiled is not None and self.compiled.on

    def inputs(self, obs: Mapping[str, Tensor]) -> Inputs:
        """Prepares what the network reads of B observations."""
        sizes = self.model.sizes
        pixels = prepare(obs["images"][:, list(self.now.order)], sizes.image_size, centred=sizes.gemma)
        state = self.now.state.normalize(obs["state"].float())
        if "prompt_text" in obs:
            tokens, mask = (t.to(pixels.device) for t in self._with_state(obs["prompt_text"], state))
        else:
            tokens, mask = obs["prompt"].long(), obs["prompt_mask"].bool()
        return Inputs(pixels, tokens, mask, padded(state, max(sizes.state_width, state.shape[1])))

    def field(self, context: Context) -> Field:
        """Makes the function that a chain integrates."""

        def compute(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
            with self.number_format():
                tokens = self._expert_tokens(context, x, time)
                velocity = self.model.action_out_proj(tokens).float()
                return velocity, None if self.noise_head is None else self.noise_head(tokens)

        return compute

    def _expert_tokens(self, context: Context, x: Tensor, time: Tensor) -> Tensor:
        if not self._fills:
            return self.model.expert_tokens(context, x, time)
        rows, whole = len(x), len(context.present)
        return self.model.expert_tokens(context, filled(x, whole), filled(time, whole))[:rows]

    def velocity(self, context: Context) -> Velocity:
        """Makes the function that the ODE integrates."""
        field = self.field(context)
        return lambda x, time: field(x, time)[0]

    def value(self, context: Context) -> Tensor | None:
        """Estimates values float32 [B, V], with a value head."""
        if self.value_head is None:
            return None
        assert context.hidden is not None
        return self.value_head(context.hidden, context.present[: context.hidden.shape[0]])

    def actions(self, chunk: Tensor) -> Tensor:
        """Turns a normalised chunk [B, H, W] into K actions in the env's units, within its range: float32 [B, K, A]."""
        env = self.now.env
        assert env is not None, "bind() comes first"
        found = self.now.action.denormalize(chunk[:, : self.settings.num_action_chunks, : env.action_dim])
        low, high = (constant(bound, torch.float32, found.device) for bound in (env.action_low, env.action_high))
        return found.clamp(low, high).float()

    def _with_state(self, texts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        assert self.tokenizer is not None
        rows = []
        for text, numbers in zip(as_texts(texts), state.cpu().numpy(), strict=True):
            prompt = state_prompt(text, numbers)
            rows.append(self.tokenizer.encode(prompt))
            check_length(rows[-1], self.prompt_tokens, prompt)
        return padded_behind(rows, least=self.now.least)
