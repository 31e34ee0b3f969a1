"""``python -m embodied.tools.play env=NAME [CHECKPOINT] …``: plays one episode and writes a video of it.

The same overrides as ``embodied.eval``. The start is one of the evaluation's unless ``--task``, ``--state`` and
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
from embodied.errors import ConfigError, EmbodiedError, printed
from embodied.run import command

if TYPE_CHECKING:
    from embodied.run.build.given import Recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status (:func:`embodied.run.command.main`)."""
    given = arguments().parse_intermixed_args(argv)
    try:
        words = overrides(given.words)
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    folders = [part for folder in given.config_dir for part in ("--config-dir", folder)]
    return command.main([*words, *folders, *["--cfg"] * given.cfg], "eval", lambda *session: _player(given)(*session))


def arguments() -> argparse.ArgumentParser:
    """Makes the parser of the command line of ``embodied play``."""
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.play", allow_abbrev=False, description="Play one episode and write a video of it.",
        epilog="example: embodied play env=libero_10 runs/NAME/checkpoints/000004 --task 3",
    )  # fmt: skip
    parser.add_argument(
        "words", nargs="*", metavar="GROUP=NAME, KEY=VALUE or CHECKPOINT",
        help="what embodied eval takes, and the folder of a checkpoint (short for runner.ckpt_path=FOLDER)",
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
    parser.add_argument("--config-dir", action="append", default=[], metavar="DIR", help="folder with more group files")
    return parser


def overrides(words: Sequence[str]) -> list[str]:
    """Rewrites a checkpoint's folder among the words as ``runner.ckpt_path``.

    Raises:
        ConfigError: a word is neither KEY=VALUE nor a folder, or two are folders.
    """
    plain = [word for word in words if "=" not in word and not word.startswith("~")]
    others = [word for word in words if word not in plain]
    if len(plain) > 1 or (any(word.startswith("runner.ckpt_path=") for word in others) and plain):
        raise ConfigError(
            f"{', '.join(plain)}: one episode is played with one checkpoint", "give one folder, or runner.ckpt_path"
        )
    for word in plain:
        if not Path(word).is_dir():
            raise ConfigError(
                f"'{word}' is neither KEY=VALUE nor a folder", "give the folder of a checkpoint, or write KEY=VALUE"
            )
    quoted = [word.replace("\\", "\\\\").replace("'", "\\'") for word in plain]
    return [*others, *(f"runner.ckpt_path='{word}'" for word in quoted)]


def _player(given: argparse.Namespace) -> Recipe:
    """Imports torch."""
    from embodied.run import play

    choice = play.Choice(given.actor, given.task, given.state, given.seed, given.out, given.live)
    return partial(play.run, choice=choice)


if __name__ == "__main__":
    sys.exit(piped(main))
