"""What an env offers, found out by making it once in a process of its own; a file keeps the answer."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied import errors
from embodied.lib.cache import cache_folder
from embodied.lib.whole import write_whole

from .asking import probed
from .settings import Making

_FORMAT = 4
Entries = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class GymFacts:
    """What a probe learnt of the Gymnasium envs of all tasks, which must agree: entries, action space, limits."""

    entries: Entries  # obs…, info…: name → shape, and dtype or "text"
    action: Mapping[str, Any]  # {"low": […], "high": […]} or {"n": N}
    max_steps: int  # the registered limit of an episode; 0 = none
    fps: float  # render_fps of the env's metadata; 0 = none
    threshold: float | None  # the registered reward threshold
    frame: tuple[int, ...] | None  # shape of a rendered picture; None = none can be had
    no_frame: str  # why none
    differs: str  # how two episodes from equal seeds differ; "" = they do not
    variables: Mapping[str, str]  # environment variables for workers
    version: str  # version of gymnasium
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # obs… → lowest and highest of its space
    late: Entries = field(default_factory=dict)  # info… that only later steps or the end of an episode have
    whole: bool = True  # an episode was played to its end
    silent: tuple[str, ...] = ()  # entries named after success that do not say true or false
    memory: tuple[int, ...] = (0, 0)  # bytes of a process that has made no env, and of what one env adds; 0 = not known

    @property
    def all_entries(self) -> Entries:
        """Shape and dtype of all entries, those that only later steps have included."""
        return {**self.late, **self.entries}


def facts_of(making: Making, remake: bool, python: str | None) -> GymFacts:
    """Returns the env's facts, from the cache or by probing the env.

    Raises:
        AssetsMissingError, UnknownNameError, ConfigError: the env cannot be made; the message says why.
    """
    file = cache_folder("gym") / f"{_fingerprint(making, remake, python)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        return _decode(json.loads(file.read_text(encoding="utf-8")))
    return ask(making, remake, python)


def ask(making: Making, remake: bool, python: str | None) -> GymFacts:
    """Probes the env, once for each process of ours, and caches the facts for the workers."""
    return _ask_once(json.dumps(asdict(making), sort_keys=True, default=str), remake, python, _of_pictures())


@functools.cache
def _ask_once(making: str, remake: bool, python: str | None, of_pictures: tuple[str | None, ...]) -> GymFacts:
    read = Making.of_json(json.loads(making))
    answer = probed(read, remake, python)
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"], answer["remedy"])
    facts = _decode(answer)
    file = cache_folder("gym") / f"{_fingerprint(read, remake, python)}.json"
    write_whole(file, json.dumps(asdict(facts)), shared=True)
    return facts


def _fingerprint(making: Making, remake: bool, python: str | None) -> str:
    run = [_FORMAT, python or sys.executable, remake, _of_pictures()]
    key = json.dumps([*run, asdict(making), _files(making)], sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _of_pictures() -> tuple[str | None, ...]:
    """Returns the environment variables by which a way to render is chosen: with others an env is asked anew."""
    return tuple(map(os.environ.get, ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY")))


def _files(making: Making) -> list[tuple[str, int]]:
    """The files that are named, and when they were changed: an env that is being written is asked anew."""
    targets = [*(task.entry_point for task in making.tasks), *(str(entry["target"]) for entry in making.wrappers)]
    modules = [*making.imports, *(target.rpartition(".")[0] for target in targets if target)]
    found = []
    for name in dict.fromkeys(modules):
        with suppress(ImportError, ValueError, AttributeError, OSError):
            spec = find_spec(name.split(".")[0])  # a whole path would import the packages above it
            origin = spec.origin if spec else None
            if origin:
                found.append((name, Path(origin).stat().st_mtime_ns))
    return found


def _decode(found: Mapping[str, Any]) -> GymFacts:
    listed = {which: {name: (tuple(shape), dtype) for name, (shape, dtype) in found[which].items()}
              for which in ("entries", "late")}  # fmt: skip
    frame = None if found["frame"] is None else tuple(found["frame"])
    bounds = {name: (low, high) for name, (low, high) in found["bounds"].items()}
    return GymFacts(**{**found, **listed, "frame": frame, "bounds": bounds, "silent": tuple(found["silent"]),
                       "memory": tuple(found["memory"])})  # fmt: skip


def alike(first: GymFacts, second: GymFacts) -> bool:
    """Returns whether two probes saw the same env. Whether an episode ended in time, and its memory, depend on the
    machine."""
    first, second = (replace(facts, memory=(0, 0)) for facts in (first, second))
    if first.whole != second.whole:
        first, second = (replace(facts, late={}, whole=False, silent=()) for facts in (first, second))
    return first == second
