"""Tries this machine's drivers in a process of their own."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

TRIAL_TIMEOUT_S = 60.0


def try_in_process(code: str, arguments: Sequence[str], variables: Mapping[str, str], answer: str) -> tuple[bool, str]:
    """Runs Python ``code`` in a child process, because graphics drivers crash instead of raising; returns whether it
    answered, and the answer.

    Args:
        variables: environment variables to add to those of this process.
        answer: prefix of the line that the code prints as its answer.

    Returns:
        Whether it answered; then the answer, or the last line that names an error.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S, check=False, encoding="utf-8"
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {TRIAL_TIMEOUT_S:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith(answer):
            return True, line.removeprefix(answer)
    errors = [line for line in done.stderr.splitlines() if "Error" in line and not line.startswith(" ")]
    return False, errors[-1] if errors else f"exit status {done.returncode}"


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Returns the versions of the packages that are installed here, by name."""
    found: dict[str, str] = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
