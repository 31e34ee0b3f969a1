"""A fake env whose tasks are variations of others."""

from collections.abc import Sequence

from embodied.errors import AssetsMissingError
from embodied.protocols import TaskKinds
from embodied.testing import FakeEnv
from embodied.types import Start

KINDS = ("camera", "camera", "camera", "noise", "noise", "light")
STRENGTHS = ("1", "1", "3", "2", "", "1")
NAMES = tuple(f"task_{kind}_{number}" for number, kind in enumerate(KINDS))


class VariedEnv(FakeEnv):
    """Six tasks of three kinds; of a fourth all tasks are left out.

    Args:
        sample: take the last tasks alone, so that a task's number is not that of the whole.
        lacking: tasks that say in their resets that a file of theirs is damaged.
    """

    def __init__(self, sample: int | None = None, lacking: Sequence[int] = (), **given: object) -> None:
        self._lacking = lacking
        self._first = len(KINDS) - (sample or len(KINDS))
        super().__init__(num_tasks=len(KINDS) - self._first, **given)

    def reset(self, start: Start) -> None:
        if start.task_id in self._lacking:
            raise AssetsMissingError(f"{NAMES[start.task_id]}.xml is damaged", "install it again")
        super().reset(start)

    def task_kinds(self) -> TaskKinds:
        own = (part[self._first :] for part in (NAMES, KINDS, STRENGTHS))
        return TaskKinds(*own, {"layout": 1200}, "strengths are made up", ("sample",))
