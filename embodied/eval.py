"""``python -m embodied.eval``: ``embodied.train`` with ``runner.only_eval=true``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embodied.cli import piped
from embodied.run import command


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status (:func:`embodied.run.command.main`)."""
    return command.main(argv, "eval")


if __name__ == "__main__":
    sys.exit(piped(main))
