"""Devices and waits of what runs on a GPU, without one (docs/devices.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE / "stand_in_gpu" / "run.py"
FILES = sorted(path.name for path in SCRIPT.parent.glob("on_gpu_*.py"))
CANNOT = 77  # as run.py says


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_on_a_device_that_is_made_up(pytestconfig: pytest.Config, name: str) -> None:
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("stand-in-gpu")
    command = [sys.executable, str(SCRIPT), str(folder), "-q", "--tb=short", "--show-capture=no"]
    done = subprocess.run(
        [*command, str(SCRIPT.with_name(name))], cwd=HERE.parent, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout, done.stdout[-2000:]
