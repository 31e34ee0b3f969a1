"""Ways to get an answer from every env: this project's pool, gymnasium's AsyncVectorEnv, and the same work in process.

They are opened side by side and measured in turn. The other peers are in :mod:`peers`, since each needs its library.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import gymnasium
import numpy as np
from _envs import NO_LIMIT, CostEnv
from _measure import cpu_seconds, minor_faults

from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.remote.hosts import HostsConfig, RemotePool
from embodied.runtime.remote.local import LocalStarter
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import ArraySpec, Start

PATIENT = Deadlines(300, 300, 300)


class Way(Protocol):
    rest_s: float  # after a measurement, until it no longer disturbs the next one

    def round(self) -> int:
        """One answer to every env; how many there are."""
        ...

    def pids(self) -> list[int]:
        """Its processes beside this one."""
        ...

    def close(self) -> None: ...


class Answers:
    """The env as its peers see it: one answer is ``chunk`` control steps and an observation after the last.

    Actions are flat, [chunk · action_dim], since not every peer keeps the shape of one.
    """

    def __init__(self, env: dict[str, Any], chunk: int = 1) -> None:
        self._env = CostEnv(**env)
        self.obs = self._env.spec.obs
        self.num_actions = chunk * self._env.spec.action_dim
        self._chunk = chunk

    def reset(self, seed: int) -> None:
        self._env.reset(Start(0, 0, seed))

    def step(self, actions: np.ndarray) -> float:
        return sum(self._env.step(action).reward for action in actions.reshape(self._chunk, -1))

    def observe(self, out: dict[str, np.ndarray]) -> None:
        self._env.observe(out)

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(spec.shape, spec.dtype) for name, spec in self.obs.items()}


class PoolWay:
    """This project's pool, in rounds (``ready=False``), or each env again as soon as it has answered."""

    rest_s = 0.0

    def __init__(
        self, env: dict[str, Any], envs: int, workers: int, chunk: int = 1, ready: bool = False, rows: int = 0
    ) -> None:
        spec = CostEnv(**env).spec
        fields = {**spec.obs, "actions": ArraySpec((chunk, spec.action_dim), "float32"), **runtime_fields(chunk)}
        self.slab, self._envs, self._ready = Slab.create(fields, rows or 2 * envs), envs, ready
        folder = Path(tempfile.mkdtemp())
        config = PoolConfig(envs, workers, "_envs.CostEnv", env, ShapedReward(), PATIENT, folder)
        self.pool = self._open(config, tuple(spec.obs))
        self._next = envs  # row of the next observation
        self._row = list(range(envs))
        for slot in range(envs):
            self.pool.send(Command(Kind.RESET, slot, next_row=slot, task_id=0, seed=slot, max_steps=NO_LIMIT))
        self._wait(envs)

    def _open(self, config: PoolConfig, obs: tuple[str, ...]) -> Any:
        return Pool(config, self.slab)

    def _wait(self, count: int) -> list[int]:
        done: list[int] = []
        while len(done) < count:
            done += [event.slot for event in self.pool.recv(count - len(done))]
        return done

    def _send(self, slot: int) -> None:
        row = self._row[slot]
        self._row[slot] = self._next if self.slab.rows > 2 * self._envs else (row + self._envs) % self.slab.rows
        self._next = (self._next + 1) % self.slab.rows
        self.pool.send(Command(Kind.STEP, slot, row=row, next_row=self._row[slot]))

    def round(self) -> int:
        if not self._ready:
            for slot in range(self._envs):
                self._send(slot)
            return len(self._wait(self._envs))
        if not getattr(self, "_flying", False):
            self._flying = True
            for slot in range(self._envs):
                self._send(slot)
        count = 0
        while count < self._envs:
            done = self._wait(1)
            for slot in done:
                self._send(slot)
            count += len(done)
        return count

    def pids(self) -> list[int]:
        return self.pool.pids

    def close(self) -> None:
        self.pool.close()
        self.slab.close()


class HostsWay(PoolWay):
    """The same slots on simulator hosts of this machine, which send their rows over TCP."""

    def __init__(self, hosts: int, *args: Any, **options: Any) -> None:
        self._hosts = hosts
        super().__init__(*args, **options)

    def _open(self, config: PoolConfig, obs: tuple[str, ...]) -> RemotePool:
        return RemotePool(HostsConfig(config, self._hosts, obs, gpus=()), self.slab, LocalStarter())

    def pids(self) -> list[int]:
        hosts = [peer.started.pid for peer in self.pool.hosts]
        return [*hosts, *(facts.pid for facts in self.pool.facts)]


