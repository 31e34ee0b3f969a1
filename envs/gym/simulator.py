"""A Gymnasium env with its wrappers, driven by seeds. Only for the process that has it: imports gymnasium when used."""

from __future__ import annotations

import importlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError, ConfigError, UnknownNameError
from embodied.lib.targets import load_target

from .calls import check_reset, check_step, from_action
from .pictures import rendered
from .settings import KEY, Making, Task


def prepare(making: Making) -> None:
    """Sets the environment variables that are not set yet, and imports the modules that register envs.

    Raises:
        AssetsMissingError: gymnasium, or a module of ``imports``, is not installed here.
    """
    for name, value in making.variables.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame
    for name in ("gymnasium", *making.imports):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            package = error.name or name
            other = f"pip install {package} (some packages have another name than their module)"
            install = "pip install 'embodied-rl[gym]'" if package == "gymnasium" else other
            raise AssetsMissingError(
                f"{KEY}.imports: cannot import '{name}': there is no module '{package}' here",
                f"if {package} is a file or folder of yours, start where it lies or put its folder into PYTHONPATH; "
                f"else {install}, or set env.python to the Python "
                "of an environment that has it",
            ) from error


def make(task: Task, making: Making, render: bool) -> Any:
    """Makes the env of a task, with its wrappers.

    Args:
        render: ask for pictures (``render_mode=rgb_array``), unless ``make_kwargs`` says otherwise.

    Raises:
        UnknownNameError: there is no such id.
        ConfigError: the entry point or a wrapper cannot be imported, or does not take its arguments.
    """
    import gymnasium

    of_id = partial(gymnasium.make, disable_env_checker=True)
    return wrapped(make_unwrapped(task, of_id, render, {}), task, making)


def make_unwrapped(task: Task, of_id: Callable[..., Any], render: bool, more: Mapping[str, Any]) -> Any:
    """Makes the env of a task without its wrappers; raises as :func:`make` does.

    Args:
        of_id: makes it of its id.
        more: arguments of an entry point beside those of the task.
    """
    import gymnasium

    kwargs = {**({"render_mode": "rgb_array"} if render else {}), **task.make_kwargs}
    try:
        if task.entry_point is not None:
            return load_target(task.entry_point, f"{KEY}.entry_point")(**more, **kwargs)
        return of_id(str(task.id), **kwargs)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise AssetsMissingError(
            f"{task.name} needs a package that is not installed here: {_said(error)}",
            "install it, or set env.python to the Python of an environment that has it",
        ) from error
    except gymnasium.error.Error as error:
        raise UnknownNameError(
            f"gymnasium.make does not make '{task.id}': {_said(error)}",
            f"correct {KEY}.id; an env of another package needs the package, and the module that registers it: "
            f"{KEY}.imports=[MODULE]",
        ) from error
    except TypeError as error:
        raise ConfigError(
            f"{task.name} does not take what it is given: {error}", f"correct {KEY}.make_kwargs (given: {kwargs})"
        ) from error


def wrapped(env: Any, task: Task, making: Making) -> Any:
    """Wraps a task's env as configured. Raises :class:`ConfigError` if a wrapper does not fit."""
    for number, wrapper in enumerate(making.wrappers):
        key = f"{KEY}.wrappers[{number}]"
        try:
            env = load_target(wrapper["target"], f"{key}.target")(env, **wrapper["kwargs"])
        except (TypeError, AssertionError) as error:
            raise ConfigError(
                f"{wrapper['target']} does not fit to {task.name}: {error}", f"correct {key}.kwargs, or leave it out"
            ) from error
    return env


class Simulator:
    """One slot's Gymnasium envs, one of which runs; the last used ones stay open.

    Args:
        kept: envs that stay open, those that were used last; every further task's is made anew.
        remake: make the env anew for each episode.
        doing: is told which call of the env comes next.
    """

    def __init__(
        self, making: Making, render: bool, kept: int = 1, remake: bool = False,
        doing: Callable[[str], None] = lambda call: None,
    ) -> None:  # fmt: skip
        self._doing = doing
        self._making, self._render, self._kept, self._remake = making, render, kept, remake
        self._made: OrderedDict[int, Any] = OrderedDict()
        self.env: Any = None  # env of the present episode
        self.values: dict[str, Any] = {}  # values that sources read
        self.ended = False  # the env's own episode has
        self._from_action: Callable[[np.ndarray], Any] = np.asarray

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Values that sources may read after the last step, as :class:`.late.Env` has it."""
        return [self.values]

    @property
    def over(self) -> bool:
        """Whether the env's own episode has ended."""
        return self.ended

    def reset(self, task_id: int, seed: int) -> None:
        """Begins an episode, which is a function of task and seed."""
        self._doing("close()")
        if self._remake and task_id in self._made:
            self._made.pop(task_id).close()
        if task_id not in self._made:
            while len(self._made) >= self._kept:
                self._made.popitem(last=False)[1].close()
            self._doing("gymnasium.make()")
            self._made[task_id] = make(self._making.tasks[task_id], self._making, self._render)
        self._made.move_to_end(task_id)
        self.env = self._made[task_id]
        self._from_action = from_action(self.env.action_space, self._making.tasks[task_id].name)
        _make_current(self.env)
        self._doing("reset()")
        obs, info = check_reset(self.env.reset(seed=seed))
        self.values = {"obs": obs, "info": info, "reward": 0.0, "return": 0.0, "terminated": False, "truncated": False}
        self.ended = False

    def step(self, action: np.ndarray) -> None:
        """Makes one step. After the end of the env's own episode nothing moves any more.

        Raises:
            SpecMismatchError: it does not give what Gymnasium's ``step()`` gives.
        """
        if self.ended:
            self.values = {**self.values, "reward": 0.0}
            return
        _make_current(self.env)  # a wrapper may draw in a step
        self._doing("step()")
        obs, reward, terminated, truncated, info = check_step(self.env.step(self._from_action(action)))
        self.values = {
            "obs": obs, "info": info, "reward": reward, "return": self.values["return"] + reward,
            "terminated": terminated, "truncated": truncated,
        }  # fmt: skip
        self.ended = terminated or truncated

    def render(self) -> np.ndarray:
        """A picture: uint8 [H, W, 3]. Raises :class:`ConfigError` if the env gives none."""
        _make_current(self.env)
        self._doing("render()")
        picture = self.env.render()
        if isinstance(picture, list) and picture:  # rgb_array_list: since the last call
            picture = picture[-1]
        return rendered(picture)

    def close(self) -> None:
        self._doing("close()")
        for env in self._made.values():
            env.close()
        self._made.clear()
        self.env = None


def _make_current(env: Any) -> None:
    """Chooses the GL context of an env that draws with Gymnasium's MuJoCo renderer.

    The renderer leaves the context as it is, so of two envs in one process one would draw into the other's.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    for viewer in getattr(renderer, "_viewers", {}).values():
        if hasattr(viewer, "make_context_current"):
            viewer.make_context_current()


def _said(error: Exception) -> str:
    return " ".join(str(error).split())
