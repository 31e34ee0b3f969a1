"""Policies that misbehave, for whole runs and for ``check_policy``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from embodied.testing import FakePolicy, FakeTextPolicy
from embodied.types import Decision, Evaluation


class NotFinite(FakePolicy):
    """Log-probs that are not a number while ``poisoned``."""

    poisoned = True

    def evaluate(self, records, sampling, distribution=False):
        result = super().evaluate(records, sampling, distribution)
        factor = float("nan") if self.poisoned else 1.0
        return Evaluation(result.logprobs * factor, result.entropy, result.value)


class Narrow(FakePolicy):
    """Log-probs that pass through fp16, where their gradient arrives 64 times as large."""

    def evaluate(self, records, sampling):
        result = super().evaluate(records, sampling)
        return Evaluation((result.logprobs / 64).half().float() * 64, result.entropy, result.value)


class Altered(FakePolicy):
    """``act`` with one field changed by ``alter``."""

    def __init__(self, field: str, alter: Any) -> None:
        super().__init__()
        self._field, self._alter = field, alter

    def act(self, obs, uniform, sampling):
        fields = dict(super().act(obs, uniform, sampling).fields)
        fields[self._field] = self._alter(fields[self._field])
        return Decision(fields)


class NoField(FakePolicy):
    def act(self, obs, uniform, sampling):
        fields = dict(super().act(obs, uniform, sampling).fields)
        del fields["logprobs"]
        return Decision(fields)


class WrongLogProbs(FakePolicy):
    def evaluate(self, records, sampling, distribution=False):
        result = super().evaluate(records, sampling, distribution)
        return Evaluation(result.logprobs - 0.5, result.entropy)


class LearnsInFloat32(FakePolicy):
    """``evaluate`` knows one number format alone."""

    def evaluate(self, records, sampling, distribution=False):
        return super().evaluate(records, replace(sampling, logprob_dtype="float32"), distribution)


class UnusedParameter(FakePolicy):
    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(3))


class NoTokens(FakePolicy):
    """Without one of the methods that learning from demonstrations needs."""

    encode_actions = None  # type: ignore[assignment]


class OutOfMemory(FakePolicy):
    """The device is full when the policy acts, or when it trains: as torch says it, on a real GPU."""

    def __init__(self, phase: str, gradient_checkpointing: bool = False, precision: str = "fp32") -> None:
        super().__init__()
        self._phase = phase

    def _check(self, phase: str) -> None:
        if phase == self._phase:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity")

    def act(self, obs, uniform, sampling):
        self._check("rollout")
        return super().act(obs, uniform, sampling)

    def evaluate(self, records, sampling, distribution=False):
        self._check("update")
        return super().evaluate(records, sampling, distribution)


class CountsNothing(FakeTextPolicy):
    """Writes texts, and does not count their tokens."""

    tokens = None  # type: ignore[assignment]
