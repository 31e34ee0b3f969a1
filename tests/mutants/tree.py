"""A copy of the working tree in which the code may be changed, and pytest in that copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_tree(folder: Path) -> Path:
    """Copy the files of the working tree that git tracks or would track to ``folder``; ``folder``."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    for name in filter(None, listed.split("\0")):
        if (source := ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    return folder


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str, str]:
    """Run pytest with ``-x`` in the copy.

    Returns:
        pytest's exit status, the first failing test or "", and all that pytest said.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, encoding="utf-8"
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return done.returncode, failed.group(1) if failed else "", done.stdout + done.stderr
