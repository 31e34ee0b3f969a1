"""A policy without vision, of categorical action tokens."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.errors import SpecMismatchError
from embodied.logprobs import LOGPROB_DTYPES, log_softmax
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
)


def task_rows(texts: Sequence[str], tasks: Sequence[str], rows: int) -> Tensor:
    """Embedding row of each text, int64 [B]: that of its task; any other sentence has one that its checksum gives."""
    known = {text: row for row, text in reversed([*enumerate(tasks)])}
    return torch.tensor([known.get(text, zlib.crc32(text.encode()) % rows) for text in texts])


class FakePolicy(nn.Module):
    """State, mean colour (of an env with pictures) and task → logits of K·A tokens, each one of ``bins`` values evenly
    over the action range.

    Args:
        num_actions: for an env of discrete actions: K tokens, each the number of an action.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, num_action_chunks: int = 4, action_dim: int = 7, state_dim: int = 8, bins: int = 16, num_tasks: int = 64,
        value_head: bool = False, value_type: str = "chunk_level", seed: int = 0, num_actions: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._num_actions = num_actions
        if num_actions is not None:
            action_dim, bins = 1, num_actions
        self._bins = bins
        tokens = num_action_chunks * action_dim
        decision = {
            "action_tokens": ArraySpec((tokens,), "int32"),
            "actions": (
                ArraySpec((num_action_chunks, action_dim), "float32")
                if num_actions is None
                else DiscreteAction(num_actions).field(num_action_chunks)
            ),
            "logprobs": ArraySpec((tokens,), "float32"),
        }
        if value_head:
            values = 1 if value_type == "chunk_level" else num_action_chunks
            decision["value"] = ArraySpec((values,), "float32")
        self._state_dim, self._action_dim = state_dim, action_dim
        self.spec = PolicySpec(
            num_action_chunks, decision, Elements((num_action_chunks, action_dim), action_axis=0), Noise((tokens,)),
            categories={"action_tokens": bins}, random_weights=True, logprob_dtypes=LOGPROB_DTYPES,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.task = nn.Embedding(num_tasks, 16)
            self.body = nn.Sequential(nn.Linear(state_dim + 3 + 16, 32), nn.Tanh())
            self.head = nn.Linear(32, tokens * bins)
            self.value_head = nn.Linear(32, values) if value_head else None
        self._tasks: Sequence[str] = ()
        self._statistics: dict[str, Any] | None = None
        self.register_buffer("low", torch.zeros(action_dim), persistent=False)
        self.register_buffer("high", torch.zeros(action_dim), persistent=False)

    def bind(self, env: EnvSpec) -> None:
        self._tasks = env.tasks
        if self._num_actions is not None:
            if env.action != DiscreteAction(self._num_actions):
                raise SpecMismatchError(
                    f"the env takes {env.action} and the policy chooses one of {self._num_actions} actions",
                    "set actor.model.num_actions to the env's, or to null",
                )
            return
        if env.action_dim != self._action_dim:
            raise SpecMismatchError(
                f"the env has {env.action_dim} action dimensions and the policy {self._action_dim}",
                f"set actor.model.action_dim={env.action_dim}",
            )
        low, high = env.action_low, env.action_high
        if self._statistics is not None:
            low, high = self._statistics["action"]["q01"], self._statistics["action"]["q99"]
        self.low, self.high = (torch.tensor(bound, device=self.low.device) for bound in (low, high))

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        return {"task": task_rows(texts, self._tasks, self.task.num_embeddings)}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """Reports nothing: no part of this policy is left open."""
        return ()

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        features = self._features(obs)
        logprobs = self._log_softmax(features, sampling)
        if sampling.do_sample:
            tokens = (logprobs.exp().cumsum(-1) < noise[..., None]).sum(-1).clamp(max=self._bins - 1)
        else:
            tokens = logprobs.argmax(-1)
        fields = {
            "action_tokens": tokens.int(),
            "actions": self._decode(tokens),
            "logprobs": logprobs.gather(-1, tokens[..., None])[..., 0],
        }
        if self.value_head is not None:
            fields["value"] = self._value(features)
        return Decision(fields)

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        features = self._features(records)
        logprobs = self._log_softmax(features, sampling)
        chosen = logprobs.gather(-1, records["action_tokens"].long()[..., None])[..., 0]
        value = self._value(features) if self.value_head is not None else None
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return Evaluation(chosen, entropy, value, logprobs if distribution else None)

    def _decode(self, tokens: Tensor) -> Tensor:
        """Turn tokens [B, T] into ``actions`` as in the spec, [B, K, A] or [B, K]."""
        if self._num_actions is not None:
            return tokens.int()
        fraction = tokens.view(len(tokens), *self.spec.decision["actions"].shape) / (self._bins - 1)
        return self.low + fraction * (self.high - self.low)

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        weights = sum(p.numel() for module in (self.body, self.head) for p in module.parameters() if p.ndim == 2)
        return np.full(len(records["actions"]), 2.0 * weights * (3 if training else 1))

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        if self._num_actions is not None:
            return {"action_tokens": actions.int()}
        width = (self.high - self.low).clamp(min=1e-6)
        fraction = ((actions - self.low) / width).clamp(0, 1)
        return {"action_tokens": (fraction * (self._bins - 1)).round().flatten(1).int()}

    def use_statistics(self, name: str, values: Mapping[str, Any]) -> None:
        """Spreads the tokens over these ranges of actions from now on."""
        self._statistics = {"name": name, **values}
        if self._num_actions is not None:
            return
        bounds = (values["action"][q] for q in ("q01", "q99"))
        self.low, self.high = (torch.tensor(b, dtype=torch.float32, device=self.low.device) for b in bounds)

    def extra_state(self) -> Mapping[str, str]:
        """Returns the ranges that a run has settled."""
        return {} if self._statistics is None else {"statistics": json.dumps(self._statistics)}

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """Loads what :meth:`extra_state` returned."""
        if "statistics" in found:
            values = json.loads(found["statistics"])
            self.use_statistics(values.pop("name"), values)

    def describe(self) -> Mapping[str, str]:
        return {"model": "fake", "parameters": str(sum(p.numel() for p in self.parameters()))}

    def _features(self, obs: Mapping[str, Tensor]) -> Tensor:
        state = obs["state"][:, : self._state_dim]
        colour = torch.zeros(len(state), 3, device=state.device)
        if "images" in obs:
            colour = obs["images"].float().mean(dim=(1, 2, 3)) / 255
        return self.body(torch.cat([state, colour, self.task(obs["task"].long())], dim=-1))

    def _value(self, features: Tensor) -> Tensor:
        # A matrix product with so few columns sums in an order that depends on a row's place in the batch.
        assert self.value_head is not None
        return (features.unsqueeze(1) * self.value_head.weight).sum(dim=-1) + self.value_head.bias

    def _log_softmax(self, features: Tensor, sampling: Sampling) -> Tensor:
        logits = self.head(features).view(len(features), -1, self._bins)
        return log_softmax(logits.float() / sampling.temperature, sampling)
