"""``python -m embodied`` is the command ``embodied``."""

import sys

from embodied.cli import main

if __name__ == "__main__":
    sys.exit(main())
