"""Properties of each ``runner.task_type``. The rest of the library asks for these, never for the name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskType:
    """Properties that a run has by its ``runner.task_type``. For a run that only evaluates see ``runner.only_eval``."""

    does: str
    by_rewards: bool = False  # reinforcement learning
    supervised: bool = False  # learns from demonstrations: all of its episodes are those of evaluations
    records: bool = False  # makes demonstrations, and builds no policy
    of_texts: bool = False  # no robot's run may have it


TASK_TYPES: Mapping[str, TaskType] = {
    "embodied": TaskType("learns by rewards", by_rewards=True),
    "math": TaskType("learns by rewards", by_rewards=True, of_texts=True),
    "sft": TaskType("learns from demonstrations", supervised=True),
    "demos": TaskType("makes demonstrations", records=True),
}


def task_of(name: object) -> TaskType:
    """Returns the properties of a ``runner.task_type``, also in a configuration that is not checked: an unknown name is
    that of reinforcement learning here."""
    return TASK_TYPES.get(str(name), TASK_TYPES["embodied"])
