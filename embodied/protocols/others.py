"""What else can be plugged in: rewards, reward models, trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from embodied.types import StepResult

if TYPE_CHECKING:
    import torch
    from torch import nn

Cell = str | int | float | bool | None
"""A value in a table of a tracker."""


class Reward(Protocol):
    """Turns the raw reward of each control step of an episode into the one that is recorded."""

    def begin(self) -> None:
        """Begins a new episode: forgets the one before."""
        ...

    def __call__(self, result: StepResult) -> float: ...


class RewardModel(Protocol):
    """A network that scores answers and is not trained (``reward.model``)."""

    def to(self, device: torch.device) -> RewardModel:
        """Moves the model to the device of the policy; returns it."""
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
        """Returns a few facts on the model for the console."""
        ...


@runtime_checkable
class ScoresInPasses(RewardModel, Protocol):
    """A :class:`RewardModel` may offer it: several processes can then share its network out
    (``reward.model.strategy``). A batch is what one forward pass scores: places of texts → tokens."""

    @property
    def network(self) -> nn.Module:
        """The module to be sharded over processes, on the CPU until :meth:`to`."""
        ...

    def to(self, device: torch.device) -> ScoresInPasses: ...

    def awake(self) -> AbstractContextManager[None]:
        """Context in which the network is on its device."""
        ...

    def batches(self, prompts: Sequence[str], responses: Sequence[str]) -> Sequence[Mapping[int, list[int]]]:
        """The batches that score n answers, in which each place, 0 … n − 1, stands once."""
        ...

    def scores(self, batch: Mapping[int, list[int]]) -> Mapping[int, float]:
        """Makes one forward pass of :attr:`network`; returns the score of each text by its place. Of an empty batch
        it makes one, too: with a shared network all processes make equally many."""
        ...


class Tracker(Protocol):
    """Receives a run's metrics. A tracker that knows the run by an id (of a web service) gives it in an attribute
    ``run_id``. Checkpoints keep the id, and a resumed run hands it back. It may be a :class:`TakesTables` and a
    :class:`TakesVideos`, too."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class TakesTables(Protocol):
    """A :class:`Tracker` may offer it: it gets the tables of evaluations."""

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Take a table of the evaluation after ``step`` iterations.

        Args:
            name: ``eval/success`` or ``eval/generations``; each step has another table of this name.
            rows: one value for each column.
        """
        ...


@runtime_checkable
class TakesVideos(Protocol):
    """A :class:`Tracker` may offer it: it gets the videos of evaluations."""

    def video(self, step: int, name: str, file: Path) -> None:
        """Take a video of the evaluation after ``step`` iterations.

        Args:
            name: ``eval/video/…``, unique among those of the step.
            file: an mp4 file; it stays where it is.
        """
        ...
