"""A deterministic env without a simulator."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import ConfigError
from embodied.lib.host_memory import SimulatorMemory
from embodied.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, Obs, Start, StepResult, WorkerFacts

WORKER = 18 * 2**20  # bytes of a worker without a simulator
FAULTS = ("none", "exception", "kill", "hang", "prepare_exception")


class FakeEnv:
    """A point that the first action dimensions move towards a goal; success when it is near enough.

    The pictures show time and task in their pixels; the state is the point's offset from the goal (followed by zeros).
    So a policy can learn the task, and a test can tell every observation from every other.

    Args:
        num_tasks: each has its own goal.
        size: pixels of a side; ``cameras`` pictures.
        pictures: False = observations have the state alone.
        sentences: observations have an ``instruction`` of their own, another for each start.
        num_actions: an action is one of so many directions; None = it is ``action_dim`` numbers.
        restorable: False = no state can be taken or put back.
        repeatable: False = the spec does not promise equal episodes (they are equal all the same).
        success_distance: the episode ends with success nearer than this (0 = never).
        step_s: busy seconds of one control step, varied by ±50 % as a function of the start, so that slots diverge.
        fault, fault_step: what goes wrong at that control step of an episode of ``fault_task``.
        task_mb: MB that a slot takes for each task that it has been in, as simulators do.
    """

    keys_of_policy = ("cameras", "size", "pictures", "state_dim", "action_dim")
    keys_without_start = (*keys_of_policy, "horizon", "success_distance", "step_s")

    def __init__(
        self, num_tasks: int = 2, num_init_states: int = 4, cameras: int = 2, size: int = 16, state_dim: int = 8,
        action_dim: int = 7, horizon: int = 24, success_distance: float = 0.0, step_s: float = 0.0,
        fault: str = "none", fault_step: int = 3, fault_task: int = 0, pictures: bool = True, sentences: bool = False,
        num_actions: int | None = None, restorable: bool = True, repeatable: bool = True,
        task_mb: int = 0,
    ) -> None:  # fmt: skip
        if fault not in FAULTS:
            raise ConfigError(f"fault '{fault}' is not one of {', '.join(FAULTS)}", "choose one of them")
        self._size, self._state_dim, self._step_s = size, state_dim, step_s
        self._success_distance = success_distance
        self._fault, self._fault_step, self._fault_task = fault, fault_step, fault_task
        cameras = cameras if pictures else 0
        images = {"images": ArraySpec((cameras, size, size, 3), "uint8")} if pictures else {}
        told = {instructions.FIELD: ArraySpec((48,), "uint8")} if sentences else {}
        self._directions = directions(num_actions) if num_actions is not None else None
        self._spec = EnvSpec(
            obs={**images, "state": ArraySpec((state_dim,), "float32"), **told},
            cameras=tuple(f"camera{i}" for i in range(cameras)),
            action=(
                ContinuousAction((-1.0,) * action_dim, (1.0,) * action_dim)
                if num_actions is None
                else DiscreteAction(num_actions)
            ),
            tasks=tuple(f"move the point to goal {i}" for i in range(num_tasks)),
            num_init_states=(num_init_states,) * num_tasks,
            max_episode_steps=horizon,
            control_hz=20.0,
            restorable=restorable,
            repeatable=repeatable,
        )
        self._point = self._goal = np.zeros(2)
        self._steps, self._pace = 0, 0.0
        self._start = Start(0, 0, 0)
        self._moved: dict[str, int] = {}  # camera → what its move adds to the third colour
        self._task_bytes, self._held = task_mb * 2**20, dict[int, bytes]()

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def preflight(self) -> None:
        pass

    def host_memory(self) -> SimulatorMemory:
        return SimulatorMemory(WORKER, (self._task_bytes,), self._task_bytes)

    def prepare(self) -> WorkerFacts:
        if self._fault == "prepare_exception":
            raise RuntimeError("the fake env was told to fail in prepare")
        return WorkerFacts(os.getpid(), "none", "the fake env draws its pictures with numpy")

    def reset(self, start: Start) -> None:
        random = np.random.default_rng([start.task_id, start.init_state_id, start.seed])
        self._start, self._steps, self._moved = start, 0, {}
        if start.task_id not in self._held:
            self._held[start.task_id] = b"x" * self._task_bytes
        self._goal = np.random.default_rng(start.task_id).uniform(-1, 1, 2)
        self._point = random.uniform(-1, 1, 2)
        self._pace = self._step_s * random.uniform(0.5, 1.5)

    def step(self, action: np.ndarray) -> StepResult:
        self._steps += 1
        self._misbehave()
        if self._pace:
            time.sleep(self._pace)
        return self._move(action)

    def _move(self, action: np.ndarray) -> StepResult:
        moved = self._directions[action] if self._directions is not None else np.clip(action[:2], -1, 1)
        self._point = self._point + 0.1 * moved
        distance = float(np.linalg.norm(self._goal - self._point))
        success = distance < self._success_distance
        return StepResult(1.0 if success else float(np.exp(-distance)) * 0.5, success, success)

    def _misbehave(self) -> None:
        if self._steps != self._fault_step or self._start.task_id != self._fault_task:
            return
        if self._fault == "exception":
            raise RuntimeError("the fake env was told to fail in step")
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "hang":
            time.sleep(3600)

    def observe(self, out: Obs) -> None:
        for camera in range(len(self._spec.cameras)):
            out["images"][camera] = self._seen(camera)
        out["state"][:] = 0
        out["state"][:2] = (self._goal - self._point)[: self._state_dim]
        if instructions.FIELD in out:
            task, state = self._start.task_id, self._start.init_state_id
            instructions.write(f"from place {state}, move to goal {task}", out[instructions.FIELD])

    def picture(self, start: Start, steps: int, camera: int) -> np.ndarray:
        """The picture that :meth:`observe` draws: uint8 [size, size, 3], different for every argument."""
        picture = np.full((self._size, self._size, 3), 255 * camera // 2, np.uint8)
        picture[..., 0] = (37 * start.task_id + 11 * start.init_state_id + 5 * start.seed) % 256
        picture[..., 1] = steps % 256
        return picture

    def _seen(self, camera: int) -> np.ndarray:
        """The picture of a camera that may have been moved: a thousandth of a metre or rad is a step of its colour."""
        picture = self.picture(self._start, self._steps, camera)
        picture[..., 2] += np.uint8(self._moved.get(self._spec.cameras[camera], 0) % 256)
        return picture

    def move_camera(self, name: str, translation: np.ndarray, rotation: np.ndarray) -> None:
        by = round(1000 * float(np.sum(translation) + np.sum(rotation)))
        self._moved = {**self._moved, name: self._moved.get(name, 0) + by}

    @property
    def num_progress_features(self) -> int:
        return 4

    def progress_features(self) -> np.ndarray:
        return np.concatenate([self._point, self._goal]).astype(np.float32)

    def expert(self) -> Iterator[np.ndarray]:
        """Go straight to the goal, or in the offered direction that comes nearest to it."""
        while self._directions is not None:
            yield np.asarray((self._directions @ (self._goal - self._point)).argmax(), np.int32)
        while True:
            action = self._spec.action.neutral()
            action[:2] = np.clip(10 * (self._goal - self._point), -1, 1)
            yield action

    def frame(self) -> np.ndarray:
        return self._seen(0) if self._spec.cameras else self.picture(self._start, self._steps, 0)

    def get_state(self) -> Mapping[str, Any]:
        if not self._spec.restorable:
            raise RuntimeError("a fake env that is not restorable was asked for its state")
        point, goal = self._point.copy(), self._goal.copy()
        return {"point": point, "goal": goal, "steps": self._steps, "start": self._start, "moved": self._moved}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._point, self._goal = state["point"].copy(), state["goal"].copy()
        self._steps, self._start, self._moved = state["steps"], state["start"], state["moved"]

    def close(self) -> None:
        pass


def directions(count: int) -> np.ndarray:
    """Unit vectors, ``count`` of them, evenly around the circle: float64 [count, 2]."""
    angles = 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)
