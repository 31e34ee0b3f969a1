"""Reward models without a network, for tests of what stands around them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any


class CountsB:
    """Scores an answer by its letters b, whatever was asked.

    Args:
        broken: answers of at least so many letters get NaN.
    """

    def __init__(self, scale: float = 1.0, broken: int = 1000) -> None:
        self._scale, self._broken = scale, broken

    def to(self, device: Any) -> CountsB:
        return self

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        assert all(prompt.startswith("#") for prompt in prompts)
        return [float("nan") if len(r) >= self._broken else self._scale * r.count("b") for r in responses]

    def describe(self) -> Mapping[str, str]:
        return {"model": "a count of letters"}


class Length(CountsB):
    """Scores an answer by its length."""

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        return [float(len(response)) for response in responses]


def broken_in_one_process(model_path: str, rank: int) -> Any:
    """Builds a classifier that makes its passes, and gives NaN in the process of this rank."""
    from embodied.models.causal_lm import build_reward_model

    model: Any = build_reward_model(model_path)
    scores, own = model.scores, os.environ["RANK"] == str(rank)
    model.scores = lambda batch: {place: float("nan") if own else score for place, score in scores(batch).items()}
    return model
