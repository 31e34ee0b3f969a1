"""A policy for the fake env that is wrong by a constant, which a residual can find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling


class Biased(nn.Module):
    """Goes straight to the goal, and beside it.

    Args:
        bias: what each action is off by, in the first two dimensions.
        gain: of the way to the goal.
    """

    def __init__(self, bias: float = 0.4, gain: float = 2.0, num_action_chunks: int = 2, action_dim: int = 2) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((2,), bias))
        self._gain, self._shape = gain, (num_action_chunks, action_dim)
        decision = {"actions": ArraySpec(self._shape, "float32"), "logprobs": ArraySpec((1,), "float32")}
        self.spec = PolicySpec(
            num_action_chunks, decision, Elements((1,)), Noise((1,)), entropy=False, distribution=False, sampling=()
        )

    def bind(self, env: EnvSpec) -> None:
        pass

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        return {}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        return ()

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        actions = torch.zeros(len(noise), *self._shape)
        actions[..., :2] = (self._gain * obs["state"][:, None, :2] + self.bias).clamp(-1, 1)
        return Decision({"actions": actions, "logprobs": torch.zeros(len(noise), 1)})

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        raise NotImplementedError

    def describe(self) -> Mapping[str, str]:
        return {"model": "biased"}
