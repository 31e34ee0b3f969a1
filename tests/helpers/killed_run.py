"""``python killed_run.py MOMENT [overrides]``: a training run that kills itself in or after its third rollout.

SIGKILL, as a machine that takes a job's memory or power away: no handler, no ``finally``. The moments are calls of
functions and not times, so that they are the same on every machine.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from embodied import train
from embodied.learn.checkpoint import checkpoint
from embodied.run.folder.saves import Saves
from embodied.testing.policy import FakePolicy

SAVE = torch.save


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(number: int, owner: Any, name: str) -> None:
    """The process ends at the ``number``-th call of ``owner.name`` from now."""
    original, calls = getattr(owner, name), []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) == number:
            die()
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def write_half_and_die(tensor: torch.Tensor, stream: Any, **kwargs: Any) -> None:
    """In place of ``torch.save`` into a file; other uses (sending a tensor to another rank pickles it) stay."""
    if isinstance(stream, io.BytesIO):
        SAVE(tensor, stream, **kwargs)
        return
    stream.write(b"half of a tensor")
    stream.flush()
    die()


def delete_half_and_die(folder: Path) -> None:
    """What :func:`checkpoint._remove` had done when it came to the first file of an old checkpoint."""
    if folder.exists():
        aside = folder.rename(folder.with_name(f".removing-{folder.name}"))
        next(aside.glob("*.distcp")).unlink()
        die()


MOMENTS = {
    "rollout": lambda: die_at_call(3, FakePolicy, "act"),
    "update": lambda: die_at_call(2, FakePolicy, "evaluate"),  # the first optimizer batch has changed the weights
    "writing": lambda: setattr(torch, "save", write_half_and_die),
    "renaming": lambda: die_at_call(1, checkpoint, "_replace"),  # after meta.json, before the rename
    "renamed": lambda: die_at_call(1, checkpoint, "sync_folder"),
    "deleting": lambda: setattr(checkpoint, "_remove", delete_half_and_die),
}
DURING_A_ROLLOUT = ("rollout", "update")


def kill_in_the_third_iteration(moment: str) -> None:
    keep = Saves.keep

    def prepare(self: Saves, iteration: int) -> None:
        """Just before the rollout."""
        keep(self, iteration)
        if iteration == 2:
            if moment not in DURING_A_ROLLOUT:
                self.checkpoints.wait()  # so that it is not the second iteration's checkpoint that suffers
            MOMENTS[moment]()

    Saves.keep = prepare  # type: ignore[method-assign]


if __name__ == "__main__":
    kill_in_the_third_iteration(sys.argv[1])
    sys.exit(train.main(sys.argv[2:]))
