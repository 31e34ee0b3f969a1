"""``python -m embodied.tools.play [CHECKPOINT] …``: plays one episode and writes a video of it.

The same words as ``embodied.eval``. The start is one of the evaluation's unless ``--task``, ``--state`` and
``--seed`` name another, and the episode is then that of the evaluation to the bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from embodied.cli import piped
from embodied.run import command

if TYPE_CHECKING:
    from embodied.run.build.given import Recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status (:func:`embodied.run.command.main`)."""
    given = arguments().parse_intermixed_args(argv)
    options = [part for folder in given.config_dir for part in ("--config-dir", folder)]
    options += ["--cfg"] * given.cfg + ["--trust"] * given.trust
    return command.main([*given.words, *options], "eval", lambda *session: _player(given)(*session))


def arguments() -> argparse.ArgumentParser:
    """Makes the parser of the command line of ``embodied play``."""
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.play", allow_abbrev=False, description="Play one episode and write a video of it.",
        epilog="example: embodied play runs/NAME/checkpoints/000004 --task 3",
    )  # fmt: skip
    parser.add_argument(
        "words", nargs="*", metavar="CHECKPOINT, GROUP=NAME or KEY=VALUE",
        help="what embodied eval takes; a checkpoint, a run (its newest) or an exported folder brings model and env",
    )  # fmt: skip
    start = parser.add_argument_group("the start (default: the first of an evaluation)")
    start.add_argument("--task", type=int, metavar="N", help="number of the task, from 0")
    start.add_argument("--state", type=int, metavar="N", help="number of the task's initial state, from 0")
    start.add_argument(
        "--seed", type=int, metavar="N",
        help="of the start, as eval/*.json of a run has it; those below 2**30 are of trainings",
    )  # fmt: skip
    actor = parser.add_argument_group("who plays (default: the policy)").add_mutually_exclusive_group()
    actor.add_argument("--expert", action="store_const", const="expert", dest="actor", help="the env's own expert")
    actor.add_argument("--random", action="store_const", const="random", dest="actor", help="random actions")
    parser.set_defaults(actor="policy")
    parser.add_argument("--out", type=Path, metavar="FILE.mp4", help="where the video goes (default: below videos/)")
    parser.add_argument("--live", action="store_true", help="show it in a window, too, as fast as it is simulated")
    parser.add_argument("--cfg", action="store_true", help="print the composed configuration and exit")
    parser.add_argument("--trust", action="store_true", help="CHECKPOINT is your own: it may name other code")
    parser.add_argument("--config-dir", action="append", default=[], metavar="DIR", help="folder with more group files")
    return parser


def _player(given: argparse.Namespace) -> Recipe:
    """Imports torch."""
    from embodied.run import play

    choice = play.Choice(given.actor, given.task, given.state, given.seed, given.out, given.live)
    return partial(play.run, choice=choice)


if __name__ == "__main__":
    sys.exit(piped(main))