class GymEnv(gymnasium.Env):
    """The same env with gymnasium's interface."""

    def __init__(self, env: dict[str, Any], chunk: int = 1) -> None:
        self._answers = Answers(env, chunk)
        self._out = self._answers.arrays()
        boxes: dict[str, gymnasium.Space] = {
            name: gymnasium.spaces.Box(0 if array.dtype == np.uint8 else -np.inf, 255, array.shape, array.dtype.type)
            for name, array in self._out.items()
        }
        self.observation_space = gymnasium.spaces.Dict(boxes)
        self.action_space = gymnasium.spaces.Box(-1, 1, (self._answers.num_actions,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._answers.reset(seed or 0)
        self._answers.observe(self._out)
        return self._out, {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        reward = self._answers.step(action)
        self._answers.observe(self._out)
        return self._out, reward, False, False, {}


class GymWay:
    """AsyncVectorEnv, one process an env.

    Args:
        steps: of the vector env for one answer.
        chunk: control steps inside each of them.
    """

    rest_s = 0.0

    def __init__(
        self, env: dict[str, Any], envs: int, steps: int = 1, chunk: int = 1, shared_memory: bool = True,
        copy: bool = True,
    ) -> None:  # fmt: skip
        makers = [lambda: GymEnv(env, chunk)] * envs
        self._vector = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=shared_memory, copy=copy)
        self._vector.reset(seed=list(range(envs)))
        self._envs, self._steps = envs, steps
        shape = self._vector.action_space.shape
        assert shape is not None
        self._actions = np.zeros(shape, np.float32)

    def round(self) -> int:
        for _ in range(self._steps):
            self._vector.step(self._actions)
        return self._envs

    def pids(self) -> list[int]:
        return [process.pid for process in self._vector.processes if process.pid is not None]

    def close(self) -> None:
        self._vector.close()


class InProcess:
    """The same work in this process: the floor under every transport."""

    rest_s = 0.0

    def __init__(self, env: dict[str, Any], chunk: int = 1) -> None:
        self._answers = Answers(env, chunk)
        self._answers.reset(0)
        self._out = self._answers.arrays()
        self._actions = np.zeros(self._answers.num_actions, np.float32)

    def round(self) -> int:
        self._answers.step(self._actions)
        self._answers.observe(self._out)
        return 1

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def measure(way: Way, seconds: float) -> dict[str, float]:
    """Frames a second and CPU-µs and minor faults a frame over all processes of ``way`` and this one."""
    pids = [os.getpid(), *way.pids()]
    way.round()
    frames, faults = 0, minor_faults(pids)
    cpu, began = cpu_seconds(pids), time.perf_counter()
    while (wall := time.perf_counter() - began) < seconds:
        frames += way.round()
    return {
        "frames_per_s": frames / wall,
        "cpu_us_per_frame": 1e6 * (cpu_seconds(pids) - cpu) / frames,
        "minor_faults_per_frame": (minor_faults(pids) - faults) / frames,
    }


def interleaved(ways: dict[str, Callable[[], Way]], rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Way → figure → a value for each round."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
    width = max(map(len, ways))
    with ExitStack() as opened:
        ready = {name: opened.enter_context(closing(make())) for name, make in ways.items()}
        for way in ready.values():
            measure(way, min(0.5, seconds))
            time.sleep(way.rest_s)
        for number in range(rounds):
            for name, way in ready.items():
                got = measure(way, seconds)
                for figure, value in got.items():
                    found[name].setdefault(figure, []).append(value)
                print(
                    f"  round {number + 1}  {name:{width}s} {got['frames_per_s']:9.0f} frames/s "
                    f"{got['cpu_us_per_frame']:9.1f} CPU-µs a frame",
                    flush=True,
                )
                time.sleep(way.rest_s)
    return found


def median_of(found: dict[str, dict[str, list[float]]], way: str, figure: str) -> float:
    return median(found[way][figure])


def ratio(found: dict[str, dict[str, list[float]]], way: str, to: str, figure: str) -> float:
    return median_of(found, way, figure) / median_of(found, to, figure)
