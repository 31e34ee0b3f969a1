"""What an env offers, found out by making it once in a process of its own; a file keeps the answer."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied import errors
from embodied.cache import cache_folder
from embodied.errors import ConfigError

from .settings import KEY, Making

_FORMAT = 2
_TIMEOUT_S = 300.0
_ANSWER = "EMBODIED_GYM="
_CODE = f"""
import sys, json, importlib.util
given = json.load(sys.stdin)
sys.path[:] = [*given["folders"], *filter(None, sys.path)]  # as a worker has it
spec = importlib.util.spec_from_file_location(
    "embodied", given["package"] + "/__init__.py", submodule_search_locations=[given["package"]])
sys.modules["embodied"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["embodied"])
from embodied.envs.gym.probe import answer
print("\\n{_ANSWER}" + json.dumps(answer(given["making"], given["remake"])), flush=True)
"""
Entries = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class GymFacts:
    """What the envs of all tasks offer alike."""

    entries: Entries  # obs…, info…: name → shape, and dtype or "text"
    action: Mapping[str, Any]  # {"low": […], "high": […]} or {"n": N}
    max_steps: int  # the registered limit of an episode; 0 = none
    fps: float  # render_fps of the env's metadata; 0 = none
    threshold: float | None  # the registered reward threshold
    frame: tuple[int, ...] | None  # shape of a rendered picture; None = none can be had
    no_frame: str  # why none
    differs: str  # how two episodes from equal seeds differ; "" = they do not
    variables: Mapping[str, str]  # of the environment, that workers need
    version: str  # of gymnasium


def facts_of(making: Making, remake: bool, python: str | None) -> GymFacts:
    """Reads the facts from the cache, else asks the env.

    Raises:
        AssetsMissingError, UnknownNameError, ConfigError: the env cannot be made; the message says why.
    """
    file = cache_folder("gym") / f"{_fingerprint(making, remake, python)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        return _decode(json.loads(file.read_text(encoding="utf-8")))
    return ask(making, remake, python)


def ask(making: Making, remake: bool, python: str | None) -> GymFacts:
    """Asks the env, once for each process of ours, and keeps the answer for the workers."""
    return _ask_once(json.dumps(asdict(making), sort_keys=True, default=str), remake, python)


@functools.cache
def _ask_once(making: str, remake: bool, python: str | None) -> GymFacts:
    read = Making.of_json(json.loads(making))
    facts = _ask_process(read, remake, python)
    file = cache_folder("gym") / f"{_fingerprint(read, remake, python)}.json"
    aside = file.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(asdict(facts)), encoding="utf-8")
    aside.replace(file)
    return facts


def _fingerprint(making: Making, remake: bool, python: str | None) -> str:
    key = json.dumps([_FORMAT, python or sys.executable, remake, asdict(making), _files(making)], sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _files(making: Making) -> list[tuple[str, int]]:
    """The files that are named, and when they were changed: an env that is being written is asked anew."""
    targets = [*(task.entry_point for task in making.tasks), *(str(entry["target"]) for entry in making.wrappers)]
    modules = [*making.imports, *(target.rpartition(".")[0] for target in targets if target)]
    found = []
    for name in dict.fromkeys(modules):
        with suppress(ImportError, ValueError, AttributeError, OSError):
            spec = find_spec(name.split(".")[0])  # of a whole path it would import the packages above it
            origin = spec.origin if spec else None
            if origin:
                found.append((name, Path(origin).stat().st_mtime_ns))
    return found


def _decode(found: Mapping[str, Any]) -> GymFacts:
    entries = {name: (tuple(shape), dtype) for name, (shape, dtype) in found["entries"].items()}
    frame = None if found["frame"] is None else tuple(found["frame"])
    return GymFacts(**{**found, "entries": entries, "frame": frame})


def _ask_process(making: Making, remake: bool, python: str | None) -> GymFacts:
    folders = [os.path.abspath(folder) for folder in sys.path]
    if python is not None:  # our packages may be built for another version
        roots = {os.path.abspath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
        folders = [f for f in folders if "-packages" not in f and not any(f.startswith(root) for root in roots)]
    package = str(Path(errors.__file__).parent)
    request = {"folders": folders, "package": package, "making": asdict(making), "remake": remake}
    what = ", ".join(dict.fromkeys(task.name for task in making.tasks))
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if python is not None:
        environment = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [python or sys.executable, "-W", "ignore", "-c", _CODE],
            input=json.dumps(request), env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        encoding="utf-8")  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{what} was not made within {_TIMEOUT_S:.0f} s", "try gymnasium.make(…).reset() in a Python shell"
        ) from None
    except OSError as error:
        raise ConfigError(f"env.python: {error}", "set env.python to a Python interpreter, or to null") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    if not answers:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = f": {lines[-1]}" if lines else ""
        raise ConfigError(
            f"the process that tried {what} ended with status {done.returncode}{said}",
            f"correct the env, or {KEY}: gymnasium.make, reset() and some steps of random actions do the same in a "
            "Python shell",
        )
    answer = json.loads(answers[-1].removeprefix(_ANSWER))
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"], answer["remedy"])
    return _decode(answer)
