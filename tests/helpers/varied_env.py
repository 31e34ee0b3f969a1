"""A fake env whose tasks are variations of others."""

from embodied.protocols import TaskKinds
from embodied.testing import FakeEnv

KINDS = ("camera", "camera", "camera", "noise", "noise", "light")
STRENGTHS = ("1", "1", "3", "2", "", "1")
NAMES = tuple(f"task_{kind}_{number}" for number, kind in enumerate(KINDS))


class VariedEnv(FakeEnv):
    """Six tasks of three kinds; of a fourth all tasks are left out."""

    def __init__(self, **given: object) -> None:
        super().__init__(num_tasks=len(KINDS), **given)

    def task_kinds(self) -> TaskKinds:
        return TaskKinds(NAMES, KINDS, STRENGTHS, {"layout": 1200}, "strengths are made up")
