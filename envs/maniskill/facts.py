"""Facts of ManiSkill tasks: a table that needs no simulator, and questions to the simulator for the rest.

The table has the tasks of the wheel that need no download, with their own robot; a test compares it with the simulator.
For any other task, robot or control mode a process of its own builds the task once without rendering (about 5 s). The
answer is kept in the cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied.errors import (
    AssetsMissingError,
    ConfigError,
    EmbodiedError,
    RendererUnavailableError,
    UnknownNameError,
    unknown_name,
)
from embodied.lib.cache import cache_folder
from embodied.lib.whole import write_whole

from .rendering import REMEDY

_PROBE_TIMEOUT_S = 120.0
_FORMAT = 4  # version of the answers in the cache folder; those of another version are asked for again
BODIES, JOINTS = 12, 4  # least room of progress features, in which all tasks of the table fit
_ANSWERS = {error.__name__: error for error in (AssetsMissingError, ConfigError, UnknownNameError)}
_REGISTERED = re.compile(r"register_env\(\s*[\"']([^\"']+)[\"']")

INSTRUCTIONS = {
    "PickCube-v1": "pick up the red cube and move it to the green sphere",
    "PushCube-v1": "push the blue cube to the red and white target",
    "PullCube-v1": "pull the blue cube to the red and white target",
    "StackCube-v1": "stack the red cube on the green cube",
    "LiftPegUpright-v1": "lift the peg up and stand it upright",
    "PegInsertionSide-v1": "insert the orange end of the peg into the hole of the box",
    "PlugCharger-v1": "plug the charger into the receptacle",
    "PokeCube-v1": "poke the cube with the peg",
    "PlaceSphere-v1": "place the blue sphere in the bin",
    "PullCubeTool-v1": "pull the cube closer with the tool",
    "StackPyramid-v1": "build a pyramid with the three cubes",
    "RollBall-v1": "roll the ball to the target",
}


@dataclass(frozen=True)
class SimParams:
    """Arguments of a task's simulator under ManiSkill's own names; picklable and JSON."""

    id: str
    control_mode: str = "pd_ee_delta_pose"
    robot_uids: str | None = None  # None: the task's own
    obs_mode: str = "rgb"
    shader_pack: str = "minimal"
    sim_config: Mapping[str, Any] = field(default_factory=dict)
    task_kwargs: Mapping[str, Any] = field(default_factory=dict)
    task_file: str | None = None  # Python file that registers the task


@dataclass(frozen=True)
class TaskFacts:
    """Facts of a task that its spec needs."""

    max_episode_steps: int
    control_hz: float
    cameras: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    state: Mapping[str, int]  # fields of ManiSkill's own observation beside the pictures: numbers each
    rebuilds: bool = False  # another scene for each start, so that copies of it cannot be reset each for itself
    bodies: int = BODIES  # that progress features have room for
    joints: int = JOINTS  # of other articulations than the robot, likewise


def _panda_state(**extra: int) -> dict[str, int]:
    return {"qpos": 9, "qvel": 9, **extra, "tcp_pose": 7, "proprio": 8}


_BASE, _BOTH = ("base_camera",), ("base_camera", "hand_camera")
_TASKS: dict[str, tuple[int, tuple[str, ...], dict[str, int]]] = {  # steps, cameras, state
    "PickCube-v1": (50, _BASE, {**_panda_state(is_grasped=1), "goal_pos": 3}),
    "PushCube-v1": (50, _BASE, _panda_state()),
    "PullCube-v1": (50, _BASE, {**_panda_state(), "goal_pos": 3}),
    "StackCube-v1": (50, _BOTH, _panda_state()),
    "LiftPegUpright-v1": (50, _BASE, _panda_state()),
    "PegInsertionSide-v1": (100, _BOTH, _panda_state()),
    "PlugCharger-v1": (200, _BOTH, _panda_state()),
    "PokeCube-v1": (50, _BASE, _panda_state()),
    "PlaceSphere-v1": (50, _BASE, {**_panda_state(is_grasped=1), "bin_pos": 3}),
    "PullCubeTool-v1": (100, _BASE, _panda_state()),
    "StackPyramid-v1": (250, _BOTH, _panda_state()),
    "RollBall-v1": (80, _BASE, _panda_state()),
}
_REBUILT = ("PegInsertionSide-v1",)
_PANDA_DIMS = {  # control modes of the Panda whose every dimension is scaled to [−1, 1]
    "pd_ee_delta_pose": 7,
    "pd_ee_delta_pos": 4,
    "pd_joint_delta_pos": 8,
    "pd_ee_target_delta_pose": 7,
    "pd_ee_target_delta_pos": 4,
    "pd_joint_target_delta_pos": 8,
    "pd_joint_vel": 8,
}


def package_folder() -> Path:
    """Finds mani_skill. Raises :class:`AssetsMissingError`."""
    for name in ("mani_skill", "sapien"):
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise AssetsMissingError(
                f"ManiSkill needs the package '{name}', which is not installed", "pip install 'embodied-rl[maniskill]'"
            )
        if name == "mani_skill":
            folder = Path(next(iter(spec.submodule_search_locations)))
    return folder


@functools.cache
def registered(folder: Path, task_file: str | None) -> tuple[str, ...]:
    """Lists the names of all registered tasks, read from the source of the package and of the user's file."""
    files = [*sorted((folder / "envs").rglob("*.py")), *([Path(task_file)] if task_file else [])]
    return tuple(
        dict.fromkeys(name for file in files for name in _REGISTERED.findall(file.read_text(encoding="utf-8")))
    )


