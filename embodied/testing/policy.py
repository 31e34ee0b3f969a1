"""A policy without vision, and the check for authors of new ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.errors import SpecMismatchError
from embodied.protocols import Clonable, Policy
from embodied.types import ArraySpec, Decision, EnvSpec, Evaluation, PolicySpec, Sampling


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
        self.spec = PolicySpec(num_action_chunks, action_dim, 1, state_dim, decision, random_weights=True)
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
        if env.action_dim != self.spec.action_dim:
            raise SpecMismatchError(
                f"the env has {env.action_dim} action dimensions and the policy {self.spec.action_dim}",
                f"set actor.model.action_dim={env.action_dim}",
            )
        low, high = env.action_low, env.action_high
        if self._statistics is not None:
            low, high = self._statistics["action"]["q01"], self._statistics["action"]["q99"]
        self.low, self.high = torch.tensor(low), torch.tensor(high)

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        return ()

    def act(self, obs: Mapping[str, Tensor], uniform: Tensor, sampling: Sampling) -> Decision:
        features = self._features(obs)
        logprobs = self._log_softmax(features, sampling)
        if sampling.do_sample:
            tokens = (logprobs.exp().cumsum(-1) < uniform[..., None]).sum(-1).clamp(max=self._bins - 1)
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

    def encode_actions(self, actions: Tensor) -> Tensor:
        width = (self.high - self.low).clamp(min=1e-6)
        fraction = ((actions - self.low) / width).clamp(0, 1)
        return (fraction * (self._bins - 1)).round().flatten(1).int()

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
        state = obs["state"][:, : self.spec.state_dim]
        return self.body(torch.cat([state, colour, self.task(obs["task_id"].long())], dim=-1))

    def _value(self, features: Tensor) -> Tensor:
        # A matrix product with so few columns sums in an order that depends on a row's place in the batch.
        assert self.value_head is not None
        return (features.unsqueeze(1) * self.value_head.weight).sum(dim=-1) + self.value_head.bias

    def _log_softmax(self, features: Tensor, sampling: Sampling) -> Tensor:
        logits = self.head(features).view(len(features), -1, self._bins)
        return torch.log_softmax(logits.float() / sampling.temperature, dim=-1)


def check_policy(policy: Policy, env: EnvSpec, batch: int = 3, tolerance: float = 1e-4) -> None:
    """Drive every method of ``policy`` on made-up observations of ``env`` and compare with its spec.

    Checks: decision fields have the declared shape and dtype; actions lie within the env's range; equal noise gives
    equal tokens; ``evaluate`` agrees with ``act`` on the log-probs; every trainable parameter gets a gradient; the
    distribution of all tokens is one; if there is an ``encode_actions``, it gives an action's tokens back.

    Raises:
        SpecMismatchError: the field, what was got, and what was expected.
    """
    policy.bind(env)
    random = torch.Generator().manual_seed(0)  # the same verdict every time
    obs = _observations(env, batch, random)
    uniform = torch.rand(batch, policy.spec.num_action_chunks * policy.spec.action_dim, generator=random)
    sampling = Sampling()
    lines = policy.probe(obs)
    _expect(all(isinstance(line, str) for line in lines), "probe()", repr(lines), "lines of text")
    with torch.no_grad():
        fields, again = policy.act(obs, uniform, sampling).fields, policy.act(obs, uniform, sampling).fields
    for name, spec in policy.spec.decision.items():
        _expect_field(name, fields.get(name), (batch, *spec.shape), spec.dtype)
        _expect(torch.equal(fields[name], again[name]), f"'{name}' under equal noise", "differs", "equal")
    low, high = torch.tensor(env.action_low), torch.tensor(env.action_high)
    inside = (fields["actions"] >= low - 1e-5) & (fields["actions"] <= high + 1e-5)
    _expect(
        bool(inside.all()), "actions", f"{int((~inside).sum())} outside", f"all in {env.action_low}..{env.action_high}"
    )
    result = policy.evaluate({**obs, **fields}, sampling)
    gap = float((result.logprobs.detach() - fields["logprobs"]).abs().max())
    _expect(gap <= tolerance, "log-probs of evaluate and act", f"differ by {gap:.2g}", f"at most {tolerance:.2g}")
    _check_gradients(policy, result)
    _check_distribution(policy, {**obs, **fields}, sampling, tolerance)
    if isinstance(policy, Clonable):
        _check_tokens_of_actions(policy, policy.spec, fields)


def _check_distribution(
    policy: Policy, records: Mapping[str, Tensor], sampling: Sampling, tolerance: float
) -> None:  # fmt: skip
    """Probabilities of all tokens add up to 1, and their entropy is the one that ``evaluate`` gives."""
    with torch.no_grad():
        result = policy.evaluate(records, sampling, distribution=True)
    logp = result.distribution
    shown = "nothing" if logp is None else f"{tuple(logp.shape)}"
    expected = tuple(result.logprobs.shape)
    fits = logp is not None and tuple(logp.shape[:2]) == expected and logp.ndim == 3
    _expect(fits, "distribution of evaluate(…, distribution=True)", shown, f"{expected} and the tokens")
    assert logp is not None
    gap = float((logp.exp().sum(-1) - 1).abs().max())
    _expect(gap <= tolerance, "sum of the distribution's probabilities", f"1 ± {gap:.2g}", f"1 ± {tolerance:.2g}")
    gap = float((-(logp.exp() * logp).sum(-1) - result.entropy).abs().max())
    _expect(gap <= 10 * tolerance, "entropy and distribution", f"differ by {gap:.2g}", f"at most {10 * tolerance:.2g}")


def _check_tokens_of_actions(policy: Clonable, spec: PolicySpec, fields: Mapping[str, Tensor]) -> None:
    """Actions of a decision → its tokens, or others that stand for the same actions."""
    tokens = policy.encode_actions(fields["actions"])
    _expect_field("encode_actions()", tokens, tuple(fields["action_tokens"].shape), "int32")
    differ = (tokens != fields["action_tokens"]).float().mean().item()
    _expect(differ < 0.05, "encode_actions() of a decision's actions", f"{differ:.0%} other tokens", "its tokens")


def _observations(env: EnvSpec, batch: int, random: torch.Generator) -> dict[str, Tensor]:
    obs = {}
    for name, spec in env.obs.items():
        shape = (batch, *spec.shape)
        if spec.dtype == "uint8":
            obs[name] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
        else:
            obs[name] = torch.randn(shape, generator=random)
    obs["task_id"] = torch.arange(batch, dtype=torch.int32) % len(env.tasks)
    return obs


def _check_gradients(policy: Policy, result: Evaluation) -> None:
    loss = result.logprobs.sum() + result.entropy.sum()
    if result.value is not None:
        loss = loss + result.value.sum()
    loss.backward()
    without = [name for name, p in policy.named_parameters() if p.requires_grad and p.grad is None]
    _expect(not without, "gradients", f"none for {', '.join(without[:5])}", "one for every trainable parameter")


def _expect_field(name: str, got: Tensor | None, shape: tuple[int, ...], dtype: str) -> None:
    shown = "nothing" if got is None else f"{str(got.dtype).removeprefix('torch.')} {tuple(got.shape)}"
    _expect(shown == f"{dtype} {shape}", f"decision field '{name}'", shown, f"{dtype} {shape}")


def _expect(holds: bool, what: str, got: str, expected: str) -> None:
    if not holds:
        raise SpecMismatchError(
            f"{what}: got {got}, expected {expected}",
            "correct the policy; embodied/protocols.py says what each method promises",
        )
