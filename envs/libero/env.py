"""LIBERO (arXiv 2306.03310) as an :class:`embodied.protocols.Env`: 130 tasks of a Panda arm in five suites, 160
perturbed ones in the sixteen of LIBERO-PRO (arXiv 2510.03827), and 10,030 in the four of LIBERO-Plus (2510.13626).

Stepping, states and pictures equal those of the original package bit by bit (``tests/envs/test_libero_exact.py``).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from embodied.errors import ConfigError, UnknownKeyError, did_you_mean
from embodied.lib.host_memory import SimulatorMemory
from embodied.protocols import TaskKinds
from embodied.types import (
    ArraySpec,
    ContinuousAction,
    EnvSpec,
    Obs,
    SimulatorNeeds,
    Start,
    StepResult,
    WorkerFacts,
)

from ..shared.arguments import check_list, check_name, check_number, check_range
from ..shared.machine import versions_of
from .experts import actions, mistaken_actions, solved, solves
from .files import (
    INSTALL,
    MAX_STEPS,
    MODULES,
    PACKAGES,
    PLUS,
    LiberoPaths,
    LiberoTask,
    locate,
    read_tasks,
)
from .goals import NUM_FEATURES
from .host_memory import host_memory
from .plus.cameras import CAMERA
from .plus.chosen import Choice, choose, kinds_of
from .plus.files import DISTRIBUTION, describe_installed
from .plus.starts import InitialStates
from .plus.varied import Varied, check_pictures
from .process import prepare_process
from .rendering import BACKENDS, Pictures, RendererChoice, check_renderer, draw_frame
from .sharing import EnvSlot, build_ahead, can_share
from .simulator import CONTROL_HZ, TaskSimulator

CAMERAS = ("agentview", "robot0_eye_in_hand", "frontview", "birdview", "sideview", "galleryview", "robot0_robotview")
_INIT_PARAMS = {
    "camera_names": ("agentview", "robot0_eye_in_hand"),
    "camera_heights": 256,
    "camera_widths": 256,
    "mesh_cell": 0.0,
}
_SIZE_LIMITS = (16, 2048)
_COARSEST = 0.05  # m


class LiberoEnv:
    """One env slot of LIBERO, simulated by robosuite and MuJoCo.

    Observation: ``images`` uint8 [C, H, W, 3], ``images[i]`` from ``camera_names[i]``, GL's picture turned by 180° as
    demonstrations and checkpoints have it: upright, mirrored left to right; ``state`` float32 [8]: gripper position
    (m, 3), axis-angle (rad, 3), fingers (m, 2). As in the original, it shows the arm 4 ms before the step's end.
    Action: float32 [7] in [−1, 1]: OSC_POSE delta position (3) and axis-angle (3), gripper −1 open … +1 close.

    Reward of a step: a potential Φ in [0, 1]. Φ = 1 when the goal is reached, else (k + ½·max p) / n with k of its n
    predicates satisfied, the maximum over the others, and p the mean of 1 − tanh(5·d) over the distances d (m)
    gripper → object and, where the predicate names a target, object → target.

    Progress features, float32 [73]: gripper position (m), two rows of its rotation matrix, both fingers (m); position
    and two rows of the matrix of each object and region that the goal names, up to six; 1 for each of up to four goal
    predicates that the last control step has satisfied; positions (rad or m) of up to four joints of what the goal
    names: a drawer, a door, a knob. Poses are those that the observation shows.

    libero_object, libero_spatial, and six tasks each of libero_goal and libero_10 have a scripted ``expert()``
    (:mod:`embodied.envs.libero.experts`).

    Args:
        task_suite_name: libero_spatial, libero_object, libero_goal, libero_10 or libero_90. LIBERO-PRO's have one of
            these behind the first four: ``_object`` (objects of other looks), ``_swap`` (objects at each other's
            places), ``_lan`` (other words), ``_task`` (another goal in the same scene). Instructions of ``_lan`` and
            ``_task`` are those of their BDDL files. The others have LIBERO's own, so that the scene alone is another.
            LIBERO-Plus's are libero_plus_spatial, _object, _goal and _10 (:mod:`embodied.envs.libero.plus`).
        task_ids: tasks of the suite that are used, in this order (``Start.task_id`` indexes this list); None = all.
        wait_steps: control steps that objects get to settle after a reset; they count for nothing else.
        max_cached_simulators: built tasks that a worker keeps for all its env slots; the one used longest ago goes
            first, and is equal when built again (1.5–5 s of CPU time). Slots in one task share its simulator, and one
            that a slot is in is kept beyond that number. Without a GPU a worker takes 0.52 GB with a task of
            libero_object and 0.78 GB with ten, 0.65 and 1.50 GB of libero_10. Keeping three of ten takes no less (1.15
            and 1.50 GB): who builds again keeps what it has decoded (``benchmarks/simulator_memory.py --kept``).
        init_params: ``camera_names``, ``camera_heights``, ``camera_widths`` (pixels), each with a default, and
            ``mesh_cell`` (m, 0): in pictures the vertices of a mesh that lie in one cube of this edge are one. 0.01
            costs a sixth of a 64-pixel picture's time without a GPU. 0 gives the benchmark's pictures, another value
            does not; it changes nothing else.
        renderer: "egl", "osmesa", or "auto": the environment's MUJOCO_GL if set, else the first of both that works.
        kinds: of LIBERO-Plus, the kinds of variation that are used: camera, robot, language, light, background, noise,
            layout; None = all.
        sample, sample_seed: of LIBERO-Plus, so many tasks, of each kind and strength its share; None = all.
        skip_missing: leave out tasks whose assets are not installed; else they are refused.
        plain_instructions: of LIBERO-Plus, give tasks LIBERO's instruction. The package's ends with the variation's
            name, e.g. "… on the plate light 3"; those of kind language are the same.

    Raises:
        UnknownNameError: suite, camera or renderer.
        UnknownKeyError: a key of ``init_params``.
        ConfigError: task id or size out of range.
        AssetsMissingError: LIBERO, its meshes or its initial states are not installed.
    """

    experts = solved()
    keys_of_policy = ("init_params.camera_names", "init_params.camera_heights", "init_params.camera_widths")
    keys_without_start = ("init_params", "task_ids", "wait_steps")

    def __init__(
        self,
        task_suite_name: str,
        task_ids: Sequence[int] | None = None,
        wait_steps: int = 10,
        max_cached_simulators: int = 10,
        init_params: Mapping[str, Any] | None = None,
        renderer: str = "auto",
        kinds: Sequence[str] | None = None,
        sample: int | None = None,
        sample_seed: int = 0,
        skip_missing: bool = False,
        plain_instructions: bool = False,
    ) -> None:
        choice = Choice(kinds, sample, sample_seed, skip_missing, plain_instructions)
        check_name("renderer", renderer, ("auto", *BACKENDS), "env.train.renderer")
        check_name("task suite", task_suite_name, MAX_STEPS, "env.train.task_suite_name")
        check_range("wait_steps", wait_steps, 0, 1000)
        check_range("max_cached_simulators", max_cached_simulators, 1, 130)
        self._pictures = _read_pictures(init_params or {})
        choice.check(plus=task_suite_name in PLUS)
        self._paths = locate()
        chosen = choose(task_suite_name, choice) if task_suite_name in PLUS else None
        tasks = chosen.tasks if chosen else read_tasks(self._paths.package, task_suite_name)
        self._tasks = _choose(tasks, task_suite_name, task_ids)
        self._kinds = kinds_of(self._tasks, chosen.left_out) if chosen else None
        check_pictures(self._tasks, self._pictures)
        self._init_states = InitialStates(self._tasks)
        self._spec = self._make_spec(MAX_STEPS[task_suite_name])
        self._wait_steps, self._renderer = wait_steps, renderer
        self._slot = EnvSlot(max_cached_simulators)
        self._memory = host_memory(task_suite_name, self._pictures, max_cached_simulators)
        self._task_id, self._varied = -1, Varied()
        if solves(task_suite_name, task_ids):
            self.expert = self._expert  # set here alone: an env without an expert does not offer one
            self.mistaken_expert = self._mistaken_expert

    def _make_spec(self, max_episode_steps: int) -> EnvSpec:
        pictures = self._pictures
        images = (len(pictures.cameras), pictures.height, pictures.width, 3)
        return EnvSpec(
            obs={"images": ArraySpec(images, "uint8"), "state": ArraySpec((8,), "float32")},
            cameras=pictures.cameras,
            action=ContinuousAction((-1.0,) * 7, (1.0,) * 7),
            tasks=tuple(task.instruction for task in self._tasks),
            num_init_states=self._init_states.counts,
            max_episode_steps=max_episode_steps,
            control_hz=CONTROL_HZ,
        )

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @staticmethod
    def needs() -> SimulatorNeeds:
        """Says what LIBERO needs of a machine (:class:`embodied.protocols.NeedsOfMachine`)."""
        renderers = {{"egl": "EGL", "osmesa": "OSMesa"}[name]: functools.partial(draw_frame, name) for name in BACKENDS}
        licences = {"LIBERO's code": "MIT", "LIBERO's meshes, textures and initial states": "CC BY 4.0"}
        return SimulatorNeeds("LIBERO", MODULES, INSTALL, renderers, licences, LiberoEnv._try_imports)

    def task_kinds(self) -> TaskKinds | None:
        """Says how LIBERO-Plus varies each task (:class:`embodied.protocols.KnowsKinds`)."""
        return self._kinds

    def file_digests(self) -> Mapping[str, str]:
        """Says what its files hold (:class:`embodied.protocols.KnowsFiles`)."""
        return self._init_states.digests()

    def host_memory(self) -> SimulatorMemory:
        """Says what simulators take of a worker's memory (:class:`embodied.protocols.SaysMemory`)."""
        return self._memory

    def preflight(self) -> None:
        check_renderer(self._renderer)

    def preload(self) -> None:
        """Does what :meth:`prepare` does, which makes no GL context: it tries the renderer in a process of its own."""
        self.prepare()

    def builds(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Offers to build the tasks that a worker keeps (:class:`embodied.protocols.BuildsAhead`). Where Mesa draws in
        the process itself it draws, too; a fork loses the GL context of a GPU's driver, so there each worker makes its
        own.
        """
        if not can_share():
            return
        scenes = [*{task.bddl_file: task for task in reversed(self._tasks)}.values()][::-1]  # tasks may share one
        tasks, draw = scenes[: self._slot.limit], self._prepared()[0].draws_in_process
        for task in tasks:
            build = functools.partial(
                build_ahead, str(task.bddl_file), self._pictures, draw, keep_assets=task is not tasks[-1]
            )
            yield f"{task.name} of {task.bddl_file.parent.name}", build

    def prepare(self) -> WorkerFacts:
        choice, versions = self._prepared()
        packages, shares = versions_of((*PACKAGES, DISTRIBUTION) if self._kinds else PACKAGES), can_share()
        return WorkerFacts(os.getpid(), choice.name, choice.reason, versions, choice.driver, packages, shares)

    def _prepared(self) -> tuple[RendererChoice, dict[str, str]]:
        return _prepare_once(self._paths, self._renderer, os.environ.get("MUJOCO_EGL_DEVICE_ID"))

    def _try_imports(self) -> WorkerFacts:
        choice = check_renderer(self._renderer)
        found = prepare_process(self._paths, choice.name, compiled=False)
        found["libero-plus"] = describe_installed()
        found["control"] = "is compiled by the first worker of this machine, in 15 to 30 CPU seconds, not by this check"
        return WorkerFacts(os.getpid(), choice.name, choice.reason, found, choice.driver, versions_of(PACKAGES))

    def reset(self, start: Start) -> None:
        """Goes to a start. ``start.seed`` changes the noise of LIBERO-Plus's pictures alone: LIBERO randomises nothing
        beyond the initial state."""
        self._check_start(start)
        init_state = self._init_states[start.task_id][start.init_state_id]
        simulator = self._enter(start.task_id)
        self._varied = Varied(self._tasks[start.task_id], start.seed)
        simulator.begin(init_state, self._wait_steps, self._varied.arm())
        if (pose := self._varied.camera()) and CAMERA in self._pictures.cameras:
            simulator.place_camera(CAMERA, *pose)

    def _check_start(self, start: Start) -> None:
        check_range("task_id of a start", start.task_id, 0, len(self._tasks) - 1)
        last = self._spec.num_init_states[start.task_id] - 1
        check_range("init_state_id of a start", start.init_state_id, 0, last)

    def _enter(self, task_id: int) -> TaskSimulator:
        """Goes to a task, whose state is then to be set."""
        simulator = self._slot.enter(str(self._tasks[task_id].bddl_file), self._pictures)
        self._task_id = task_id
        return simulator

    @property
    def _current(self) -> TaskSimulator:
        return self._slot.simulator

    def step(self, action: np.ndarray) -> StepResult:
        self._varied.steps += 1
        success = self._current.step(np.asarray(action, np.float64))
        reward = 1.0 if success else self._current.progress()
        return StepResult(reward, terminated=success, success=success)

    def observe(self, out: Obs) -> None:
        for index, camera in enumerate(self._pictures.cameras):
            out["images"][index] = self._picture(camera)
        out["state"][:] = self._current.robot_state()

    def _picture(self, camera: str) -> np.ndarray:
        return self._varied.picture(camera, self._current.render(camera))

    def frame(self) -> np.ndarray:
        return self._picture(self._pictures.cameras[0]).copy()

    @property
    def num_progress_features(self) -> int:
        return NUM_FEATURES

    def progress_features(self) -> np.ndarray:
        """Says where gripper and objects are (:class:`embodied.protocols.HasProgressFeatures`)."""
        return self._current.progress_features()

    def move_camera(self, name: str, translation: np.ndarray, rotation: np.ndarray) -> None:
        """Moves and turns a camera until the next reset (:class:`embodied.protocols.MovesCameras`)."""
        self._current.move_camera(name, translation, rotation)

    def _expert(self) -> Iterator[np.ndarray]:
        """Yields the next action of a scripted policy that reads the objects' poses."""
        return actions(self._slot.scene())

    def _mistaken_expert(self) -> Iterator[np.ndarray]:
        """Yields the next action of one that takes another object."""
        return mistaken_actions(self._slot.scene())

    def get_state(self) -> dict[str, Any]:
        drawn = {"seed": self._varied.seed, "steps": self._varied.steps}
        return {"task_id": self._task_id, "simulator": self._current.get_state(), "noise": drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        self._enter(state["task_id"]).set_state(state["simulator"])
        self._varied = Varied(self._tasks[state["task_id"]], state["noise"]["seed"])
        self._varied.steps = state["noise"]["steps"]

    def close(self) -> None:
        self._slot.close()


@functools.cache
def _prepare_once(paths: LiberoPaths, renderer: str, gpu: str | None) -> tuple[RendererChoice, dict[str, str]]:
    """Prepares the process once, although a worker may host several slots or was forked from a prepared process.

    Args:
        gpu: the device that the renderer is tried on. Another device is tried again.
    """
    choice = check_renderer(renderer)
    return choice, prepare_process(paths, choice.name)


def _read_pictures(given: Mapping[str, Any]) -> Pictures:
    for key in given:
        if key not in _INIT_PARAMS:
            message = f"unknown key 'env.train.init_params.{key}'.{did_you_mean(key, _INIT_PARAMS)}"
            raise UnknownKeyError(message, f"remove it, or use one of: {', '.join(_INIT_PARAMS)}")
    values = {**_INIT_PARAMS, **given}
    for key in ("camera_heights", "camera_widths"):
        check_range(f"init_params.{key}", values[key], *_SIZE_LIMITS)
    check_number("init_params.mesh_cell", values["mesh_cell"], 0.0, _COARSEST)
    names = values["camera_names"]
    check_list("names", names, "env.train.init_params.camera_names", "[agentview]")
    for name in names:
        check_name("camera", name, CAMERAS, "env.train.init_params.camera_names")
    return Pictures(tuple(names), values["camera_heights"], values["camera_widths"], values["mesh_cell"])


def _choose(tasks: list[LiberoTask], suite: str, task_ids: Sequence[int] | None) -> list[LiberoTask]:
    if task_ids is None:
        return tasks
    check_list("numbers", task_ids, "env.train.task_ids", "null for all tasks")
    for task_id in task_ids:
        check_range(f"task_ids of {suite}", task_id, 0, len(tasks) - 1)
    if len(set(task_ids)) < len(task_ids):
        raise ConfigError(
            f"env.train.task_ids is {list(task_ids)}, expected different ids",
            "set env.train.task_ids=null for all tasks",
        )
    return [tasks[task_id] for task_id in task_ids]
