"""A fake env whose tasks are variations of others."""

from embodied.protocols import TaskKinds
from embodied.testing import FakeEnv

KINDS = ("camera", "camera", "camera", "noise", "noise", "light")
STRENGTHS = ("1", "1", "3", "2", "", "1")
NAMES = tuple(f"task_{kind}_{number}" for number, kind in enumerate(KINDS))


class VariedEnv(FakeEnv):
    """Six tasks of three kinds; of a fourth all tasks are left out.

    Args:
        sample: take the last tasks alone, so that a task's number is not that of the whole.
    """

    def __init__(self, sample: int | None = None, **given: object) -> None:
        self._first = len(KINDS) - (sample or len(KINDS))
        super().__init__(num_tasks=len(KINDS) - self._first, **given)

    def task_kinds(self) -> TaskKinds:
        own = (part[self._first :] for part in (NAMES, KINDS, STRENGTHS))
        return TaskKinds(*own, {"layout": 1200}, "strengths are made up", ("sample",))
