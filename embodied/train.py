"""``python -m embodied.train [GROUP=NAME …] [KEY=VALUE …]``: train with reinforcement learning."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embodied.cli import piped, see_current_folder
from embodied.run import command


def main(argv: Sequence[str] | None = None, config_name: str = "train") -> int:
    """Returns the exit status (:func:`embodied.run.command.main`)."""
    if argv is None:
        see_current_folder()
    return command.main(argv, config_name)


if __name__ == "__main__":
    sys.exit(piped(main))
