"""Chooses what of a control step is done here, and what by ManiSkill itself. Only for the worker: imports mani_skill.

``BaseEnv.step`` of one scene on the CPU spends five sixths of its time in Python and in torch's calls on a few numbers.
What is known here is done with SAPIEN directly; for the rest ManiSkill's own code runs, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from embodied.types import StepResult

from .controllers import Control, Unknown, check_robot
from .observed import Observed
from .tasks import Task, is_known, task_of

VERSION = "3.0.1"  # version of mani_skill whose arithmetic is repeated here
_HOOKS = ("_before_control_step", "_after_control_step", "_before_simulation_step", "_after_simulation_step")


class FastStep:
    """The fast path of a control step, for robots and tasks that are reproduced here. Make one after each reset: tasks
    may build another scene.

    Args:
        env: ManiSkill's env with one copy on the CPU.
    """

    def __init__(self, env: Any) -> None:
        import torch

        self._env = env
        self._observed: Observed | None = None
        with torch.inference_mode(False):  # tensors that may be written to within inference mode and outside of it
            self._control: Control | None = _if_known(env, "actions", _control_of)
            self._task: Task | None = _if_known(env, "success and reward", _task_of)
            if self._control is not None and self._task is not None:
                self._observed = _if_known(env, "observations", lambda env: _observed_of(env, self._task))

    def act(self, actions: np.ndarray) -> bool:
        """Applies an action float32 [1, A] as ``env._step_action`` does. Returns whether it could; if not, nothing was
        done.

        What is not finite, or of another shape, is left to ManiSkill to refuse.
        """
        control = self._control
        if control is None or actions.shape != (1, control.dims) or not np.isfinite(actions).all():
            return False
        with np.errstate(all="ignore"):
            control.act(actions[0])
        step = self._env.scene.px.step
        for _ in range(self._env._sim_steps_per_control):
            step()
        return True

    def result(self, info_reward: Mapping[str, float]) -> StepResult | None:
        """Computes success and reward of the present state; None if the task is not reproduced here.

        Args:
            info_reward: weights of entries of ``info``; empty: the normalized dense reward.
        """
        task = self._task
        if task is None:
            return None
        with np.errstate(all="ignore"):
            info = task.evaluate()
            if not info_reward:
                return StepResult(float(task.reward(info)), info["success"], info["success"])
        info["elapsed_steps"] = self._env._elapsed_steps
        reward = sum(weight * float(info[name]) for name, weight in info_reward.items())
        return StepResult(reward, info["success"], info["success"])

    def state(self, fields: Sequence[str]) -> np.ndarray | None:
        """Joins the given fields of ``read_state``: float32 [1, S]; None if they are not reproduced here."""
        return None if self._observed is None else self._observed.read(fields)


def _if_known(env: Any, what: str, make: Callable[[Any], Any]) -> Any:
    try:
        _check_env(env)
        return make(env)
    except Unknown as why:
        level = logging.WARNING if is_known(env) else logging.INFO  # nobody expects other tasks to be fast
        _say_once(f"{type(env).__name__}: {what} by ManiSkill's own code, which takes longer, because of {why}", level)
        return None


def _check_env(env: Any) -> None:
    import mani_skill

    if mani_skill.__version__ != VERSION:
        raise Unknown(f"mani_skill {mani_skill.__version__}, where {VERSION} is known")
    if env.num_envs != 1 or env.gpu_sim_enabled:
        raise Unknown("a simulation on a GPU")
    check_robot(env)


def _control_of(env: Any) -> Control:
    if not type(env).__module__.startswith("mani_skill.envs."):
        # it may read the targets that ManiSkill's controllers note; no task of ManiSkill's with this robot does
        raise Unknown(f"the task {type(env).__name__}, which is not ManiSkill's")
    _check_own(env, ("step", "_step_action", *_HOOKS))
    return Control(env.agent)


def _task_of(env: Any) -> Task:
    _check_own(env, ("step", "get_info", "get_reward"))
    return task_of(env)


def _observed_of(env: Any, task: Any) -> Observed:
    _check_own(env, ("_get_obs_agent", "get_info"))
    return Observed(env, task)


def _check_own(env: Any, names: tuple[str, ...]) -> None:
    from mani_skill.envs.sapien_env import BaseEnv

    for name in names:
        if getattr(getattr(env, name), "__func__", None) is not getattr(BaseEnv, name):
            raise Unknown(f"the task's own {name}")


@cache
def _say_once(message: str, level: int) -> None:
    logging.getLogger(__name__).log(level, message)
