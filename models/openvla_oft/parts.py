"""Parts of a policy. It holds one :class:`Parts`; the probe, saving and export take it.

Shapes: B rows, n images, T = K·A action tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from embodied.types import EnvSpec

from ..shared.compiled import CompiledBlocks, bucket, filled
from ..shared.offload import activations_on_host
from ..shared.precision import number_format
from .network.model import Inputs, OpenVLAOFT, ReadOut
from .network.value_head import ValueHead
from .settings import Settings
from .tokens.action_tokenizer import EPS, ActionTokenizer, Range, gripper_to_env
from .tokens.normalization import Statistics
from .tokens.processing import PixelProcessor
from .tokens.tokenizer import PromptTokenizer


@dataclass
class Situation:
    """State of a policy that changes while it is used: statistics, action range, attention mask, env."""

    statistics: Statistics
    action_range: Range | None  # range of actions in the env's units; None until statistics or an env tell it
    attention_open: bool  # True: the mask is a guess until the first observations settle it
    attention_probe: dict[str, float] = field(default_factory=dict)  # attention mask → nats, once it was probed
    env: EnvSpec | None = None  # env that the policy is bound to


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a policy: network, tokenizers, heads, settings and state."""

    model: OpenVLAOFT
    tokenizer: PromptTokenizer
    action_tokenizer: ActionTokenizer
    pixels: PixelProcessor
    value_head: ValueHead | None
    settings: Settings
    compiled: CompiledBlocks | None  # None: neither acting nor learning runs compiled blocks
    now: Situation

    @property
    def device(self) -> torch.device:
        """Device on which the policy computes: that of its buffers, as FSDP may keep weights elsewhere."""
        return self.pixels.mean.device

    def decode(self, inputs: Inputs, choose: Callable[[Tensor, int], Tensor]) -> tuple[ReadOut, Tensor]:
        """Decodes action token classes [B, T], in one pass or one by one. ``choose`` takes classes from logits [B, n,
        256] of tokens ``position …``."""
        if not self.model.net.autoregressive:
            read = self.read_out(inputs)
            return read, choose(read.logits, 0)
        with self.number_format():
            return self.model.generate(inputs, choose)

    def read_out(self, inputs: Inputs, tokens: Tensor | None = None) -> ReadOut:
        """Computes the one forward pass behind ``act`` (without ``tokens``) and ``evaluate``."""
        with self.number_format(), self._saving():
            if self.compiled is None:
                return self.model(*inputs, tokens)
            rows, arguments = len(inputs.prompt), (*inputs, tokens)
            on = self._runs_compiled(acting=tokens is None, rows=rows)
            with self.compiled.switched(on):
                if not on:
                    return self.model(*arguments)
                read = self.model(*(None if t is None else filled(t, bucket(rows)) for t in arguments))
            return ReadOut(read.hidden[:rows], read.logits[:rows])

    def number_format(self) -> torch.autocast:
        """Context of the settings' number format (autocast)."""
        return number_format(self.device, self.settings.precision)

    def _saving(self) -> AbstractContextManager[Any]:
        """Context that decides where activations wait for the backward pass."""
        offload = self.settings.activation_offload and torch.is_grad_enabled()
        return activations_on_host(self.model) if offload else nullcontext()

    def _runs_compiled(self, acting: bool, rows: int) -> bool:
        settings = self.settings
        most = None if torch.is_grad_enabled() else settings.torch_compile_max_bs
        return (settings.acts_compiled if acting else settings.torch_compile) and (most is None or rows <= most)

    def decode_actions(self, tokens: Tensor) -> Tensor:
        """Decodes token ids [B, T] to float32 [B, K, A] in the env's units."""
        net, action_range = self.model.net, self.now.action_range
        assert action_range is not None, "bind() comes first"
        values = self.action_tokenizer.decode(tokens).unflatten(-1, (net.num_action_chunks, net.action_dim))
        eps = 0.0 if net.autoregressive else EPS
        return gripper_to_env(action_range.unnormalize(values, eps), self.settings.policy_setup).float()

    def pictures(self) -> Mapping[str, Any]:
        """Describes how pictures are prepared. See :meth:`embodied.protocols.PreparesPictures.pictures`."""
        net, settings = self.model.net, self.settings
        return {
            "image_size": [net.image_size, net.image_size], "num_images_in_input": net.num_images,
            "image_preset": settings.image_preset, "center_crop": settings.center_crop,
        }  # fmt: skip
