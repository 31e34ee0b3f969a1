"""A policy without vision, of categorical action tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.errors import SpecMismatchError
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling


class FakePolicy(nn.Module):
    """State, mean colour and task → logits of K·A tokens, each one of ``bins`` values evenly over the action range."""

    def __init__(
        self, num_action_chunks: int = 4, action_dim: int = 7, state_dim: int = 8, bins: int = 16, num_tasks: int = 64,
        value_head: bool = False, value_type: str = "chunk_level", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self._bins = bins
        tokens = num_action_chunks * action_dim
        decision = {
            "action_tokens": ArraySpec((tokens,), "int32"),
            "actions": ArraySpec((num_action_chunks, action_dim), "float32"),
            "logprobs": ArraySpec((tokens,), "float32"),
        }
        if value_head:
            values = 1 if value_type == "chunk_level" else num_action_chunks
            decision["value"] = ArraySpec((values,), "float32")
        self._state_dim, self._action_dim = state_dim, action_dim
        self.spec = PolicySpec(
            num_action_chunks, decision, Elements((num_action_chunks, action_dim), action_axis=0), Noise((tokens,)),
            categories={"action_tokens": bins}, random_weights=True,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.task = nn.Embedding(num_tasks, 16)
            self.body = nn.Sequential(nn.Linear(state_dim + 3 + 16, 32), nn.Tanh())
            self.head = nn.Linear(32, tokens * bins)
            self.value_head = nn.Linear(32, values) if value_head else None
        self._statistics: dict[str, Any] | None = None
        self.register_buffer("low", torch.zeros(action_dim), persistent=False)
        self.register_buffer("high", torch.zeros(action_dim), persistent=False)

    def bind(self, env: EnvSpec) -> None:
        if env.action_dim != self._action_dim:
            raise SpecMismatchError(
                f"the env has {env.action_dim} action dimensions and the policy {self._action_dim}",
                f"set actor.model.action_dim={env.action_dim}",
            )
        low, high = env.action_low, env.action_high
        if self._statistics is not None:
            low, high = self._statistics["action"]["q01"], self._statistics["action"]["q99"]
        self.low, self.high = torch.tensor(low), torch.tensor(high)

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        return ()

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        features = self._features(obs)
        logprobs = self._log_softmax(features, sampling)
        if sampling.do_sample:
            tokens = (logprobs.exp().cumsum(-1) < noise[..., None]).sum(-1).clamp(max=self._bins - 1)
        else:
            tokens = logprobs.argmax(-1)
        fraction = tokens.view(len(tokens), *self.spec.decision["actions"].shape) / (self._bins - 1)
        fields = {
            "action_tokens": tokens.int(),
            "actions": self.low + fraction * (self.high - self.low),
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

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        weights = sum(p.numel() for module in (self.body, self.head) for p in module.parameters() if p.ndim == 2)
        return np.full(len(records["task_id"]), 2.0 * weights * (3 if training else 1))

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        width = (self.high - self.low).clamp(min=1e-6)
        fraction = ((actions - self.low) / width).clamp(0, 1)
        return {"action_tokens": (fraction * (self._bins - 1)).round().flatten(1).int()}

    def use_statistics(self, name: str, values: Mapping[str, Any]) -> None:
        self._statistics = {"name": name, **values}
        self.low, self.high = (torch.tensor(values["action"][q], dtype=torch.float32) for q in ("q01", "q99"))

    def settled(self) -> Mapping[str, str]:
        return {} if self._statistics is None else {"statistics": json.dumps(self._statistics)}

    def settle(self, found: Mapping[str, str]) -> None:
        if "statistics" in found:
            values = json.loads(found["statistics"])
            self.use_statistics(values.pop("name"), values)

    def describe(self) -> Mapping[str, str]:
        return {"model": "fake", "parameters": str(sum(p.numel() for p in self.parameters()))}

    def _features(self, obs: Mapping[str, Tensor]) -> Tensor:
        colour = obs["images"].float().mean(dim=(1, 2, 3)) / 255
        state = obs["state"][:, : self._state_dim]
        return self.body(torch.cat([state, colour, self.task(obs["task_id"].long())], dim=-1))

    def _value(self, features: Tensor) -> Tensor:
        # A matrix product with so few columns sums in an order that depends on a row's place in the batch.
        assert self.value_head is not None
        return (features.unsqueeze(1) * self.value_head.weight).sum(dim=-1) + self.value_head.bias

    def _log_softmax(self, features: Tensor, sampling: Sampling) -> Tensor:
        logits = self.head(features).view(len(features), -1, self._bins)
        return torch.log_softmax(logits.float() / sampling.temperature, dim=-1)
