"""One of several processes that add their ranks up: ``python -m embodied.doctor.checks.peers RANK SIZE FILE
BACKEND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE_S = 30


def main(argv: Sequence[str]) -> int:
    """Returns 0 if the sum is right.

    Args:
        argv: number of this process and of all, a file that does not exist yet, ``nccl`` or ``gloo``.
    """
    rank, size, meeting, backend = int(argv[0]), int(argv[1]), argv[2], argv[3]
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = timedelta(seconds=PATIENCE_S)
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=patience)
    given = torch.full((1024,), float(rank), device=device)
    dist.all_reduce(given)
    right = bool((given == size * (size - 1) / 2).all())
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
