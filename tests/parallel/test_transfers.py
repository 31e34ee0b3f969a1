"""How a process leaves while a thread still exchanges with others."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from ranks import connected, on_ranks

from embodied.learn.ranks.beside import Beside
from embodied.parallel import transfers
from embodied.parallel.group import Group

SCRIPT = """
import atexit, os, sys, threading
from embodied.parallel import transfers
from embodied.run import command

transfers.ENDS_S = 0.0
atexit.register(lambda: os._exit(99))

def run(*arguments):
    transfers.begin(threading.Thread(target=threading.Event().wait, daemon=True))
    {end}

command.run = run
sys.exit(command.main([], "train"))
"""


@pytest.mark.parametrize(
    ("end", "status", "error"), [("return 143", 143, ""), ("raise ValueError('broken')", 1, "ValueError: broken")]
)
def test_a_process_leaves_with_its_status_before_python_ends_the_thread(end, status, error):
    """Within torch the process would be aborted."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(end=end)], capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == status, done.stderr
    assert error in done.stderr


def closes(world: Group):
    """Process 0 leaves the group while it exchanges with process 1, which comes later."""
    transfers.ENDS_S = 60.0
    with connected(world):
        group, found = world.beside(), torch.full((3,), float(world.rank))
        if world.rank == 1:
            world.gather(None)
        work = Beside(lambda: group.broadcast(found))
        if world.rank == 0:
            world.gather(None)
    assert not work.is_alive()
    return found.tolist()


def test_a_group_is_closed_after_the_last_transfer():
    assert on_ranks(closes, connects=False) == [[0.0] * 3] * 2


def test_a_thread_that_does_not_end_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(transfers, "ENDS_S", 0.0)
    end = threading.Event()
    work = Beside(end.wait)
    assert not transfers.finish()
    end.set()
    work.join()
    assert transfers.finish()
