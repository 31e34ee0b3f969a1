"""Says what a node has. Travels by value, with the standard library alone: the node may lack this package."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "embodied"


def facts(folder: str, nonce: str, python: str = "") -> dict[str, Any]:
    """Returns versions, and what the node sees of a run.

    Args:
        folder: that the command was started in.
        nonce: file that the launcher has written, in the run's folder.
        python: interpreter whose versions are meant; "" = this one.
    """
    own = {} if python in ("", sys.executable) else _versions_in(python)
    return {
        "interpreter": not python or os.access(python, os.X_OK),
        "executable": python,
        "project": _project(),
        "Python": platform.python_version(),
        "torch": _version("torch"),
        "folder": Path(folder).is_dir(),
        "nonce": _text(Path(nonce)),
        **own,
    }


def _versions_in(python: str) -> dict[str, Any]:
    """Returns the versions that another interpreter has; empty ones where it lacks this package."""
    code = f"import json; from {PACKAGE}.cluster import node_facts; print(json.dumps(node_facts.facts('.', '')))"
    names = ("project", "Python", "torch")
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8", check=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return dict.fromkeys(names, "")
    return {name: found[name] for name in names}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _project() -> str:
    """Returns the project's version with a checksum of its files; empty where it is not installed."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        return ""
    root, digest, number = Path(found.origin).parent, hashlib.sha256(), "?"
    for file in sorted(root.rglob("*.py")):
        content = file.read_bytes()
        digest.update(str(file.relative_to(root)).encode() + b"\0" + content)
        if file == root / "__init__.py":
            lines = content.decode(errors="replace").splitlines()
            number = next((line.split('"')[1] for line in lines if line.startswith("__version__")), "?")
    return f"{number}, files {digest.hexdigest()[:8]}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
