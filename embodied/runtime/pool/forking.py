"""The process of the fork server: imports modules and builds simulators once, and forks env workers that have them.

Started by :mod:`embodied.runtime.pool.fork_server` through :mod:`embodied.runtime.pool.start_worker`. It has one thread
and no open device, so that a fork breaks nothing of its state (:mod:`embodied.runtime.pool.before_fork`).

It imports nothing but the standard library by itself: numpy is a step like the others.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from embodied.lib.child import end_with_parent
from embodied.runtime.pool.before_fork import EnvClass, Refused, link_of, make_steps

MESSAGE_BYTES = 2**16
MAX_FDS = 16


@dataclass(frozen=True)
class Hello:
    """First message to the fork server: which envs to import. It comes in a memfd, so that the server can read it again
    when it begins anew."""

    envs: tuple[EnvClass, ...]
    sys_path: tuple[str, ...]  # see embodied.runtime.messages.WorkerSetup


class Begun(NamedTuple):
    """Message of the fork server: it makes this step now."""

    step: str


class Serving(NamedTuple):
    """Message of the fork server: it forks from now on; which steps workers inherit, and why others were left out."""

    steps: tuple[str, ...]  # what workers inherit
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
    try:
        serving = _prepare(control)
        gc.collect()
        gc.freeze()  # a collection in a worker would write to, and so copy, every page that it has inherited
        ctypes.CDLL(None).fflush(None)  # else each worker would print what C libraries still buffer
        control.send(pickle.dumps(serving))
        launcher_end = _serve(control)
    except ConnectionError:  # the launcher is gone
        os._exit(0)
    sys.argv = [sys.argv[0], str(launcher_end)]


def _prepare(control: socket.socket) -> Serving:
    """Makes the steps before the first fork. Does not return if a step has left what a fork would break."""
    fd = int(sys.argv[3])
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        hello: Hello = pickle.load(file)
    sys.path += [folder for folder in hello.sys_path if folder not in sys.path]
    before = Refused(*sys.argv[4:])
    made = make_steps(hello.envs, before, lambda step: control.send(pickle.dumps(Begun(step))))
    if made.hazard:
        _begin_anew({control.fileno(), fd}, made.refused)
    os.close(fd)
    return Serving(made.steps, made.refused.why)


def _begin_anew(kept: Container[int], refused: Refused) -> NoReturn:
    """Starts this program again, without the steps that are refused: what was imported or built cannot be undone."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept and link_of(str(fd)):
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    print(f"the fork server begins anew: {refused.why}", flush=True)
    os.execv(sys.executable, [sys.executable, *sys.argv[:4], *refused])


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
