"""Sets the CPU threads of an update. The simulators wait meanwhile, so it may use all cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def training_threads(count: int | None) -> Iterator[None]:
    """Context in which torch computes with ``count`` threads; None = with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
