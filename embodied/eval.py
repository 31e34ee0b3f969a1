"""``python -m embodied.eval``: ``embodied.train`` with ``runner.only_eval=true``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from embodied.train import main as train_main


def main(argv: Sequence[str] | None = None) -> int:
    return train_main(argv, "eval")


if __name__ == "__main__":
    sys.exit(main())
