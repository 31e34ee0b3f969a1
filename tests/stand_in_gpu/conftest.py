"""The device, for the tests of this folder. They run in a process of their own: see ``run.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import runtime
import torch
from device import Device

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "models"), str(TESTS / "learn"), str(TESTS / "run")]  # whose helpers and tests are taken


@pytest.fixture
def gpu_process() -> None:
    """That the device can be opened in this process."""
    if torch.accelerator.current_accelerator() is None:
        pytest.skip("run it by tests/stand_in_gpu/run.py")


@pytest.fixture
def gpu(gpu_process: None) -> Iterator[Device]:
    with runtime.opened() as device:
        yield device
