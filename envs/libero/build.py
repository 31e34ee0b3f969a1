"""Builds LIBERO's environment of a task, and does the last part of its reset again with the arm at other joints."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError

from .files import INSTALL, read_text
from .memory import free_assets, free_description, unreserved
from .plus.files import INSTALL as INSTALL_PLUS
from .plus.files import paths_of
from .plus.scenes import teach
from .process import quiet

_PLACEMENT_SEED = 0


@dataclass
class BeforeReset:
    """What the last part of a reset begins with."""

    draws: Any  # state of numpy's global generator
    bodies: tuple[np.ndarray, np.ndarray]  # of the model: positions (m) and quaternions


def build(bddl_file: str, keep_assets: bool) -> tuple[Any, BeforeReset]:
    """Builds the robosuite environment and resets it once, with its fixtures placed by a fixed seed; no GL.

    Returns:
        It, and what places the fixtures again.
    """
    from libero.libero.envs.env_wrapper import ControlEnv

    if paths := paths_of(Path(bddl_file)):
        teach(paths, Path(bddl_file))
    others, noted = np.random.get_state(), list[BeforeReset]()

    def note(domain: Any, reset: Callable[[], None]) -> None:
        model = domain.sim.model._model
        noted[:] = [BeforeReset(np.random.get_state(), (model.body_pos.copy(), model.body_quat.copy()))]
        reset()

    with quiet():
        env = ControlEnv(bddl_file_name=bddl_file, use_camera_obs=False, has_offscreen_renderer=False)
        free_description()  # the reset compiles another: without this both would be held at once
        env.env._reset_internal = functools.partial(note, env.env, env.env._reset_internal)
        np.random.seed(_PLACEMENT_SEED)
        env.reset()
        del env.env._reset_internal
        free_description()
    unreserved(env.env.sim.data._data)
    np.random.set_state(others)
    if not keep_assets:
        free_assets()
    return env.env, noted[-1]


@contextmanager
def blamed_on(bddl: Path) -> Iterator[None]:
    """Says it if a scene cannot be built because of its BDDL file: each attempt would fail alike.

    Raises:
        AssetsMissingError: the file cannot be read, or names what neither its scene nor LIBERO has.
    """
    try:
        yield
    except Exception as error:
        if not (fault := _fault(bddl, error)):
            raise
        raise AssetsMissingError(fault, f"reinstall it: {INSTALL_PLUS if paths_of(bddl) else INSTALL}") from error


def _fault(bddl: Path, error: Exception) -> str:
    """What is wrong with a BDDL file whose scene could not be built; empty if nothing is found."""
    from libero.libero.envs.bddl_utils import robosuite_parse_problem

    try:
        with quiet():
            robosuite_parse_problem(str(bddl))
    except MemoryError:
        return ""
    except Exception as damage:  # noqa: BLE001 (the parser raises errors of many kinds)
        return f"{bddl} cannot be read: {type(damage).__name__}: {damage}"
    missing = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    named = missing.lower() in re.findall(r"[^\s()]+", read_text(bddl, INSTALL).lower())
    return f"{bddl} names '{missing}', which neither its scene nor the installed LIBERO has" if named else ""


def check_size(init_state: np.ndarray, model: Any) -> None:
    """Raises :class:`AssetsMissingError` for an initial state of another scene."""
    if init_state.size != (expected := 1 + model.nq + model.nv):
        raise AssetsMissingError(
            f"an initial state has {init_state.size} numbers, and the scene that was built needs {expected}",
            "reinstall LIBERO (and LIBERO-Plus), so that BDDL file and initial states are of one version",
        )


@contextmanager
def reset_with(domain: Any, before: BeforeReset, arm: np.ndarray) -> Iterator[None]:
    """Context in which the environment is as its reset leaves it with the robot's joints (rad) [7] at ``arm``.

    The scene is the same, so nothing is built: the last part of the reset is done again, with what it drew. Afterwards
    the robot has its own controller and joints again, and the physics stay.
    """
    import mujoco

    robot, model, data = domain.robots[0], domain.sim.model._model, domain.sim.data._data
    draws, kept = np.random.get_state(), (robot.controller, robot.init_qpos, domain.sim.__dict__.pop("forward"))
    model.body_pos[:], model.body_quat[:] = before.bodies
    np.random.set_state(before.draws)
    try:
        robot.init_qpos = arm
        mujoco.mj_resetData(model, data)
        domain._reset_internal()  # makes another controller
        domain.sim.forward()
        yield
    finally:
        robot.controller, robot.init_qpos, domain.sim.forward = kept
        np.random.set_state(draws)
