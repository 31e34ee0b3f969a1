"""``python -m embodied.train [GROUP=NAME …] [KEY=VALUE …]``: compose → check → build → run → close."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import closing

from embodied.errors import EmbodiedError, Stopped
from embodied.observe.console import Console, NullConsole, make_console
from embodied.parallel.group import World, ended_by
from embodied.run.build import build
from embodied.run.preflight import check
from embodied.runtime.signals import StopSignal
from embodied.runtime.wait_policy import cores_are_shared
from embodied.schema.compose import Composed, as_yaml, compose, parse_argv


def main(argv: Sequence[str] | None = None, config_name: str = "train") -> int:
    """Returns the exit status: 0, 2 for an error that is explained, or 128 and the signal's number (130 for Ctrl-C, 143
    for SIGTERM) when stopped without a result."""
    cores_are_shared()
    world = World()
    try:
        world = World.from_environment()
        with ended_by(world):
            return run(sys.argv[1:] if argv is None else argv, config_name, world)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except EmbodiedError as error:
        if world.speaks:
            print(f"{world.name}error: {error}", file=sys.stderr)
        return 2


def run(argv: Sequence[str], config_name: str, world: World) -> int:
    entry = "tools.demos" if config_name == "demos" else config_name
    overrides, folders, print_only = parse_argv(argv, entry)
    composed = compose(overrides, config_name, folders)
    if print_only:
        if world.is_main:
            print(as_yaml(composed), end="")
        return 0
    console = make_console() if world.is_main else NullConsole()
    stop = StopSignal(composed.config.runner.stop_timeout_s, world.name)
    try:
        with stop:
            start(composed, world, console, stop)
    except Stopped:
        if world.speaks:
            print(f"{world.name}stopped before there was a result to keep", file=sys.stderr)
        return 128 + (stop.number or signal.SIGTERM)
    return 0


def start(composed: Composed, world: World, console: Console, stop: StopSignal) -> None:
    """Check, build, do what ``runner.task_type`` says, and close.

    Raises:
        Stopped: by a signal, before there was anything to keep.
    """
    with console.progress("checking the configuration", brief=True):
        checked = check(composed, world)
    if composed.config.runner.task_type == "demos":
        from embodied.tools import demos

        demos.make(checked, console, stop)
        return
    with closing(build(checked, console)) as parts:
        from embodied.run import evaluate as evaluation
        from embodied.run import rl as loop
        from embodied.run import sft as cloning
        from embodied.run import summary

        runner = composed.config.runner
        job = cloning if runner.task_type == "sft" else loop
        lines = cloning.plan_lines(parts) if job is cloning else summary.plan_lines(parts)
        console.table(f"{runner.experiment_name}", lines)
        if runner.dry_run:
            return
        stop.hold_from_now()
        if runner.only_eval:
            evaluation.evaluate(parts, 0, None, stop)
        else:
            console.say(job.train(parts, stop))
        console.table("where things are", summary.places(parts))


if __name__ == "__main__":
    sys.exit(main())
