"""Worker processes that let an env's expert try one start after another, for ``embodied.tools.demos``.

Apart from the pool of :mod:`embodied.runtime.pool`, whose workers execute chunks that a policy decides: an expert reads
privileged state before each control step, so it has to run where the simulator is, and what comes back is an episode.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from embodied.data import pictures
from embodied.data.lerobot_writer import Recording
from embodied.errors import EmbodiedError, WorkerDiedError, WorkerHungError
from embodied.protocols import Env, Expert
from embodied.random import Stream, generator
from embodied.targets import load_target
from embodied.types import Start


@dataclass(frozen=True)
class Job:
    """What every attempt has in common."""

    env_target: str
    env_kwargs: Mapping[str, Any]
    max_steps: int
    seed: int
    noise_std: float


class Crew:
    """Worker processes that try starts, one at a time each.

    Args:
        limit: seconds that an attempt may take.
    """

    def __init__(self, job: Job, workers: int, limit: float) -> None:
        context = multiprocessing.get_context("spawn")  # no simulator's state is inherited
        self._limit = limit
        self._processes: dict[Connection, Any] = {}
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process

    def results(
        self, tasks: Iterator[tuple[int, Start]]
    ) -> Iterator[tuple[int, Recording | None]]:  # fmt: skip
        """``(attempt, what was recorded, or None if it failed)`` of every task, as they end."""
        busy = {worker for worker in self._processes if self._give(worker, tasks)}
        while busy:
            ended = wait(list(busy), self._limit)
            if not ended:
                raise WorkerHungError(
                    f"no demonstration ended within {self._limit:g} s",
                    "if the simulator is only slow, raise env.step_timeout_s",
                )
            for worker in ended:
                assert isinstance(worker, Connection)
                attempt, recording = self._take(worker)
                if not self._give(worker, tasks):
                    busy.remove(worker)
                yield attempt, recording

    def _give(self, worker: Connection, tasks: Iterator[tuple[int, Start]]) -> bool:
        task = next(tasks, None)
        if task is not None:
            with suppress(ConnectionError):  # its death is met when its answer is read
                worker.send(task)
        return task is not None

    def _take(self, worker: Connection) -> tuple[int, Recording | None]:
        try:
            answer = worker.recv()
        except (EOFError, ConnectionError):
            process = self._processes[worker]
            process.join(5)
            raise WorkerDiedError(
                f"a worker (pid {process.pid}) ended with status {process.exitcode}",
                "a negative status is the signal that killed it; -9 is usually the kernel out of memory: lower "
                "env.num_workers",
            ) from None
        if isinstance(answer, EmbodiedError):
            raise answer
        return answer

    def close(self) -> None:
        for worker, process in self._processes.items():
            process.kill()  # it holds nothing that must be saved
            process.join()
            worker.close()


def _work(launcher: Connection, job: Job) -> None:
    """A worker: tries each start that it is given until its launcher is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the launcher
    for stop in (signal.SIGINT, signal.SIGTERM):  # often sent to the whole process group, and the launcher's to handle
        signal.signal(stop, signal.SIG_IGN)
    env = None
    with suppress(EOFError, ConnectionError):
        while True:
            attempt, start = launcher.recv()
            try:
                if env is None:
                    env = load_target(job.env_target, "env.train._target_")(**job.env_kwargs)
                    env.prepare()
                answer: object = (attempt, demonstrate(env, start, attempt, job))
            except EmbodiedError as error:
                answer = error
            except Exception:  # noqa: BLE001  any failure of any simulator or expert is reported to the launcher
                answer = WorkerDiedError(
                    f"the demonstration from {start} failed", "correct the env or its expert", traceback.format_exc()
                )
            launcher.send(answer)


def demonstrate(env: Env, start: Start, attempt: int, job: Job) -> Recording | None:
    """One episode of the expert; None if it did not succeed.

    With noise, what is executed is the expert's action plus a normal number, clipped to the range; what is recorded is
    the expert's own. So the states are those that a policy with errors comes to, and the actions lead back from there.
    """
    assert isinstance(env, Expert)
    spec = env.spec
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    random = generator(job.seed, Stream.EXPERT_NOISE, attempt)
    obs = {name: np.zeros(field.shape, field.dtype) for name, field in spec.obs.items()}
    seen: list[tuple[list[bytes], dict[str, np.ndarray]]] = []
    done: list[tuple[np.ndarray, float, bool]] = []
    env.reset(start)
    for action in env.expert():
        env.observe(obs)
        files = [pictures.encode(picture) for picture in obs.get("images", ())]
        seen.append((files, {name: values.copy() for name, values in obs.items() if name != "images"}))
        action = np.clip(np.asarray(action, np.float32), low, high)
        noise = job.noise_std * random.standard_normal(spec.action_dim).astype(np.float32) * (high - low) / 2
        result = env.step(np.clip(action + noise, low, high))
        done.append((action, result.reward, result.success))
        if result.success or result.terminated or len(done) == job.max_steps:
            break
    if not done or not done[-1][2]:
        return None
    actions, rewards, successes = (np.array(column) for column in zip(*done, strict=True))
    fields = {name: np.stack([own[name] for _, own in seen]) for name in seen[0][1]}
    columns = [list(column) for column in zip(*(files for files, _ in seen), strict=True)]
    return Recording(start, attempt, columns, fields, actions, rewards.astype(np.float32), successes)
