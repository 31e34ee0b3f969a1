"""Makes the steps of the fork server: imports, then simulators that are built ahead.

After each step it looks for what a fork would break, threads and open devices. If a step has left some, the process is
to begin anew without that step and the following ones, and workers do them for themselves. So they do a simulator that
cannot be built, without a new beginning.
"""

from __future__ import annotations

import importlib
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

DEVICES = ("/dev/dri/", "/dev/nvidia", "/dev/kfd")
ENDING_S = 0.2

EnvClass = tuple[str, Mapping[str, Any]]
"""Target and arguments of an env's class."""
Step = tuple[str, Callable[[], object]]


class Refused(NamedTuple):
    """Steps that are left to the workers, as words of a command line."""

    after: str = ""  # the number of steps that are made; empty = all
    why: str = ""


class Made(NamedTuple):
    """What came of the steps."""

    steps: tuple[str, ...]
    refused: Refused
    hazard: bool = False  # this process must not fork


def make_steps(envs: Sequence[EnvClass], before: Refused, report: Callable[[str], object]) -> Made:
    """Makes the steps up to the first hazard.

    Args:
        before: what an earlier process has refused.
        report: given the name of each step before it is made.
    """
    limit = int(before.after) if before.after else None
    reasons = [before.why] if before.why else []
    done: list[str] = []
    for number, (name, act) in enumerate(_steps(envs)):
        if number == limit:
            break
        report(name)
        error = _error_of(act)
        hazard = hazards()
        if hazard or (error and name.startswith(_IMPORT)):
            return Made(tuple(done), Refused(str(number), f"{name}: {hazard or error}"), hazard=True)
        if error:
            reasons.append(f"{name}: {error}")
        else:
            done.append(name)
    return Made(tuple(done), Refused(before.after, "; ".join(reasons)))


_IMPORT = "import "


def _steps(envs: Sequence[EnvClass]) -> Iterator[Step]:
    """Yields the steps. Those of an env's builds are known once its imports are made."""
    worker = "embodied.runtime.worker.worker"
    yield _IMPORT + worker, lambda: importlib.import_module(worker)
    for target in dict.fromkeys(target for target, _ in envs):
        builds: list[Step] = []
        yield _IMPORT + target, partial(_import_env, target, envs, builds)
        yield from ((f"build {name}", act) for name, act in builds)


def _import_env(target: str, envs: Sequence[EnvClass], builds: list[Step]) -> None:
    """Imports the module of an env's class, and what the env offers to import (:class:`embodied.protocols.Preloads`).

    Args:
        builds: gets what the env offers to build (:class:`embodied.protocols.BuildsAhead`).
    """
    from embodied.lib.targets import load_target

    make = load_target(target, "env._target_")
    if not hasattr(make, "preload"):
        return
    for env in [make(**arguments) for name, arguments in envs if name == target]:
        env.preload()
        builds += env.builds() if hasattr(env, "builds") else ()


def _error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001  a worker meets it again, and reports it
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""


def hazards() -> str:
    """Returns what a fork of this process would break, such as threads and open devices; empty if nothing."""
    if not os.path.isdir("/proc/self/task"):
        return "threads and devices cannot be seen without /proc"
    seen = []
    threads = _threads()
    if threads:
        time.sleep(ENDING_S)  # threads that only the step needed may be about to end
        threads = _threads()
    if threads:
        seen.append(f"{len(threads)} threads ({', '.join(threads)})")
    devices = sorted({link for link in map(link_of, os.listdir("/proc/self/fd")) if link.startswith(DEVICES)})
    if devices:
        seen.append(f"open devices {', '.join(devices)}")
    return "; ".join(seen)


def _threads() -> list[str]:
    """Names of the threads beside the main one."""
    names = []
    for task in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
        with suppress(OSError):  # the thread has just ended
            names.append(Path(f"/proc/self/task/{task}/comm").read_text(encoding="utf-8").strip())
    return sorted(names)


def link_of(fd: str) -> str:
    """Returns what a descriptor of this process is; empty if it is not open."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # it is the descriptor that listed them
        return ""
