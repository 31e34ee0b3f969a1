"""``python -m embodied.tools.demos env=NAME episodes=200``: demonstrations by the env's expert, as a LeRobot data set.

Attempt i runs from start i of the list from which training takes its starts, a function of ``runner.seed`` alone. The
first ``demos.episodes`` attempts that succeed are kept, in their order, so that the number of workers changes no bit.
The same command goes on after the last attempt that was kept.

    attempts 0, 1, 2 … ──▶ worker processes (env, expert) ──▶ in order ──▶ successes ──▶ embodied.data.lerobot
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from embodied.data.lerobot_writer import Recording, Writer
from embodied.errors import ConfigError, DatasetError
from embodied.observe.console import Console
from embodied.protocols import Expert
from embodied.run import command
from embodied.run.folder import RunFolder
from embodied.run.preflight import Checked, EnvSide
from embodied.runtime.crew import Crew, Job
from embodied.runtime.plan import train_plan
from embodied.runtime.pool import num_workers
from embodied.runtime.signals import Stopped, StopSignal
from embodied.types import Start

TRIES = 10  # attempts for each demonstration unless demos.max_attempts says otherwise
PATIENCE = 10  # an episode with a picture a control step may take so many times the deadline of a chunk


def make(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Record until ``demos.episodes`` are there, or a stop signal comes.

    Raises:
        ConfigError: the env has no expert, or other settings that cannot be.
        DatasetError: too few of the attempts succeed.
        WorkerDiedError, WorkerHungError: a worker failed; what was recorded stays.
    """
    config, side = checked.config, checked.train
    if not isinstance(side.env, Expert):
        known = getattr(side.env, "experts", None)
        raise ConfigError(
            f"{side.config.target} has no expert for these tasks, so nothing can demonstrate them"
            + (f"; it has one for {known}" if known else ""),
            "give it a method expert() (embodied.protocols.Expert), choose another env, or bring demonstrations of "
            "your own: python -m embodied.sft … data=PATH",
        )
    if config.env.python is not None:
        raise ConfigError(
            f"env.python is {config.env.python}, and demonstrations are made with the interpreter of this command",
            f"run it with that one: {config.env.python} -m embodied.tools.demos …",
        )
    job = Job(side.config.target, side.kwargs, side.max_steps, config.runner.seed, config.demos.noise_std)
    path = Path(config.demos.path or f"demos/{config.runner.experiment_name}")
    workers = num_workers(config.env.num_workers, config.demos.episodes)
    console.table(f"demonstrations of {config.runner.experiment_name}", _plan(checked, path, workers))
    if config.runner.dry_run:
        return
    with closing(RunFolder.open(path, {"env": {"train": _identity(side)}, "demos": _facts(job)})):
        writer = Writer(path, side.spec, {"env": _identity(side), **_facts(job)})
        with suppress(Stopped):
            _record(checked, job, writer, workers, stop, console)
        with suppress(Stopped), stop.hold():
            writer.finish()
    console.say(f"{len(writer)} of {config.demos.episodes} demonstrations are in {path}")


def _record(checked: Checked, job: Job, writer: Writer, workers: int, stop: StopSignal, console: Console) -> None:
    config, spec, side = checked.config, checked.train.spec, checked.train
    wanted = config.demos.episodes
    most = config.demos.max_attempts or TRIES * wanted
    first = writer.attempts[-1] + 1 if len(writer) else 0
    limit = config.env.init_timeout_s + config.env.reset_timeout_s + PATIENCE * config.env.step_timeout_s
    with console.progress("demonstrations", wanted, done=len(writer)) as bar:
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


def in_order(results: Iterator[tuple[int, Recording | None]], first: int) -> Iterator[tuple[int, Recording | None]]:
    """The same results by number of the attempt, from ``first`` on; those that come early are kept back."""
    early: dict[int, Recording | None] = {}
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


def main(argv: Sequence[str] | None = None) -> int:
    return command.main(argv, "demos", make)


if __name__ == "__main__":
    sys.exit(main())
