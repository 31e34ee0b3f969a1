"""``python -m embodied.sft env=NAME data=PATH``: learn from demonstrations (``embodied.train`` with task_type sft).

The run folder and its checkpoints are those of ``embodied.train``, which goes on from one of them with
``runner.ckpt_path=…``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embodied.cli import piped
from embodied.run import command


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status (:func:`embodied.run.command.main`)."""
    return command.main(argv, "sft")


if __name__ == "__main__":
    sys.exit(piped(main))
