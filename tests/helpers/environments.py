"""Environments with packages that this one lacks, made once; no step of it lasts without end."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

VENV_S = 300.0  # a busy machine needs a minute
INSTALL_S = 1200.0  # vLLM is more than a gigabyte


def python_with(packages: Sequence[str], folder: Path, shares: bool = False, without: Sequence[str] = ()) -> str:
    """Returns the interpreter of an environment in ``folder``, which is made unless it is there already. Skips the test
    if the package index does not give the packages; all else fails it.

    Args:
        shares: it sees the packages of this environment as well.
        without: packages that are taken away again.
    """
    python, whole, named = folder / "bin" / "python", folder / "whole", " ".join(packages)
    if whole.exists() and whole.read_text(encoding="utf-8") == named:
        return str(python)
    error = limited([sys.executable, "-m", "venv", "--clear", folder], f"making an environment for {named}", VENV_S)
    assert not error, error
    for place in folder.glob("lib/python*/site-packages") if shares else ():
        (place / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip = [python, "-m", "pip", "--quiet"]
    if error := limited([*pip, "install", *packages], f"installing {named}", INSTALL_S):
        pytest.skip(f"installing {named} cannot be done here: {error}")
    if without:
        error = limited([*pip, "uninstall", "-y", *without], f"removing {' '.join(without)}", VENV_S)
        assert not error, error
    whole.write_text(named, encoding="utf-8")
    return str(python)


def limited(command: Sequence[Any], doing: str, seconds: float) -> str:
    """Runs a command; returns the end of what it says if it fails, else nothing. Fails the test if it has not ended
    after ``seconds``, and says what it was ``doing``."""
    try:
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, timeout=seconds, check=False, encoding="utf-8"
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{doing} did not end within {seconds:g} s: is the package index slow, or the machine busy?")
    return (done.stderr.strip()[-300:] or f"exit status {done.returncode}") if done.returncode else ""
