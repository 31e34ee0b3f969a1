"""ManiSkill 3 (arXiv 2410.00425) as an :class:`embodied.protocols.Env`: any of its tasks, simulated on the CPU, or
many copies of it in one process on a GPU (:class:`embodied.protocols.Batched`).

On the CPU states, rewards, success and pictures equal those of ``gym.make`` bit by bit
(``tests/envs/test_maniskill_env.py``). GPU simulation is the same code with N copies, and has not been run
(``docs/architecture.md``). Its pictures stay on the GPU until those that are wanted are copied, once a render.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from embodied.errors import ConfigError, SpecMismatchError
from embodied.lib.host_memory import SimulatorMemory
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Obs, SimulatorNeeds, Start, StepResult, WorkerFacts

from ..shared.arguments import check_name, check_range
from ..shared.machine import versions_of
from .arguments import check_file, instructions, sim_params
from .cameras import Cameras
from .cuda import REMEDY, SIM_BACKENDS, check_cuda, device_of, renderer_of, wants_gpu
from .experts import CONTROL_MODES, EXPERTS
from .facts import TaskFacts, ask, check_task, facts_of
from .host_memory import host_memory
from .rendering import DEVICES, VulkanChoice, check_vulkan, draw_frame
from .simulator import TaskSimulator, prepare_process
from .state import num_features, read_features

PACKAGES = ("mani_skill", "sapien", "gymnasium", "numpy", "torch")  # distributions on whose versions numbers depend
SEED_STREAM = 2**30
"""Seeds of evaluation starts begin here (``embodied.runtime.plan``), so bit 30 of a seed tells the two apart."""


class ManiSkillEnv:
    """One env slot of ManiSkill 3, simulated by SAPIEN.

    Observation: ``images`` uint8 [C, H, W, 3], upright, ``images[i]`` from ``camera_names[i]``; ``state`` float32 [S]:
    the fields named by ``state``, in that order. ``proprio`` [8] is LIBERO's state: gripper position (m, 3), axis-angle
    (rad, 3), fingers (m, 2). The others are what ManiSkill itself gives beside its pictures, so no pose of an object:
    ``qpos`` in rad and m, ``qvel`` in rad/s and m/s, ``tcp_pose`` (m, quaternion wxyz), ``goal_pos`` (m).
    Action: float32 [A] of the controller. pd_ee_delta_pose (7): position, Euler angles, gripper; pd_ee_delta_pos (4):
    position, gripper; pd_joint_delta_pos (8): joints, gripper; in [−1, 1], gripper −1 closes and +1 opens.
    Reward of a step: ManiSkill's ``normalized_dense`` reward (1 = best); success where the task has none.

    Progress features, float32 [123]: position (m) and two rows of the rotation matrix of the hand, then of twelve
    bodies that are not static; the robot's last two joints; four joints of other articulations. What a task lacks is
    0; one with more has more numbers.

    Starts: ManiSkill's seed is ``Start.seed``, so each group trains on a scene of its own. With ``num_init_states=N``
    there are only N: the seed is ``init_state_id``, plus 2³⁰ in an evaluation. Seeds of evaluation begin at 2³⁰ and
    those of training stay below, so an evaluation shows scenes that training never does.

    PickCube, PushCube, PullCube and StackCube with pd_ee_delta_pos and pd_ee_delta_pose have a scripted ``expert()`` on
    the CPU.

    Args:
        init_params: ``id`` (any registered task), ``control_mode``, ``robot_uids``, ``obs_mode``, ``shader_pack``,
            ``sim_config``, ``task_kwargs`` (what the task's class takes), as in ``gym.make``; ``camera_names``,
            ``camera_heights``, ``camera_widths`` (pixels); ``camera_views``: for a camera that is to stand elsewhere
            than the task has it, ``{name: {eye: [x, y, z], target: [x, y, z], fov: …}}`` (m, rad).
        instruction: what the policy is told; None = a known task's own.
        state: fields of ``state``; empty = no such observation.
        show_goal: draw what ManiSkill hides from the robot's cameras, such as the goal that PickCube's cube is to
            reach. False, as in ManiSkill, leaves the goal to ``state`` (``goal_pos``).
        info_reward: weights of entries of ManiSkill's ``info``; their sum is then the reward.
        num_init_states: different starts, of each task; None = a new one for each seed.
        init_state_option: reset option that takes the number of the start (``episode_id``) instead of the seed.
        task_file: Python file that registers the task, for tasks outside the package.
        objects_file: JSON file of ``{object: {"name": …}}``: one task for each of ``objects`` of them.
        objects: [first, last + 1] of ``objects_file``.
        renderer: "gpu", "cpu" (software), or "auto": the first of both that works.
        sim_backend: "cpu": an env a slot. "gpu": all slots of a worker in one simulator, for which ``env.num_workers``
            should be 1 or 2 a GPU; it renders on the GPU as well. "auto": gpu if this machine and the task can. Which
            slot an episode runs in then changes its numbers by rounding, and tasks that build a scene for each start
            (PegInsertionSide) cannot be simulated so.

    Raises:
        UnknownNameError: task, camera, control mode, robot, field of the state, or renderer.
        UnknownKeyError: a key of ``init_params``.
        ConfigError: a size out of range, no instruction, or a task that cannot be simulated on a GPU.
        AssetsMissingError: ManiSkill, or a file of the task, is not installed.
    """

    experts = f"{', '.join(sorted(EXPERTS))} with {' or '.join(CONTROL_MODES)}"

    keys_of_policy = (
        *("init_params.camera_names", "init_params.camera_heights", "init_params.camera_widths"),
        *("init_params.camera_views", "init_params.control_mode", "state"),
    )
    keys_without_start = (*keys_of_policy, "init_params.shader_pack", "show_goal", "sim_backend")

    def __init__(
        self,
        init_params: Mapping[str, Any],
        instruction: str | None = None,
        state: Sequence[str] = ("proprio",),
        show_goal: bool = False,
        info_reward: Mapping[str, float] | None = None,
        num_init_states: int | None = None,
        init_state_option: str | None = None,
        task_file: str | None = None,
        objects_file: str | None = None,
        objects: Sequence[int] | None = None,
        renderer: str = "auto",
        sim_backend: str = "cpu",
    ) -> None:
        check_name("renderer", renderer, ("auto", *DEVICES), "env.train.renderer")
        check_name("sim_backend", sim_backend, SIM_BACKENDS, "env.train.sim_backend")
        self._params = sim_params(init_params, task_file)
        self._cameras = Cameras.of(init_params)
        for key, path in (("task_file", task_file), ("objects_file", objects_file)):
            check_file(self._params.id, key, path)
        if num_init_states is not None:
            check_range("env.train.num_init_states", num_init_states, 1, SEED_STREAM)
        if init_state_option and num_init_states is None:
            raise ConfigError(
                f"env.train.init_state_option is {init_state_option!r} and num_init_states is not set",
                "set env.train.num_init_states to how many starts the task has",
            )
        self._show_goal, self._renderer, self._state = show_goal, renderer, tuple(state)
        self._info_reward, self._num_starts, self._start_option = (
            dict(info_reward or {}),
            num_init_states,
            init_state_option,
        )
        self._objects = tuple(objects or ())
        check_task(self._params)
        tasks = instructions(self._params.id, instruction, objects_file, self._objects)
        self.facts = facts_of(self._params)
        self._on_gpu = wants_gpu(sim_backend, self.facts.rebuilds)
        self._spec = self._make_spec(self.facts, tasks)
        self._one = ManiSkillBatch(self, 1)
        if self._on_gpu:
            self._check_gpu()
            self.batch = self._batch  # set here, as an env lacks the methods that it does not offer
        elif self._params.id in EXPERTS and self._params.control_mode in CONTROL_MODES:
            self.expert = self._expert

    def _check_gpu(self) -> None:
        if self.facts.rebuilds:
            raise ConfigError(
                f"{self._params.id} builds another scene for each start, and the copies of a GPU simulation are built "
                "once, together",
                REMEDY,
            )
        if self._renderer == "cpu":
            raise ConfigError(
                "env.train.sim_backend is gpu and env.train.renderer cpu: pictures of a GPU simulation are rendered on "
                "the GPU",
                "set env.train.renderer=auto and env.eval.renderer=auto, or sim_backend=cpu",
            )
        self._renderer = "gpu"

    def _make_spec(self, facts: TaskFacts, tasks: tuple[str, ...]) -> EnvSpec:
        for camera in self._cameras.names:
            check_name(f"camera of {self._params.id}", camera, facts.cameras, "env.train.init_params.camera_names")
        for name in self._state:
            check_name(f"state of {self._params.id}", name, facts.state, "env.train.state")
        cameras = self._cameras
        obs = {"images": ArraySpec((len(cameras.names), cameras.height, cameras.width, 3), "uint8")}
        if self._state:
            obs["state"] = ArraySpec((sum(facts.state[name] for name in self._state),), "float32")
        return EnvSpec(
            obs=obs,
            cameras=cameras.names,
            action=ContinuousAction(facts.action_low, facts.action_high),
            tasks=tasks,
            num_init_states=(self._num_starts or 1,) * len(tasks),
            max_episode_steps=facts.max_episode_steps or 100,
            control_hz=facts.control_hz,
            restorable=not self._on_gpu,  # contacts cannot be written back on a GPU …
            repeatable=not self._on_gpu,  # … and numbers depend on the slot by rounding
        )

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @staticmethod
    def needs() -> SimulatorNeeds:
        """Says what ManiSkill needs of a machine (:class:`embodied.protocols.NeedsOfMachine`)."""
        licences = {"ManiSkill's code": "Apache-2.0", "ManiSkill's assets": "CC BY-NC 4.0, not for commercial use"}
        install = "pip install 'embodied-rl[maniskill]'"
        return SimulatorNeeds("ManiSkill", ("mani_skill", "sapien"), install, {"Vulkan": draw_frame}, licences)

    def host_memory(self) -> SimulatorMemory | None:
        """Says what simulators take of a worker's memory (:class:`embodied.protocols.SaysMemory`); None on a GPU, where
        it was not measured."""
        cameras = self._cameras
        pixels = len(cameras.names) * cameras.height * cameras.width
        return None if self._on_gpu else host_memory(self._params.id, pixels)

    def preflight(self) -> None:
        """Tries the renderer, and compares the spec with the simulator (asked once; a file keeps the answer)."""
        if self._on_gpu:
            check_cuda()
        check_vulkan(self._renderer)
        found = ask(self._params)
        if self._make_spec(found, self._spec.tasks) != self._spec:
            raise SpecMismatchError(
                f"{self._params.id} is {found}, expected {self.facts}",
                "the installed mani_skill is another than the table in envs/maniskill/facts.py was made for: "
                "pip install mani_skill==3.0.1",
            )

    def preload(self) -> None:
        """Does what :meth:`prepare` does: tries the renderer in a process of its own and imports the simulator."""
        self.prepare()

    def prepare(self) -> WorkerFacts:
        choice, versions = _prepare_once(self._renderer)
        self._renderer = choice.name
        extra = {**versions, "simulation": f"PhysX on {device_of()}"} if self._on_gpu else versions
        return WorkerFacts(os.getpid(), choice.name, choice.reason, extra, choice.driver, versions_of(PACKAGES))

    def _batch(self, num_slots: int) -> ManiSkillBatch:
        """Hosts all slots of a worker in one simulator (:class:`embodied.protocols.Batched`)."""
        return ManiSkillBatch(self, num_slots)

    def make_simulator(self, copies: int) -> TaskSimulator:
        """Builds a simulator with ``copies`` copies of the task. Takes seconds."""
        device = device_of() if self._on_gpu else "cpu"
        return TaskSimulator(
            self._params, renderer_of(self._renderer), self._cameras, self._show_goal, self._info_reward, device, copies
        )

    def seed_and_options(self, start: Start) -> tuple[int, dict[str, int]]:
        """Returns seed and options of ``env.reset`` for a start. Raises :class:`ConfigError` if there is no
        such start."""
        check_range("task_id of a start", start.task_id, 0, len(self._spec.tasks) - 1)
        last = self._spec.num_init_states[start.task_id] - 1
        check_range("init_state_id of a start", start.init_state_id, 0, last)
        if self._num_starts is None:
            return start.seed, {}
        stream = start.seed & SEED_STREAM
        if self._start_option is None:
            return stream + start.init_state_id, {}
        return stream, {self._start_option: start.task_id * self._num_starts + start.init_state_id}

    @property
    def state_fields(self) -> tuple[str, ...]:
        """Fields of ManiSkill's observation that make up ``state``, in order; empty without it."""
        return self._state

    # -- one slot: a batch of one ------------------------------------------------------------------------------------

    @property
    def _sim(self) -> TaskSimulator:
        return self._one.simulator

    def reset(self, start: Start) -> None:
        self._one.reset([0], [start])

    def step(self, action: np.ndarray) -> StepResult:
        return self._sim.step(action[None])[0]

    def observe(self, out: Obs) -> None:
        self._one.observe([0], [out])

    def frame(self) -> np.ndarray:
        return self._one.frame(0)

    def get_state(self) -> dict[str, Any]:
        return self._sim.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._sim.set_state(state)

    @property
    def num_progress_features(self) -> int:
        return num_features(self.facts.bodies, self.facts.joints)

    def progress_features(self) -> np.ndarray:
        """Says where hand and objects are (:class:`embodied.protocols.HasProgressFeatures`)."""
        return read_features(self._sim.env, self.facts.bodies, self.facts.joints)[0]

    def move_camera(self, name: str, translation: np.ndarray, rotation: np.ndarray) -> None:
        """Moves and turns a camera until the next reset (:class:`embodied.protocols.MovesCameras`)."""
        self._sim.move_camera(name, translation, rotation)

    def _expert(self) -> Iterator[np.ndarray]:
        """Yields the next action of a scripted policy that reads the objects' poses."""
        return self._sim.expert(EXPERTS[self._params.id])

    def close(self) -> None:
        self._one.close()


class ManiSkillBatch:
    """N slots in one simulator (:class:`embodied.protocols.BatchEnv`), which the first reset makes."""

    def __init__(self, env: ManiSkillEnv, num_slots: int) -> None:
        self._env, self._num_slots = env, num_slots
        self._simulator: TaskSimulator | None = None
        self._features: np.ndarray | None = None  # of all slots, read once for each state

    @property
    def simulator(self) -> TaskSimulator:
        """The simulator of all slots, built when it is first used."""
        if self._simulator is None:
            self._simulator = self._env.make_simulator(self._num_slots)
        return self._simulator

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        self._features = None
        seeds, options = zip(*map(self._env.seed_and_options, starts), strict=True)
        self.simulator.begin(slots, seeds, options)

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        self._features = None
        return self.simulator.step(actions)

    def progress_features(self, slot: int) -> np.ndarray:
        if self._features is None:
            facts = self._env.facts
            self._features = read_features(self.simulator.env, facts.bodies, facts.joints)
        return self._features[slot]

    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        pictures = self.simulator.pictures(slots, self._env.spec.cameras)
        fields = self._env.state_fields
        states = self.simulator.state(fields) if fields else None
        for slot, images, out in zip(slots, pictures, outs, strict=True):
            out["images"][:] = images
            if states is not None:
                out["state"][:] = states[slot]

    def frame(self, slot: int) -> np.ndarray:
        return self.simulator.pictures([slot], self._env.spec.cameras[:1])[0, 0]

    def close(self) -> None:
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None


@functools.cache
def _prepare_once(renderer: str) -> tuple[VulkanChoice, dict[str, str]]:
    """Prepares the process once, although a worker may host several slots."""
    choice = check_vulkan(renderer)
    return choice, prepare_process()
