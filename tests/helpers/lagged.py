"""Watches runs whose rollouts act with earlier weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied.learn.trainer import Trainer
from embodied.run.evaluation.evaluator import EvaluationRunner


def before(patch: pytest.MonkeyPatch, owner: Any, name: str, look: Callable[..., object]) -> None:
    """Calls ``look`` before each call of ``owner.name``, with its arguments."""
    original = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        look(*args)
        return original(*args, **kwargs)

    patch.setattr(owner, name, watched)


class Watched:
    """What acted in a run: the weights before each update, and how far recorded log-probs are from those of each.

    Args:
        logprobs: computes log-probs like the recorded ones: ``(policy, records, sampling)``.
    """

    def __init__(self, patch: pytest.MonkeyPatch, logprobs: Callable[[Any, Any, Any], Tensor]) -> None:
        self._logprobs, self._policies = logprobs, list[Any]()
        self._trainer: Trainer | None = None
        self.versions = list[set[int]]()  # of each update's records
        self.episodes = list[int]()
        self.gaps = list[list[float]]()  # of each update's records, largest difference from each policy until then
        self.present = list[bool]()  # whether an evaluation had the present weights
        before(patch, Trainer, "update", self._look)
        before(patch, EvaluationRunner, "evaluate", self._evaluates)

    def _look(self, trainer: Trainer, arrays: Any, results: Any, *_: Any) -> None:
        self._trainer = trainer
        self._policies.append(copy.deepcopy(trainer.policy))
        rows = np.concatenate([result.rows for result in results])
        self.versions.append(set(arrays["version"][rows].tolist()))
        self.episodes += [result.episode.episode_id for result in results]
        records = trainer._own(arrays, results).gather(rows)
        with torch.no_grad():
            found = [self._logprobs(policy, records, trainer.sampling) for policy in self._policies]
        self.gaps.append([float((one - records["logprobs"].reshape(one.shape)).abs().max()) for one in found])

    def _evaluates(self, evaluator: EvaluationRunner, *_: Any) -> None:
        acts = dict(evaluator._simulators.model.policy.named_parameters())
        if self._trainer is not None:
            self.present.append(all(torch.equal(p, acts[name]) for name, p in self._trainer.policy.named_parameters()))

    def check(self, lag: int, iterations: int, episodes: int, near: float = 1e-5) -> list[int]:
        """Asserts that each iteration acted with the weights of ``lag`` iterations before and learned from each planned
        episode once; returns the versions that acted."""
        acted = [max(0, iteration - lag) for iteration in range(iterations)]
        assert self.versions == [{version} for version in acted], "one optimizer step an iteration"
        assert [int(np.argmin(found)) for found in self.gaps] == acted
        assert max(found[version] for found, version in zip(self.gaps, acted, strict=True)) < near
        assert sorted(self.episodes) == [*range(episodes)]
        return acted
