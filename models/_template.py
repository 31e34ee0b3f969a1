"""The smallest policy: one linear layer from pixels to action bins. Copy it, change it, name it in a YAML file of
``config/model/`` (``_target_: embodied.models.my_policy.MyPolicy``); ``embodied.testing.check_policy`` drives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from embodied.errors import SpecMismatchError
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling


class TemplatePolicy(nn.Module):
    """Template to copy. Keywords are keys under ``actor.model``; ``value_head…`` uses ``value_lr``. Deep: Shardable."""

    def __init__(self, action_dim: int = 7, num_action_chunks: int = 8, bins: int = 11) -> None:
        super().__init__()
        self.chunk, self.bins = (num_action_chunks, action_dim), bins
        self.pool = nn.AdaptiveAvgPool2d(8)  # pictures are averaged down to 8×8
        self.head = nn.Linear(3 * 8 * 8, num_action_chunks * action_dim * bins)
        self.register_buffer("low", torch.zeros(action_dim), persistent=False)
        self.register_buffer("high", torch.zeros(action_dim), persistent=False)

    @property
    def spec(self) -> PolicySpec:  # fields of a decision, without the batch dimension: a record must hold them
        tokens, actions = ArraySpec((self.head.out_features // self.bins,), "int32"), ArraySpec(self.chunk, "float32")
        decision = {"action_tokens": tokens, "actions": actions, "logprobs": ArraySpec(tokens.shape, "float32")}
        elements = Elements(self.chunk, action_axis=0)  # elements with a log-prob: K actions of A tokens
        return PolicySpec(self.chunk[0], decision, elements, Noise(tokens.shape), {"action_tokens": self.bins})

    def bind(self, env: EnvSpec) -> None:  # once the env is known: check that it fits, prepare what depends on it
        if env.action_dim != self.chunk[1]:
            raise SpecMismatchError(f"the env has {env.action_dim} action dimensions", "set actor.model.action_dim")
        self.low, self.high = (torch.tensor(v).to(self.head.weight) for v in (env.action_low, env.action_high))

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:  # act() reads nothing of them
        return {}

    def probe(self, obs: Mapping[str, Tensor]) -> tuple[str, ...]:  # warnings at the first observations of a run
        return ()

    def _log_probs(self, obs: Mapping[str, Tensor], sampling: Sampling) -> Tensor:  # [B, T, bins], for act and evaluate
        pixels = obs["images"][:, 0].permute(0, 3, 1, 2).float() / 255.0
        logits = self.head(self.pool(pixels).flatten(1)).unflatten(1, (-1, self.bins))
        return (logits / sampling.temperature).log_softmax(-1)

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        logp = self._log_probs(obs, sampling)  # all randomness is in noise [B, T]: invert the cumulative distribution
        drawn = (logp.exp().cumsum(-1) <= noise.unsqueeze(-1)).sum(-1).clamp(max=self.bins - 1)
        tokens = drawn if sampling.do_sample else logp.argmax(-1)
        actions = self.low + (self.high - self.low) * tokens.unflatten(1, self.chunk) / (self.bins - 1)
        logprobs = logp.take_along_dim(tokens[..., None], -1)[..., 0]
        return Decision({"action_tokens": tokens.int(), "actions": actions, "logprobs": logprobs})

    def evaluate(self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False) -> Evaluation:
        logp = self._log_probs(records, sampling)
        logprobs = logp.take_along_dim(records["action_tokens"].long()[..., None], -1)[..., 0]
        return Evaluation(logprobs, -(logp.exp() * logp).sum(-1), distribution=logp if distribution else None)

    def describe(self) -> Mapping[str, str]:  # facts for the console; to learn from demonstrations: protocols.Clonable
        return {"model": "template", "parameters": str(sum(p.numel() for p in self.parameters()))}
