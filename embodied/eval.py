"""``python -m embodied.eval``: ``embodied.train`` with ``runner.only_eval=true``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embodied.cli import piped, see_current_folder
from embodied.run import command


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status (:func:`embodied.run.command.main`)."""
    if argv is None:
        see_current_folder()
    return command.main(argv, "eval")


if __name__ == "__main__":
    sys.exit(piped(main))
