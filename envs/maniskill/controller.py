"""ManiSkill's controllers of the hand, without what they compute twice. Only for the worker."""

from __future__ import annotations

from functools import cache
from typing import Any


def look_once(agent: Any) -> None:
    """The hand's controllers of a robot look once an action where the hand is, instead of twice. May be said again.

    ``PDEEPosController.set_action`` (mani_skill 3.0.1, ``agents/controllers/pd_ee_pose.py``) asks for the pose at which
    the movement begins, and again for the inverse kinematics; nothing moves between. A look is a dozen calls of torch
    on a few numbers. The same numbers to the bit (``benchmarks/controller.py`` measures the difference).
    """
    from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController

    combined = getattr(agent, "controller", None)
    for controller in getattr(combined, "controllers", {}).values():
        kind: Any = type(controller)
        if isinstance(controller, PDEEPosController) and not hasattr(kind, "looks_twice"):
            controller.__class__ = _once(kind)


@cache
def _once(kind: Any) -> Any:
    class Once(kind):
        looks_twice = kind
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
