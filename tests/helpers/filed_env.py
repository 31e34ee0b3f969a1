"""A fake env that stands in a file of the machine, and writes of such files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied.testing import FakeEnv

FILE = "FILED_ENV"  # variable with the path of the machine's file
TASKS = ("pick up the milk", "pick up the soup", "open the drawer")


def write(file: Path, states: str = "0 1 2", gpu: bool = False, **spec: Any) -> str:
    """Writes a machine's file; returns its path."""
    file.write_text(json.dumps({"states": states, "gpu": gpu, "spec": {"tasks": TASKS, **spec}}), encoding="utf-8")
    return str(file)


class FiledEnv(FakeEnv):
    """Has the fields of its spec, and how its tasks begin, from a file."""

    def __init__(self, **given: Any) -> None:
        super().__init__(num_tasks=len(TASKS), **given)
        self._file = json.loads(Path(os.environ[FILE]).read_text(encoding="utf-8"))
        found = {name: tuple(value) if isinstance(value, list) else value for name, value in self._file["spec"].items()}
        at_rest = not self._file["gpu"]
        self._spec = replace(self._spec, **found, restorable=at_rest, repeatable=at_rest)

    def file_digests(self) -> Mapping[str, str]:
        return {"tasks.init": hashlib.sha256(self._file["states"].encode()).hexdigest(), "tasks.bddl": "the same"}
