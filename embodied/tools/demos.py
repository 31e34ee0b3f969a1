"""``python -m embodied.tools.demos env=NAME episodes=200``: records the env's expert as a LeRobot data set.

Attempt i runs from start i of training's list of starts, a function of ``runner.seed`` alone. The first
``demos.episodes`` successful attempts are kept in their order: the number of workers changes no bit. The same command
continues after the last kept attempt. A failed worker is replaced and its attempt redone. The workers' logs are beside
the data set, in ``PATH.logs``.

    attempts 0, 1, 2 … ──▶ pool of workers (env, expert) ──▶ in order ──▶ successes ──▶ embodied.data.lerobot.writer
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied.cli import piped
from embodied.data.lerobot.writer import Recording, Writer
from embodied.errors import ConfigError, DatasetError
from embodied.observe.terminal.console import Console
from embodied.parallel.group import Group
from embodied.protocols import Expert, MistakenExpert
from embodied.run import command
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.shares import render_gpus_of, requested_workers
from embodied.run.build.workers.pools import forks, pool_config
from embodied.run.folder.folder import RunFolder
from embodied.run.placement.roles import placed
from embodied.runtime.plan import tasks_and_starts, train_plan
from embodied.runtime.pool.fork_server import ForkServer
from embodied.runtime.pool.pool import Pool, num_workers
from embodied.runtime.recorder import Recorder
from embodied.runtime.signals import StopSignal
from embodied.runtime.slab import Slab
from embodied.runtime.worker.expert import ExpertJob, expert_fields
from embodied.schema import Config
from embodied.schema.compose.compose import Composed
from embodied.types import DiscreteAction, Start

TRIES = 10  # attempts for each demonstration unless demos.max_attempts says otherwise


def make(composed: Composed, side: ConfiguredEnv, console: Console, stop: StopSignal) -> None:
    """Records demonstrations until there are ``demos.episodes``, or a stop signal comes.

    Raises:
        ConfigError: the env has no expert, or settings cannot work together.
        DatasetError: too few of the attempts succeed.
        WorkerDiedError, WorkerHungError: a worker failed too often in a row; what was recorded stays.
    """
    config = composed.config
    if not isinstance(side.env, Expert):
        known = getattr(side.env, "experts", None)
        raise ConfigError(
            f"{side.config.target} has no expert for these tasks, so nothing can demonstrate them"
            + (f"; it has one for {known}" if known else ""),
            "give it a method expert() (embodied.protocols.Expert), choose another env, or bring demonstrations of "
            "your own: python -m embodied.sft … data=PATH",
        )
    if config.demos.mistakes and not isinstance(side.env, MistakenExpert):
        raise ConfigError(
            f"demos.mistakes is {config.demos.mistakes:g}, and the expert of {side.config.target} makes none",
            "set demos.mistakes=0, or give the env a method mistaken_expert() (embodied.protocols.MistakenExpert)",
        )
    side.kind.refuse_texts(ConfigError(
        f"{side.config.target} takes text, and demonstrations of actions are recorded here",
        "write rows of prompt and response into a file: python -m embodied.sft … data=FILE.jsonl",
    ))  # fmt: skip
    if config.demos.noise_std and isinstance(side.spec.action, DiscreteAction):
        raise ConfigError(
            f"demos.noise_std is {config.demos.noise_std:g}, and {side.config.target} takes one of "
            f"{side.spec.action.num_actions} actions, to which no noise can be added",
            "set demos.noise_std=0",
        )
    path = Path(config.demos.path or f"demos/{config.runner.experiment_name}")
    console.table(f"demonstrations of {config.runner.experiment_name}", _plan(config, side, path))
    if config.runner.dry_run:
        return
    with closing(RunFolder.open(path, {"env": {"train": _identity(config, side)}, "demos": _facts(config, side)})):
        if (record := composed.record) is not None:
            record.write(path)
        writer = Writer(path, side.spec, {"env": _identity(config, side), **_facts(config, side)})
        with stop.may_end():
            _record(config, side, writer, path.with_name(f"{path.name}.logs"), stop, console)
        with stop.may_end(), stop.hold():
            writer.finish()
    console.say(f"{len(writer)} of {config.demos.episodes} demonstrations are in {path}")


def _record(
    config: Config, side: ConfiguredEnv, writer: Writer, logs: Path, stop: StopSignal, console: Console
) -> None:  # fmt: skip
    spec = side.spec
    wanted = config.demos.episodes
    most = config.demos.max_attempts or TRIES * wanted
    first = writer.attempts[-1] + 1 if len(writer) else 0
    with console.progress("demonstrations", wanted, done=len(writer)) as bar:
        if len(writer) >= wanted:
            return
        tasks = ((i, _start(config, side, i)) for i in range(first, most))
        with ExitStack() as opened:
            recorder = _open_recorder(config, side, logs, console, opened)
            for attempt, recording in in_order(recorder.results(tasks), first):
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


def _open_recorder(config: Config, side: ConfiguredEnv, logs: Path, console: Console, opened: ExitStack) -> Recorder:
    """Starts workers of one slot each; ``opened`` ends them."""
    processes, workers = placed(config, Group()), _workers(config)  # it is one process
    job = ExpertJob(config.runner.seed, config.demos.noise_std, config.demos.mistakes)
    server = None
    if forks(config.env, side.env):
        envs, gpus = [(side.config.target, side.kwargs)], render_gpus_of(config, processes)
        server = ForkServer(envs, logs, config.env.init_timeout_s, gpus, config.env.python, console.say)
        opened.callback(server.close)
    slab = Slab.create(expert_fields(side.spec), workers, f"{config.env.channel.name}.slab")
    opened.callback(slab.close)
    usual = pool_config(side, workers, config, logs, processes)
    pool = Pool(replace(usual, num_workers=workers, batch=False, server=server, expert=job), slab, console.say)
    opened.callback(pool.close)
    return Recorder(pool, slab, side.max_steps, side.spec.retry_safe, job)


def _start(config: Config, side: ConfiguredEnv, attempt: int) -> Start:
    plan = train_plan(
        side.spec, seed=config.runner.seed, iteration=attempt, episodes=1, group_size=1, env_seed=config.start_seed,
        held_out=config.protocol.held_out_states,
    )  # fmt: skip
    return plan[0].start


def in_order(results: Iterator[tuple[int, Recording | None]], first: int) -> Iterator[tuple[int, Recording | None]]:
    """Sorts recording results by attempt, from ``first`` on. Early ones are held back."""
    early: dict[int, Recording | None] = {}
    due = first
    for attempt, recording in results:
        early[attempt] = recording
        while due in early:
            yield due, early.pop(due)
            due += 1


def _identity(config: Config, side: ConfiguredEnv) -> dict[str, Any]:
    return {"_target_": side.config.target, **side.kwargs, "seed": config.start_seed}


def _facts(config: Config, side: ConfiguredEnv) -> dict[str, Any]:
    held_out = config.protocol.held_out_states
    facts = {"seed": config.runner.seed, "noise_std": config.demos.noise_std, "max_steps": side.max_steps}
    facts |= {"mistakes": config.demos.mistakes} if config.demos.mistakes else {}
    return {**facts, "held_out_states": held_out} if held_out else facts


def _workers(config: Config) -> int:
    return num_workers(requested_workers(config), config.demos.episodes)


def _plan(config: Config, side: ConfiguredEnv, path: Path) -> list[list[str]]:
    spec, demos = side.spec, config.demos
    ends = "succeed or end in the mistake" if demos.mistakes else "succeed"
    return [
        ["tasks", tasks_and_starts(spec, config.protocol.held_out_states)],
        ["episodes", f"{demos.episodes} that {ends}, of at most {side.max_steps} control steps"],
        ["noise", f"{demos.noise_std:g} of half the action range, executed and not recorded"],
        *(
            [["mistakes", f"{demos.mistakes:.0%} of the attempts are of another thing than what is asked for"]]
            if demos.mistakes
            else []
        ),
        ["workers", str(_workers(config))],
        ["data set", str(path)],
    ]


def main(argv: Sequence[str] | None = None) -> int:
    return command.main(
        argv, "demos", lambda checked, console, stop: make(checked.composed, checked.train, console, stop)
    )


if __name__ == "__main__":
    sys.exit(piped(main))
