"""What else can be plugged in: rewards, reward models, trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from embodied.types import StepResult

if TYPE_CHECKING:
    import torch


class Reward(Protocol):
    """Turns the raw reward of each control step of an episode into the one that is recorded."""

    def begin(self) -> None:
        """Begin a new episode."""
        ...

    def __call__(self, result: StepResult) -> float: ...


class RewardModel(Protocol):
    """A network that scores answers and is not trained (``reward.model``)."""

    def to(self, device: torch.device) -> RewardModel:
        """Move it to the device of the policy; returns it."""
        ...

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> Sequence[float]:
        """The scores of n answers, any finite numbers. A score does not depend on what else is scored with it, but for
        rounding.

        Args:
            prompts: texts or conversations, as :meth:`Policy.encode_instructions` gets them.
            responses: the answers to them.
        """
        ...

    def describe(self) -> Mapping[str, str]:
        """A few facts for the console."""
        ...


class Tracker(Protocol):
    """Receives a run's metrics. A tracker that knows the run by an id (of a web service) gives it in an attribute
    ``run_id``. Checkpoints keep the id, and a resumed run hands it back."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...
