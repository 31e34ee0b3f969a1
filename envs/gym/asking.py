"""Asks in a process of its own what an env offers, and says why there is no answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied import errors
from embodied.errors import ConfigError
from embodied.lib.child import Child, how_it_ended

from ..shared.supervised import ANSWER, ENDED, LATE, PHASE
from .settings import KEY, Making

LIMIT_S, GRACE_S = 300.0, 5.0
_CODE = """
import sys, json, importlib.util
given = json.load(sys.stdin)
sys.path[:] = [*given["folders"], *filter(None, sys.path)]  # as a worker has it
spec = importlib.util.spec_from_file_location(
    "embodied", given["package"] + "/__init__.py", submodule_search_locations=[given["package"]])
sys.modules["embodied"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["embodied"])
from embodied.envs.gym.probe import main
sys.exit(main(given))
"""


def probed(making: Making, remake: bool, python: str | None) -> Mapping[str, Any]:
    """Probes a Gymnasium env in a child process, with which all ends that the env starts.

    Returns:
        What :func:`.probe.answer` gives.

    Raises:
        ConfigError: there is no answer; the message says what the env did last.
    """
    what = ", ".join(dict.fromkeys(task.name for task in making.tasks))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        said, status = _ran(_request(making, remake, python, folder), python)
        answer, ended, phase = (_text(Path(folder, name)) for name in (ANSWER, ENDED, PHASE))
    if answer:
        return json.loads(answer)
    raise _no_answer(what, ended or status, phase, said)


def _request(making: Making, remake: bool, python: str | None, folder: str) -> dict[str, Any]:
    folders = [os.path.abspath(one) for one in sys.path]
    if python is not None:  # our packages may be built for another version
        roots = {os.path.abspath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
        folders = [one for one in folders if "-packages" not in one and not any(map(one.startswith, roots))]
    return {
        "folders": folders, "package": str(Path(errors.__file__).parent), "making": asdict(making), "remake": remake,
        "folder": folder, "limit_s": LIMIT_S, "grace_s": GRACE_S,
    }  # fmt: skip


def _ran(request: Mapping[str, Any], python: str | None) -> tuple[list[str], str]:
    """Runs the process to its end. Returns the last lines that it printed, and its exit status or "late"."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if python is not None:
        environment = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        process = Child(
            [python or sys.executable, "-W", "ignore", "-c", _CODE], kept="stdout", env=environment,
            stdin=subprocess.PIPE, death=signal.SIGTERM,  # it then ends what has left its session, too
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"env.python: {error}", "set env.python to a Python interpreter, or to null") from None
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
        status = str(process.wait(LIMIT_S + GRACE_S + 30.0))
    except subprocess.TimeoutExpired:
        status = LATE
    finally:
        process.end(12.0)
    return process.lines(), status


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def _no_answer(what: str, ended: str, phase: str, said: Sequence[str]) -> ConfigError:
    doing = f" in {phase}" if phase else ""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in said]
    last = next((line for line in reversed(lines) if line), "")
    last = f": {last[-300:]}" if last else ""
    happened = (
        f"{what} was tried for {LIMIT_S:.0f} s and was then still{doing or ' at work'}"
        if ended == LATE
        else f"the process that tried {what} {how_it_ended(int(ended), 'ended')}{doing}"
    )
    return ConfigError(
        f"{happened}{last}",
        f"correct the env, or {KEY}: gymnasium.make, reset() and some steps of random actions do the same in a Python "
        "shell",
    )
