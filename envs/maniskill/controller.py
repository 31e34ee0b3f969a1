"""Spares ManiSkill's end-effector controllers a second computation of the same pose. Only for the worker."""

from __future__ import annotations

from functools import cache
from typing import Any


def cache_ee_pose(agent: Any) -> None:
    """Computes the end-effector pose once per action instead of twice. A second call changes nothing.

    ``PDEEPosController.set_action`` (mani_skill 3.0.1, ``agents/controllers/pd_ee_pose.py``) asks for the pose at which
    the movement begins, and again for the inverse kinematics; nothing moves in between. Each time takes a dozen calls
    of torch on a few numbers. Results stay equal bit by bit (``benchmarks/controller.py`` measures the time).
    """
    from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController

    combined = getattr(agent, "controller", None)
    for controller in getattr(combined, "controllers", {}).values():
        kind: Any = type(controller)
        if isinstance(controller, PDEEPosController) and not hasattr(kind, "uncached"):
            controller.__class__ = _once(kind)


@cache
def _once(kind: Any) -> Any:
    class Once(kind):
        uncached = kind
        _seen = None

        @property
        def ee_pose_at_base(self) -> Any:
            return super().ee_pose_at_base if self._seen is None else self._seen

        def set_action(self, action: Any) -> None:
            self._seen = self.ee_pose_at_base
            try:
                super().set_action(action)
            finally:
                self._seen = None

    Once.__name__, Once.__qualname__ = kind.__name__, kind.__qualname__
    return Once
