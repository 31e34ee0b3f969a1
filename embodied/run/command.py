"""A command from its arguments to its exit status: compose → check → run a recipe → close.

Imports take longer than all of this, so each stage imports what it needs when it begins:

| stage | imports | so that |
|---|---|---|
| arguments | nothing | ``--help`` answers at once |
| compose | hydra; to refuse keys, the classes of env and model | a refused key is said within a second |
| check | numpy, the env's class | most mistakes are found without torch |
| recipe | torch | |
"""

from __future__ import annotations

import gc
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from embodied.errors import ConfigError, EmbodiedError, Stopped, broken, printed, refuse
from embodied.parallel import transfers
from embodied.parallel.group import Group, ended_by
from embodied.parallel.placement.launcher import start_command
from embodied.run import launching
from embodied.run.arguments import parse_argv

if TYPE_CHECKING:
    from embodied.observe.terminal.console import Console
    from embodied.run.build.given import Recipe, Sides
    from embodied.schema import Config, RunnerConfig
    from embodied.schema.compose.compose import Composed


def main(argv: Sequence[str] | None, config_name: str, recipe: Recipe | None = None) -> int:
    """Runs a command.

    Args:
        argv: its arguments; None = those of this process.
        config_name: ``train``, ``eval``, ``sft`` or ``demos``.
        recipe: what it runs; None = what ``runner.only_eval`` and ``runner.task_type`` name.

    Returns:
        the exit status: 0, 2 for an error that is explained, or 128 and the signal's number (130 for Ctrl-C, 143 for
        SIGTERM) when one came, also where a checkpoint was left.
    """
    try:
        status = _main(argv, config_name, recipe)
    except Exception:
        if transfers.under_way():
            traceback.print_exc()
            transfers.leave(1)
        raise
    transfers.leave(status)
    return status


def _main(argv: Sequence[str] | None, config_name: str, recipe: Recipe | None) -> int:
    processes = Group()
    try:
        processes = Group.from_environment()
        with ended_by(processes):
            return run(sys.argv[1:] if argv is None else argv, config_name, processes, recipe)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except EmbodiedError as error:
        if processes.speaks and processes.launcher == "torchrun":  # the others say it themselves
            print(f"{processes.name}{printed(error)}", file=sys.stderr)
        return 2


def run(argv: Sequence[str], config_name: str, processes: Group, recipe: Recipe | None = None) -> int:
    """Runs a command in one of its processes; returns its exit status.

    Raises:
        EmbodiedError: what ended it.
    """
    overrides, folders, print_only = parse_argv(argv, "tools.demos" if config_name == "demos" else config_name)
    with _uncollected():
        from embodied.schema.compose.compose import as_yaml, compose_unchecked

    with _advised(config_name), _uncollected():
        composed = compose_unchecked(overrides, config_name, folders)
        composed = replace(composed, command=repeat_command(argv, config_name, processes, composed.config))
        _check_rules(composed, processes)
        _check_entry(composed, config_name)
        launches = recipe is None and not print_only and launching.launches(composed.config)
        job = launching.job_of(composed, argv, config_name) if launches else None
    if job is not None:
        from embodied.cluster.launch import launch

        return launch(job)
    if print_only and not processes.is_main:
        return 0
    if print_only:
        composed = _with_env(composed)
    if print_only == "origin" or (not print_only and processes.is_main and not composed.config.runner.dry_run):
        composed = _traced(composed)
    if not print_only:
        with _advised(config_name):
            composed, processes = _planned(composed, overrides, folders, processes)
        return _carry_out(composed, config_name, folders, processes, recipe)
    if composed.origins is not None:
        print(*composed.origins.lines(composed.resolved), sep="\n")
    else:
        print(as_yaml(composed), end="")
    return 0


def _planned(
    composed: Composed, overrides: Sequence[str], folders: Sequence[str], processes: Group
) -> tuple[Composed, Group]:  # fmt: skip
    """Returns a dry run's configuration with the processes of the cluster that it plans, which may need more env slots
    than nobody has asked for."""
    if not composed.config.runner.dry_run:
        return composed, processes
    from embodied.run.placement.table import more_slots, planned
    from embodied.schema.compose.compose import compose_unchecked

    found = planned(composed.config, processes)
    settings = more_slots(composed, found)
    if settings:
        assert composed.trail is not None
        again = compose_unchecked([*overrides, *settings], composed.trail.config_name, folders)
        composed = replace(again, command=composed.command)
        _check_rules(composed, processes)
        found = planned(composed.config, processes, settings)
    return composed, found


def _with_env(composed: Composed) -> Composed:
    """Settles what of the model follows from the env, for printing; says so if the env cannot be asked here."""
    from embodied.run.build.model_for_env import needs_env, settled
    from embodied.run.build.sides import make_side

    config = composed.config
    name = "eval" if config.runner.only_eval else "train"
    try:
        if config.runner.task.records or not needs_env(composed):
            return composed
        return settled(composed, make_side(name, getattr(config.env, name)))
    except EmbodiedError as error:
        print(f"actor.model is printed as it is without env.{name}: {error.message}", file=sys.stderr)
        return composed


def _traced(composed: Composed) -> Composed:
    """Adds where each value comes from. The files of groups are read again, before they can change."""
    from embodied.schema.compose.origin_trace import trace

    return composed if composed.trail is None else replace(composed, origins=trace(composed.resolved, composed.trail))


