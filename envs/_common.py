"""What the adapters share: checks of what a user gives, a cache folder, trials in a process of their own, rotations."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError, ConfigError, unknown_name

TRIAL_TIMEOUT_S = 60.0


def check_name(what: str, got: str, known: Sequence[str] | Mapping[str, Any], key: str) -> None:
    """Raises :class:`embodied.errors.UnknownNameError` for a name that is none of ``known``."""
    if got not in known:
        raise unknown_name(what, str(got), known, key)


def check_range(what: str, got: Any, low: int, high: int) -> None:
    """Raises :class:`embodied.errors.ConfigError` for what is no whole number from ``low`` to ``high``."""
    if isinstance(got, bool) or not isinstance(got, int) or not low <= got <= high:
        raise ConfigError(f"{what} is {got!r}, expected a whole number from {low} to {high}", f"change {what}")


def cache_folder(name: str) -> Path:
    """``$XDG_CACHE_HOME`` (else ``~/.cache``) ``/embodied/name``; in the temporary folder if that cannot be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    roots = (cache / "embodied", Path(tempfile.gettempdir()) / f"embodied-{os.getuid()}")
    for root in roots:
        folder = root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise AssetsMissingError(f"no writable cache folder; tried {', '.join(map(str, roots))}", "set XDG_CACHE_HOME")


def try_in_process(code: str, arguments: Sequence[str], variables: Mapping[str, str], answer: str) -> tuple[bool, str]:
    """Run Python ``code`` in a process of its own, since graphics drivers crash instead of raising.

    Args:
        variables: of the environment, beside this process's.
        answer: what stands before the answer in a line that the code prints.

    Returns:
        whether it answered, and the answer, or the last line that names an error.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no answer within {TRIAL_TIMEOUT_S:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith(answer):
            return True, line.removeprefix(answer)
    errors = [line for line in done.stderr.splitlines() if "Error" in line and not line.startswith(" ")]
    return False, errors[-1] if errors else f"exit status {done.returncode}"


def axis_angle(x: float, y: float, z: float, w: float) -> np.ndarray:
    """Rotation vector [3] in rad of a unit quaternion, as robosuite and OpenVLA-OFT compute it."""
    w = min(max(w, -1.0), 1.0)
    length = np.sqrt(1.0 - w * w)
    if math.isclose(length, 0.0):
        return np.zeros(3)
    return np.array([x, y, z]) * 2.0 * math.acos(w) / length
