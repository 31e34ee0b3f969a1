"""What the process that forks the tests' env workers imports (``warm_workers`` of ``conftest.py``).

A worker that starts as an interpreter of its own begins in the launcher's folder; a fork begins in that of its server,
which serves tests with a folder each. So each fork goes to the launcher's.
"""

import os

from embodied.testing import FakeEnv

LAUNCHER = os.getppid()
os.register_at_fork(after_in_child=lambda: os.chdir(f"/proc/{LAUNCHER}/cwd"))

__all__ = ["FakeEnv"]
