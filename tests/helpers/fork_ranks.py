"""Starts the ranks of a run as forks of one process that has imported torch: ``fork_ranks.py SIZE MODULE ARGUMENT …``

A third of torchrun's CPU time, for tests of what ranks compute. It hands on no signals and makes no report of errors:
tests of how runs end start them by torchrun.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from ranks import free_port

GRACE_S = 30
"""A rank may say what is wrong after another has ended for it."""


def main(size: int, module: str, arguments: list[str]) -> int:
    """Runs a module as ``python -m`` does in each rank. Returns 0 if all ended so; else kills those that
    do not end themselves, and returns 1."""
    import torch._dynamo  # noqa: F401 (an optimizer imports it)

    import embodied.learn.trainer
    import embodied.run.session  # noqa: F401

    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ |= {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
            sys.argv[1:] = arguments
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0
        pids.append(pid)
    return _ended(pids)


def _ended(pids: list[int]) -> int:
    failed = False
    signal.signal(signal.SIGALRM, lambda *_: [os.kill(pid, signal.SIGKILL) for pid in pids])
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if status and not failed:
            failed = True
            signal.alarm(GRACE_S)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