def repeat_command(argv: Sequence[str], config_name: str, processes: Group, config: Config) -> str:
    """Returns the command line that repeats this run, with its launcher if there are several processes; a line for each
    machine where torchrun has started different numbers."""
    words = [launching.module_of(config_name), *argv]
    if processes.size == 1:
        return shlex.join(["python", "-m", *words])
    counts = _on_machines(config, processes)
    if len({*counts}) < 2:
        return start_command(processes.launcher, processes.num_nodes, processes.local_size, words)
    lines = (start_command("torchrun", len(counts), count, words) for count in counts)
    return "\n".join(line.replace(" -m ", f" --node-rank={node} -m ", 1) for node, line in enumerate(lines))


def _on_machines(config: Config, processes: Group) -> list[int]:
    """Returns how many processes torchrun has started on each machine, as a placement says it; else nothing."""
    if processes.launcher != "torchrun" or config.cluster.component_placement is None:
        return []
    from embodied.run.placement.table import table_of

    try:
        table = table_of(config, processes)
    except ConfigError:  # the rules say it
        return []
    counts = [len(table.on(node.name)) for node in table.nodes]
    return [count for count in counts if count]


def _check_rules(composed: Composed, processes: Group) -> None:
    """Refuses combinations that cannot work, together with what else stands against the command and takes no time."""
    from embodied.schema import rules

    if broken(rules(composed.config)):
        from embodied.run.build.preflight import Rules
        from embodied.run.placement.table import to_start

        started = to_start(composed.config, processes)
        refuse(broken(chain(rules(composed.config), Rules(composed, started, machine=False))))


def _check_entry(composed: Composed, config_name: str) -> None:
    """Raises :class:`ConfigError` if demonstrations are asked of a command that trains, or training of the other."""
    runner = composed.config.runner
    if runner.task.records != (config_name == "demos"):
        raise ConfigError(
            f"runner.task_type is {runner.task_type}, which this command does not do",
            "run python -m embodied.tools.demos to make demonstrations, and embodied.train or embodied.sft to train",
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collects no garbage within it: what imports and keys make stays, so that looking for garbage is a tenth of a
    refusal's time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _advised(config_name: str) -> Iterator[None]:
    """Lets a refusal say where all that is wrong is told, not the first alone."""
    try:
        yield
    except EmbodiedError as error:
        doctor = "python -m embodied.tools.doctor" + ("" if config_name == "train" else f" {config_name}")
        error.add_note(f"  more: {doctor}, with the same arguments, says all that is wrong")
        raise


def _carry_out(
    composed: Composed, config_name: str, folders: Sequence[str], processes: Group, recipe: Recipe | None
) -> int:
    """Checks what was composed and runs the recipe under a stop signal; returns the exit status.

    Args:
        folders: those with more group files.
    """
    from embodied.observe.terminal.console import NullConsole, make_console
    from embodied.run import sft_first
    from embodied.run.build import brought
    from embodied.run.build.preflight import check
    from embodied.run.placement import roles, table
    from embodied.runtime.signals import StopSignal
    from embodied.runtime.wait_policy import cores_are_shared

    cores_are_shared()
    processes = roles.placed(composed.config, processes)
    if (name := composed.config.actor.group_name) is not None:
        processes.call(name)
    console = make_console() if processes.is_main else NullConsole()
    stop = StopSignal(composed.config.runner.stop_timeout_s, processes.name)
    try:
        with stop:
            composed = sft_first.run(composed, folders, processes, stop)
            with console.progress("checking the configuration", brief=True), _advised(config_name):
                checked = check(composed, processes)
                _refuse_too_large(checked.config, checked.sides, processes, console, policy=recipe is None)
            if rows := table.rows(checked.config, processes):
                console.table("placement", rows)
            if rows := brought.table(checked.composed, {"train": checked.train, "eval": checked.eval}):
                console.table(f"what differs from {checked.config.runner.ckpt_path or 'the export'}", rows)
            with console.progress("importing torch", brief=True):
                recipe = recipe or _recipe(checked.config.runner)
            recipe(checked, console, stop)
    except Stopped:
        if processes.speaks:
            print(f"{processes.name}stopped before there was a result to keep", file=sys.stderr)
        return stop.status or 128 + signal.SIGTERM
    return stop.status


def _refuse_too_large(config: Config, sides: Sides, processes: Group, console: Console, policy: bool) -> None:
    """Refuses env workers, and a large policy, that do not fit into memory, before any is started. A dry run counts
    both to the end."""
    from embodied.run.memory import workers
    from embodied.run.memory.footprint import large

    if config.runner.dry_run:
        return
    if (unknown := workers.check(config, sides, processes)) is not None:
        console.say(unknown)
    if policy and (weights := large(config, processes)) is not None:
        from embodied.run.memory.say import check_large

        check_large(config, sides, processes, weights)


def _recipe(runner: RunnerConfig) -> Recipe:
    """Returns the recipe that ``runner.only_eval``, ``runner.answers`` and ``runner.task_type`` name. Imports torch."""
    from embodied.run import evaluate, rl, selftest, sft

    if runner.selftest:
        return selftest.run
    if runner.only_eval:
        return evaluate.run if runner.answers is None else evaluate.verify
    return sft.run if runner.task.supervised else rl.run
