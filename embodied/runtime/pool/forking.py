"""The process of the fork server: imports slow modules once, and forks env workers that have them.

Started by :mod:`embodied.runtime.pool.fork_server` through :mod:`embodied.runtime.pool.start_worker`. It has one thread
and no simulator, GL context or open device, so that a fork breaks nothing of its state. Imports are checked after each
step.
If a thread or a device has come with a step, the process begins anew without it (an import cannot be undone), and
workers import it for themselves.

It imports nothing but the standard library by itself: numpy is a step like the others.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from embodied.lib.child import end_with_parent

MESSAGE_BYTES = 2**16
MAX_FDS = 16
DEVICES = ("/dev/dri/", "/dev/nvidia", "/dev/kfd")
ENDING_S = 0.2


@dataclass(frozen=True)
class Hello:
    """First message to the fork server: which envs to import. It comes in a memfd, so that the server can read it again
    when it begins anew."""

    envs: tuple[tuple[str, Mapping[str, Any]], ...]  # target and arguments of each env class
    sys_path: tuple[str, ...]  # see embodied.runtime.messages.WorkerSetup


class Serving(NamedTuple):
    """First message of the fork server: which modules workers inherit from it, and why others were left out."""

    imported: tuple[str, ...]  # the steps that workers inherit
    refused: str  # why other steps were left out; empty if none was


class Request(NamedTuple):
    """Message to the fork server: fork a worker. With it come the worker's end of the socket, what else it inherits,
    and last its log."""

    number: int  # the answer has the same number
    environment: Mapping[str, str | None]  # variables that differ from the server's at its start; None = not set


class Forked(NamedTuple):
    """Message of the fork server that answers a :class:`Request`. With it comes a pidfd, which stays right when another
    process gets the pid."""

    number: int
    pid: int
    fds: tuple[int, ...]  # numbers of the request's descriptors in the worker
    error: str = ""  # the kernel's error, if there is no worker


class Ended(NamedTuple):
    """Message of the fork server: a worker has ended; it is reaped."""

    pid: int
    code: int  # return code as in subprocess: negative is a signal


def main() -> None:
    """Serve. Returns in each worker, with ``sys.argv`` as a fresh interpreter would have it; never in the server
    itself."""
    control = socket.socket(fileno=int(sys.argv[2]))
    end_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the launcher asks a hung server where it stands
    for stop in (signal.SIGINT, signal.SIGTERM):  # the whole process group often gets them; the launcher handles them
        signal.signal(stop, signal.SIG_IGN)
    limit, refused = (int(sys.argv[4]), sys.argv[5]) if len(sys.argv) > 4 else (None, "")
    imported = _import_all(_hello(int(sys.argv[3])), limit)
    os.close(int(sys.argv[3]))
    gc.collect()
    gc.freeze()  # a collection in a worker would write to, and so copy, every page that it has inherited
    ctypes.CDLL(None).fflush(None)  # else each worker would print what C libraries still buffer
    try:
        control.send(pickle.dumps(Serving(imported, refused)))
        launcher_end = _serve(control)
    except ConnectionError:  # the launcher is gone
        os._exit(0)
    sys.argv = [sys.argv[0], str(launcher_end)]


def _hello(fd: int) -> Hello:
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return pickle.load(file)


# -- importing -------------------------------------------------------------------------------------------------------


def _import_all(hello: Hello, limit: int | None) -> tuple[str, ...]:
    """Make the import steps, and return them. Begins anew with fewer if one left something that a fork would break."""
    sys.path += [folder for folder in hello.sys_path if folder not in sys.path]
    done: list[str] = []
    for name, act in [*_steps(hello)][:limit]:
        try:
            act()
            found = hazards()
        except Exception as error:  # noqa: BLE001  a worker meets it again, and reports it
            traceback.print_exc()
            found = f"{type(error).__name__}: {error}"
        if found:
            _begin_anew(len(done), f"{name}: {found}")
        done.append(name)
    return tuple(done)


def _steps(hello: Hello) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "embodied.runtime.worker.worker", lambda: importlib.import_module("embodied.runtime.worker.worker")
    for target, kwargs in hello.envs:
        yield target, lambda target=target, kwargs=kwargs: _import_env(target, kwargs)  # type: ignore[misc]


def _import_env(target: str, kwargs: Mapping[str, Any]) -> None:
    """Import the module of an env's class, and what the env offers to import (:class:`embodied.protocols.Preloads`)."""
    from embodied.lib.targets import load_target

    make = load_target(target, "env._target_")
    if hasattr(make, "preload"):
        make(**kwargs).preload()


def hazards() -> str:
    """Returns what a fork of this process would break, such as threads and open devices; empty if nothing."""
    found = []
    threads = _threads()
    if threads:
        time.sleep(ENDING_S)  # threads that only the import needed may be about to end
        threads = _threads()
    if threads:
        found.append(f"{len(threads)} threads ({', '.join(threads)})")
    devices = sorted({link for link in map(_link, os.listdir("/proc/self/fd")) if link.startswith(DEVICES)})
    if devices:
        found.append(f"open devices {', '.join(devices)}")
    return "; ".join(found)


def _threads() -> list[str]:
    """Names of the threads beside the main one."""
    names = []
    for task in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
        with suppress(OSError):  # the thread has just ended
            names.append(Path(f"/proc/self/task/{task}/comm").read_text(encoding="utf-8").strip())
    return sorted(names)


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # it is the descriptor that listed them
        return ""


def _begin_anew(limit: int, refused: str) -> NoReturn:
    kept = {int(sys.argv[2]), int(sys.argv[3])}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept and _link(str(fd)):
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    print(f"the fork server begins anew: {refused}", flush=True)
    os.execv(sys.executable, [sys.executable, *sys.argv[:4], str(limit), refused])


# -- serving ---------------------------------------------------------------------------------------------------------


def _serve(control: socket.socket) -> int:
    """Fork and reap until the launcher is gone. Returns only in workers, each with its end of the socket."""
    children: dict[int, int] = {}  # pidfd → pid
    server = os.getpid()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in children:
                poll.unregister(fd)
                os.close(fd)
                pid, status = os.waitpid(children.pop(fd), 0)
                control.send(pickle.dumps(Ended(pid, os.waitstatus_to_exitcode(status))))
                continue
            data, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            if not data:
                raise ConnectionResetError("the launcher has closed its end")
            request = pickle.loads(data)
            pid, pidfd = _fork(control, request.number, fds)
            if pid == 0:
                end_with_parent(server)
                for inherited in children:
                    os.close(inherited)
                control.close()
                _become_worker(request, fds[-1])
                return fds[0]
            if pid > 0:
                children[pidfd] = pid
                poll.register(pidfd, select.POLLIN)


def _fork(control: socket.socket, number: int, fds: Sequence[int]) -> tuple[int, int]:
    """Fork a worker. Returns ``(pid, pidfd)``; pid is 0 in the child, and −1 if the kernel refused."""
    try:
        pid = os.fork()
    except OSError as error:
        control.send(pickle.dumps(Forked(number, -1, (), str(error))))
        pid, pidfd = -1, -1
    else:
        if pid == 0:
            return 0, -1
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [pickle.dumps(Forked(number, pid, tuple(fds)))], [pidfd])
    for fd in fds:
        os.close(fd)
    return pid, pidfd


def _become_worker(request: Request, log: int) -> None:
    """Switch a forked child to its own log and its own environment."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name, value in request.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "numpy" in sys.modules:  # else all workers would draw the same from its global generator
        sys.modules["numpy"].random.seed()