def check_task(params: SimParams) -> None:
    """Checks that a task is registered. Raises :class:`UnknownNameError`, or :class:`AssetsMissingError` if ManiSkill
    is not installed."""
    names = registered(package_folder(), params.task_file)
    if params.id not in names:
        raise unknown_name("ManiSkill task", params.id, names, "env.train.init_params.id")


def facts_of(params: SimParams) -> TaskFacts:
    """Returns a task's facts, from the table, else from the cache, else from a child process that builds the task.

    Raises:
        AssetsMissingError: the task's assets are not on this machine.
        ConfigError: the robot has no such control mode, or the task takes no such argument.
    """
    return _from_table(params) or ask(params)


def _from_table(params: SimParams) -> TaskFacts | None:
    changed = params.robot_uids or params.sim_config or params.task_kwargs or params.task_file
    if changed or params.id not in _TASKS or params.control_mode not in _PANDA_DIMS:
        return None
    steps, cameras, state = _TASKS[params.id]
    target = {"target_pose": 7} if "_ee_target_" in params.control_mode else {}
    dim = _PANDA_DIMS[params.control_mode]
    rebuilds = params.id in _REBUILT
    return TaskFacts(steps, 20.0, cameras, (-1.0,) * dim, (1.0,) * dim, {**state, **target}, rebuilds)


def ask(params: SimParams) -> TaskFacts:
    """Builds the task in a child process to learn its facts; they are cached for the installed version and these
    parameters."""
    file = cache_folder("maniskill") / f"{_fingerprint(params)}.json"
    try:
        return _decode(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass  # nothing was asked before, or an interrupted process wrote it
    facts = _ask_process(params)
    write_whole(file, json.dumps(asdict(facts)), shared=True)
    return facts


def _fingerprint(params: SimParams) -> str:
    code = Path(params.task_file).read_text(encoding="utf-8") if params.task_file else ""
    versions = [importlib.metadata.version(name) for name in ("mani_skill", "sapien")]
    key = json.dumps([_FORMAT, versions, asdict(params), code, os.environ.get("MS_ASSET_DIR", "")], sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _decode(found: Mapping[str, Any]) -> TaskFacts:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return TaskFacts(**values)


def _ask_process(params: SimParams) -> TaskFacts:
    command = [sys.executable, "-W", "ignore", "-m", f"{__package__}.probe"]
    env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    request = json.dumps(asdict(params))
    try:
        done = subprocess.run(
            command,
            input=request,
            env=env,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            encoding="utf-8",
        )
    except subprocess.TimeoutExpired:
        raise _probe_failed(params, f"no answer within {_PROBE_TIMEOUT_S:.0f} s") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not answers:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise _probe_failed(params, lines[-1] if lines else f"exit status {done.returncode}")
    answer = json.loads(answers[-1])
    if "error" in answer:
        raise _ANSWERS.get(answer["error"], EmbodiedError)(answer["message"], answer["remedy"])
    return _decode(answer)


def _probe_failed(params: SimParams, said: str) -> EmbodiedError:
    if "rendering device" in said:  # SAPIEN wants one even to build a scene that is not rendered
        return RendererUnavailableError(f"SAPIEN found no Vulkan device: {said}", REMEDY)
    return ConfigError(
        f"ManiSkill could not build {params.id}: {said}",
        "correct env.train.init_params; the task must run with sim_backend physx_cpu and one env",
    )
