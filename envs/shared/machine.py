"""A writable cache folder on this machine, and trials of its drivers in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from embodied.errors import AssetsMissingError

TRIAL_TIMEOUT_S = 60.0


def cache_folder(name: str) -> Path:
    """Makes ``$XDG_CACHE_HOME`` (else ``~/.cache``) ``/embodied/name``, or a folder in the temporary one if it
    cannot be written.

    Raises:
        AssetsMissingError: neither can be written.
    """
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
    """Runs Python ``code`` in a process of its own, because graphics drivers crash instead of raising.

    Args:
        variables: environment variables to add to those of this process.
        answer: prefix of the line that the code prints as its answer.

    Returns:
        Whether it answered; then the answer, or the last line that names an error.
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
