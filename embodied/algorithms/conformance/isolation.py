"""Calls of a user's code that leave no trace in the run."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def one_line(error: Exception) -> str:
    """Formats an error's text in one line, for another error's message."""
    return " ".join(str(error).split())[:300]


def isolated_copy(tried: Any) -> Any:
    """Copies a user's loss or term before it is tried, so that calls which it counts are none of the run's; gives it
    back where it cannot be copied."""
    try:
        return copy.deepcopy(tried)
    except Exception:  # noqa: BLE001 (what cannot be copied raises what it likes)
        return tried


def seed_all(seed: int) -> None:
    """Seeds every global generator that a user's code may draw from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the global random generators afterwards: user code that is tried may draw numbers."""
    python, arrays = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)
