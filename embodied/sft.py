"""``python -m embodied.sft env=NAME data=PATH``: learn from demonstrations (``embodied.train`` with task_type sft).

The run folder and its checkpoints are those of ``embodied.train``, which goes on from one of them with
``runner.ckpt_path=…``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embodied.train import main as train_main


def main(argv: Sequence[str] | None = None) -> int:
    return train_main(argv, "sft")


if __name__ == "__main__":
    sys.exit(main())
