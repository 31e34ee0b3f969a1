"""A multilayer perceptron from an env's state to action tokens, for envs whose state is all that is needed."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, SpecMismatchError
from embodied.logprobs import LOGPROB_DTYPES
from embodied.types import (
    ArraySpec,
    Decision,
    DiscreteAction,
    Elements,
    EnvSpec,
    Evaluation,
    Noise,
    PolicySpec,
    Sampling,
    TextAction,
)

from ..shared.sampling import draw, entropy, log_probs


class MLPPolicy(nn.Module):
    """A small network: maps state [S] and instruction to logits of K·A tokens, each one of ``bins`` values evenly over
    an action's range. Of an env of N discrete actions it chooses K tokens, each one of N.

    The sizes S, A and N are those of the env: the layers are made when the policy is bound to its first one. A new
    instruction has a row of the table of instructions that its checksum gives. Pictures are not read.

    Args:
        num_action_chunks: K, actions of a decision.
        bins: values of a token of a continuous action.
        hidden: numbers of a layer.
        layers: hidden layers.
        num_instructions: rows of the table of instructions.
        value_head: add a network of its own for values, as algorithm.adv_type=gae needs it.
        value_type: of its values: chunk_level or action_level.
        seed: of the first weights.
        normalize_state: scale the state by its mean and deviation in episodes that a training runs first, where neither
            demonstrations nor a checkpoint say how large its numbers are; false = read it as it is.

    Raises:
        ConfigError: a size that is no whole number above 0.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    width: Tensor
    grows: Tensor

    def __init__(
        self, num_action_chunks: int = 4, bins: int = 33, hidden: int = 256, layers: int = 2,
        num_instructions: int = 64, value_head: bool = False, value_type: str = "chunk_level", seed: int = 0,
        normalize_state: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {
            "num_action_chunks": num_action_chunks, "bins": bins, "hidden": hidden, "layers": layers,
            "num_instructions": num_instructions,
        }  # fmt: skip
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"actor.model.{name} is {value!r}, expected a whole number from 1", f"change actor.model.{name}"
                )
        self._normalize = normalize_state
        self._chunk, self._bins, self._hidden, self._layers = num_action_chunks, bins, hidden, layers
        self._rows, self._with_value, self._seed = num_instructions, value_head, seed
        self._values = num_action_chunks if value_type == "action_level" else 1
        self._made_for: tuple[int, str] | None = None
        self._tasks: Sequence[str] = ()
        self._statistics: dict[str, Any] | None = None
        for name in ("low", "high", "centre", "width"):
            self.register_buffer(name, torch.zeros(0), persistent=False)
        self.register_buffer("grows", torch.tensor(False), persistent=False)

    # -- what the env has --------------------------------------------------------------------------------------------

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`. Raises :class:`SpecMismatchError`: the env has no state, takes
        text, or has other sizes than the one before."""
        if isinstance(env.action, TextAction) or "state" not in env.obs:
            lacks = (
                "takes text"
                if isinstance(env.action, TextAction)
                else "has no state, and this policy sees nothing else"
            )
            raise SpecMismatchError(
                f"the env {lacks}", "choose another model, or map a state (env=gym: env.train.state)"
            )
        sizes = env.obs["state"].shape[0], str(env.action.field(1))
        discrete = isinstance(env.action, DiscreteAction)
        if self._made_for is None:
            self._make(env.obs["state"].shape[0], env)
            self._made_for = sizes
        elif sizes != self._made_for:
            raise SpecMismatchError(
                f"the env has a state of {sizes[0]} numbers and actions {sizes[1]}; the policy was made for "
                f"{self._made_for[0]} and {self._made_for[1]}",
                "give env.train and env.eval the same state and actions, or train a policy of its own",
            )
        self._tasks = env.tasks
        if not discrete:
            self._set_range(env.action_low, env.action_high)
        if self._statistics is not None:
            self._use(self._statistics)

    def _make(self, state: int, env: EnvSpec) -> None:
        discrete = isinstance(env.action, DiscreteAction)
        self._tokens = self._chunk * (1 if discrete else env.action_dim)
        self._classes = env.action.num_actions if isinstance(env.action, DiscreteAction) else self._bins
        self._elements = (self._chunk, self._tokens // self._chunk)
        self._action = env.action.field(self._chunk)
        device = self.low.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self.task = nn.Embedding(self._rows, 16)
            self.body = self._stack(state)
            self.head = nn.Linear(self._hidden, self._tokens * self._classes)
            self.value_head = nn.ModuleList([self._stack(state), nn.Linear(self._hidden, self._values)])
            if not self._with_value:
                del self.value_head
        with torch.no_grad():
            self.head.weight *= 0.1  # all actions are about as likely at first
        self.centre, self.width = torch.zeros(state), torch.ones(state)
        self.to(device)

    def _stack(self, state: int) -> nn.Sequential:
        sizes = [state + 16, *[self._hidden] * self._layers]
        pairs = itertools.pairwise(sizes)
        return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU())))

    def _set_range(self, low: Sequence[float], high: Sequence[float]) -> None:
        device = self.head.weight.device
        self.low, self.high = (torch.tensor(bound, dtype=torch.float32, device=device) for bound in (low, high))

    @property
    def spec(self) -> PolicySpec:
        if self._made_for is None:
            raise SpecMismatchError("the policy has no sizes yet", "call bind(env.spec) first")
        decision = {
            "action_tokens": ArraySpec((self._tokens,), "int32"),
            "actions": self._action,
            "logprobs": ArraySpec((self._tokens,), "float32"),
        }
        if self._with_value:
            decision["value"] = ArraySpec((self._values,), "float32")
        return PolicySpec(
            self._chunk, decision, Elements(self._elements, action_axis=0), Noise((self._tokens,)),
            categories={"action_tokens": self._classes}, random_weights=True, logprob_dtypes=LOGPROB_DTYPES,
        )  # fmt: skip

    # -- acting and learning -----------------------------------------------------------------------------------------

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        known = {text: row % self._rows for row, text in reversed([*enumerate(self._tasks)])}
        rows = [known.get(text, zlib.crc32(text.encode()) % self._rows) for text in texts]
        return {"task": torch.tensor(rows)}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """Reports nothing: weights of this network leave nothing open."""
        return ()

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        read = self._read(obs)
        logp = self._log_probs(read, sampling)
        tokens = draw(logp, noise, sampling)
        fields = {
            "action_tokens": tokens.int(),
            "actions": self._decode(tokens),
            "logprobs": logp.gather(-1, tokens[..., None])[..., 0],
        }
        if self._with_value:
            fields["value"] = self._value(read)
        return Decision(fields)

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        read = self._read(records)
        logp = self._log_probs(read, sampling)
        chosen = logp.gather(-1, records["action_tokens"].long()[..., None])[..., 0]
        value = self._value(read) if self._with_value else None
        return Evaluation(chosen, entropy(logp), value, logp if distribution else None)

    def _read(self, obs: Mapping[str, Tensor]) -> Tensor:
        state = (obs["state"].float() - self.centre) / self.width
        state = torch.where(self.grows, compressed(state), state.clamp(-10, 10))
        return torch.cat([state, self.task(obs["task"].long())], dim=-1)

    def _log_probs(self, read: Tensor, sampling: Sampling) -> Tensor:
        return log_probs(self.head(self.body(read)).unflatten(-1, (self._tokens, self._classes)), sampling)

    def _value(self, read: Tensor) -> Tensor:
        body, head = self.value_head
        features = body(read)
        # A matrix product with so few columns sums in an order that depends on a row's place in the batch.
        return (features.unsqueeze(1) * head.weight).sum(dim=-1) + head.bias

    def _decode(self, tokens: Tensor) -> Tensor:
        if self._action.dtype == "int32":
            return tokens.int()
        fraction = tokens.view(len(tokens), *self._action.shape) / max(self._classes - 1, 1)
        return self.low + fraction * (self.high - self.low)

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        """Encodes actions as tokens int32 [B, K·A]."""
        if self._action.dtype == "int32":
            return {"action_tokens": actions.int()}
        fraction = ((actions - self.low) / (self.high - self.low).clamp(min=1e-6)).clamp(0, 1)
        return {"action_tokens": (fraction * (self._classes - 1)).round().flatten(1).int()}

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        weights = sum(p.numel() for name, p in self.named_parameters() if p.ndim == 2 and not name.startswith("task"))
        return np.full(len(records["actions"]), 2.0 * weights * (3 if training else 1))

    # -- demonstrations ----------------------------------------------------------------------------------------------

    def use_statistics(self, name: str, values: Mapping[str, Any]) -> None:
        """Spreads the tokens over these ranges of actions from now on."""
        self._statistics = {"name": name, **values}
        self._use(values)

    def _use(self, values: Mapping[str, Any]) -> None:
        if "proprio" in values:
            centre, width, grows = scale_of(values["proprio"])
            if len(centre) == len(self.centre):  # copied, because a recorded graph reads the tensors that are there
                self.centre.copy_(centre)
                self.width.copy_(width)
                self.grows.fill_(grows)
        if self._action.dtype != "int32" and "action" in values:
            self._set_range(values["action"]["q01"], values["action"]["q99"])

    @property
    def needs_scale(self) -> bool:
        """See :attr:`embodied.protocols.ScalesState.needs_scale`."""
        return self._normalize and self._statistics is None

    def extra_state(self) -> Mapping[str, str]:
        """Returns the ranges that a run has settled."""
        return {} if self._statistics is None else {"statistics": json.dumps(self._statistics)}

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """Loads what :meth:`extra_state` returned."""
        if "statistics" in found:
            values = json.loads(found["statistics"])
            self.use_statistics(values.pop("name"), values)

    def describe(self) -> Mapping[str, str]:
        return {"model": "MLP", "parameters": str(sum(p.numel() for p in self.parameters()))}


def scale_of(proprio: Mapping[str, Any]) -> tuple[Tensor, Tensor, bool]:
    """Returns what becomes 0 and ±1 of the state's numbers [S] each, and whether they will leave that range: episodes
    of demonstrations go everywhere, those of a policy at random do not."""
    names = ("q01", "q99") if "q01" in proprio else ("mean", "std")
    one, other = (torch.tensor(proprio[name], dtype=torch.float32) for name in names)
    if names[0] == "mean":
        return one, other, True
    width = (other - one) / 2
    return (one + other) / 2, torch.where(width > 1e-4, width, torch.ones_like(width)), False


def compressed(numbers: Tensor) -> Tensor:
    """Leaves numbers up to 3 as they are, and lets larger ones grow by their logarithm, so that none is cut off."""
    size = numbers.abs()
    return torch.where(size > 3, numbers.sign() * 3 * (1 + torch.log(size.clamp(min=3) / 3)), numbers)
