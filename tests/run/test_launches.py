"""The record of a run's starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from embodied.run.folder import launches

ROOT = Path(__file__).resolve().parents[2]


def test_versions_have_the_commit_of_the_checkout():
    """An evaluation that was interrupted goes on only with the same code."""
    asked = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False,
                           encoding="utf-8")  # fmt: skip
    if asked.returncode or not (ROOT / ".git").exists():
        pytest.skip("these files are in no checkout of git")
    assert launches.versions()["commit of the checkout"].removesuffix("-dirty") == asked.stdout.strip()
