"""``python -m embodied.tools.demos env=NAME episodes=200``: demonstrations by the env's expert, as a LeRobot data set.

Attempt i runs from start i of the list from which training takes its starts, a function of ``runner.seed`` alone. The
first ``demos.episodes`` attempts that succeed are kept, in their order, so that the number of workers changes no bit.
The same command goes on after the last attempt that was kept.

    attempts 0, 1, 2 … ──▶ worker processes (env, expert) ──▶ in order ──▶ successes ──▶ embodied.data.lerobot.Writer
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from embodied.build import Checked, EnvSide
from embodied.data import lerobot, pictures
from embodied.errors import ConfigError, DatasetError, EmbodiedError, WorkerDiedError, WorkerHungError
from embodied.observe.console import Console
from embodied.protocols import Env, Expert
from embodied.run_folder import RunFolder
from embodied.runtime.plan import train_plan
from embodied.runtime.pool import num_workers
from embodied.runtime.signals import Stopped, StopSignal
from embodied.schema import load_target
from embodied.train import main as train_main
from embodied.types import Start

NOISE = 2  # stream of the random generator, beside those of embodied.runtime.plan
TRIES = 10  # attempts for each demonstration unless demos.max_attempts says otherwise
PATIENCE = 10  # an episode with a picture a control step may take so many times the deadline of a chunk


@dataclass(frozen=True)
class Job:
    """What every attempt has in common."""

    env_target: str
    env_kwargs: Mapping[str, Any]
    max_steps: int
    seed: int
    noise_std: float


def make(checked: Checked, console: Console) -> None:
    """Record until ``demos.episodes`` are there, or a stop signal comes.

    Raises:
        ConfigError: the env has no expert.
        DatasetError: too few of the attempts succeed.
        WorkerDiedError, WorkerHungError: a worker failed; what was recorded stays.
    """
    config, side = checked.config, checked.train
    if not isinstance(side.env, Expert):
        raise ConfigError(
            f"{side.config.target} has no expert, so nothing can demonstrate its tasks",
            "give it a method expert() (embodied.protocols.Expert), choose another env, or bring demonstrations of "
            "your own: python -m embodied.sft … data=PATH",
        )
    job = Job(side.config.target, side.kwargs, side.max_steps, config.runner.seed, config.demos.noise_std)
    path = Path(config.demos.path or f"demos/{config.runner.experiment_name}")
    workers = num_workers(config.env.num_workers, config.demos.episodes)
    console.table(f"demonstrations of {config.runner.experiment_name}", _plan(checked, path, workers))
    if config.runner.dry_run:
        return
    with closing(RunFolder.open(path, {"env": {"train": _identity(side)}, "demos": _facts(job)})), StopSignal() as stop:
        writer = lerobot.Writer(path, side.spec, {"env": _identity(side), **_facts(job)})
        with suppress(Stopped):
            _record(checked, job, writer, workers, stop, console)
        writer.finish()
    console.say(f"{len(writer)} of {config.demos.episodes} demonstrations are in {path}")


def _record(
    checked: Checked, job: Job, writer: lerobot.Writer, workers: int, stop: StopSignal, console: Console
) -> None:
    config, spec, side = checked.config, checked.train.spec, checked.train
    wanted = config.demos.episodes
    most = config.demos.max_attempts or TRIES * wanted
    first = writer.attempts[-1] + 1 if len(writer) else 0
    limit = config.env.init_timeout_s + config.env.reset_timeout_s + PATIENCE * config.env.step_timeout_s
    with console.progress("demonstrations", wanted) as bar:
        bar.advance(len(writer))
        if len(writer) >= wanted:
            return
        tasks = ((i, _start(side, config.runner.seed, i)) for i in range(first, most))
        with closing(Crew(job, workers, limit)) as crew:
            for attempt, recording in in_order(crew.results(tasks), first):
                if recording is not None:
                    with stop.hold():
                        writer.append(recording)
                bar.advance(recording is not None, solved=f"{len(writer)}/{attempt + 1}")
                if len(writer) == wanted:
                    return
    raise DatasetError(
        f"the expert solved {len(writer)} of {most} starts of {spec.tasks[0]!r}"
        + (f" and {len(spec.tasks) - 1} more tasks" if len(spec.tasks) > 1 else "")
        + f", and {wanted} demonstrations are wanted",
        "raise demos.max_attempts, lower demos.noise_std, or look at the expert: what was recorded stays",
    )


def _start(side: EnvSide, seed: int, attempt: int) -> Start:
    plan = train_plan(side.spec, seed=seed, iteration=attempt, episodes=1, group_size=1, env_seed=side.config.seed)
    return plan[0].start


def in_order(
    results: Iterator[tuple[int, lerobot.Recording | None]], first: int
) -> Iterator[tuple[int, lerobot.Recording | None]]:
    """The same results by number of the attempt, from ``first`` on; those that come early are kept back."""
    early: dict[int, lerobot.Recording | None] = {}
    due = first
    for attempt, recording in results:
        early[attempt] = recording
        while due in early:
            yield due, early.pop(due)
            due += 1


def _identity(side: EnvSide) -> dict[str, Any]:
    return {"_target_": side.config.target, **side.kwargs, "seed": side.config.seed}


def _facts(job: Job) -> dict[str, Any]:
    return {"seed": job.seed, "noise_std": job.noise_std, "max_steps": job.max_steps}


def _plan(checked: Checked, path: Path, workers: int) -> list[list[str]]:
    spec, demos = checked.train.spec, checked.config.demos
    return [
        ["tasks", f"{len(spec.tasks)} ({sum(spec.num_init_states)} starts)"],
        ["episodes", f"{demos.episodes} that succeed, of at most {checked.train.max_steps} control steps"],
        ["noise", f"{demos.noise_std:g} of half the action range, executed and not recorded"],
        ["workers", str(workers)],
        ["data set", str(path)],
    ]


# -- worker processes ------------------------------------------------------------------------------------------------


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
    ) -> Iterator[tuple[int, lerobot.Recording | None]]:  # fmt: skip
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

    def _take(self, worker: Connection) -> tuple[int, lerobot.Recording | None]:
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


def demonstrate(env: Env, start: Start, attempt: int, job: Job) -> lerobot.Recording | None:
    """One episode of the expert; None if it did not succeed.

    With noise, what is executed is the expert's action plus a normal number, clipped to the range; what is recorded is
    the expert's own. So the states are those that a policy with errors comes to, and the actions lead back from there.
    """
    assert isinstance(env, Expert)
    spec = env.spec
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    random = np.random.default_rng([job.seed, NOISE, attempt])
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
    return lerobot.Recording(start, attempt, columns, fields, actions, rewards.astype(np.float32), successes)


def main(argv: Sequence[str] | None = None) -> int:
    return train_main(argv, "demos")


if __name__ == "__main__":
    sys.exit(main())
