"""``python -m embodied.train [GROUP=NAME …] [KEY=VALUE …]``: compose → check → build → run → close."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing

from embodied.build import build
from embodied.checks import check
from embodied.compose import as_yaml, compose, parse_argv
from embodied.distributed import World, ended_by
from embodied.errors import EmbodiedError
from embodied.observe.console import NullConsole, make_console


def main(argv: Sequence[str] | None = None, config_name: str = "train") -> int:
    """Returns the exit status: 0, 2 for an error that is explained, or 130 when stopped by Ctrl-C without a result."""
    world = World()
    try:
        world = World.from_environment()
        with ended_by(world):
            return run(sys.argv[1:] if argv is None else argv, config_name, world)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
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
    checked = check(composed, world)
    if composed.config.runner.task_type == "demos":
        from embodied.tools import demos

        demos.make(checked, console)
        return 0
    with closing(build(checked, console)) as parts:
        from embodied import cloning, evaluation, loop, summary

        job = cloning if composed.config.runner.task_type == "sft" else loop
        lines = cloning.plan_lines(parts) if job is cloning else summary.plan_lines(parts)
        console.table(f"{composed.config.runner.experiment_name}", lines)
        if composed.config.runner.dry_run:
            return 0
        if composed.config.runner.only_eval:
            evaluation.evaluate(parts, 0, None)
        else:
            done = job.train(parts)
            console.say(f"{done} iterations done. The same command with a larger runner.max_epochs goes on from here.")
        console.table("where things are", summary.places(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
