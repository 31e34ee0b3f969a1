"""The fork server from the launcher's side: one process that forks a run's env workers (``env.start_method``).

    launcher ◀── Begun, … Serving ── server                             it imports, and builds simulators
    launcher ── Request + descriptors ──▶ server ── fork ──▶ worker     which workers share until they write to them
    launcher ◀── Forked + pidfd ── server                               (pool/forking.py)
    launcher ◀── Ended (exit status) ── server ◀── wait ── worker

A worker's pidfd shows its death, as for any worker. Its exit status is known to the server alone, which is its parent.
The kernel ends the server with its launcher, and the workers with the server. A server that has ended is replaced when
the next worker is asked for.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from embodied.errors import WorkerDiedError, WorkerError, WorkerHungError
from embodied.lib.child import how_it_ended, tail
from embodied.runtime.pool.before_fork import EnvClass
from embodied.runtime.pool.forking import MAX_FDS, MESSAGE_BYTES, Ended, Forked, Hello, Request, Serving
from embodied.runtime.pool.placement import START, Gpu, module_folders, worker_environment

ANSWER_S = 60.0  # limit for a fork, and for an exit status; both take milliseconds, but the machine may be very busy
STACK_S = 0.2  # pause between asking a hung server for its stack and killing it


class ForkServer:
    """Forks workers; starts the server process anew when it has ended.

    Args:
        envs: whose imports are made, and whose simulators are built, before the first fork.
        gpus: as in PoolConfig; imports see the environment variables of worker 0.
        python: the workers' interpreter; None = the launcher's.
        timeout: seconds that an import or a build may take.
        say: given one line when something is left to the workers, or the process is replaced.
    """

    def __init__(
        self, envs: Sequence[EnvClass], log_dir: Path, timeout: float,
        gpus: Sequence[Gpu] = (), python: str | None = None, say: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self._hello = Hello(tuple(envs), module_folders(python, sys.path, (sys.prefix, sys.base_prefix)))
        self._environment = worker_environment(0, gpus, python)
        self._python, self._timeout, self._say = python or sys.executable, timeout, say
        log_dir.mkdir(parents=True, exist_ok=True)
        self._log = log_dir / "fork-server.log"
        self._log.unlink(missing_ok=True)
        self._process = self._start()

    def _start(self) -> ServerProcess:
        return ServerProcess(self._python, self._hello, self._environment, self._log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(
        self, inherited: Sequence[int], output: int, environment: Mapping[str, str]
    ) -> tuple[ForkedProcess, int, tuple[int, ...]]:
        """Fork a worker. Returns the process, its pidfd, and the numbers that the descriptors ``inherited`` have in it.

        Args:
            inherited: the first is the worker's end of the socket.
            output: descriptor that the worker prints to.

        Raises:
            WorkerDiedError, WorkerHungError: the server cannot serve, or the kernel gives no process.
        """
        for _ in range(2):
            if self._process.has_ended():
                self._say(f"{self._process.fate}; another takes its place")
                self._process = self._start()
            if not self._serves():
                raise self._failed()
            forked = self._process.fork([*inherited, output], self._differences(environment))
            if forked is not None:
                return forked
        raise self._failed()

    def _serves(self) -> bool:
        """Returns whether the server serves. Waits until it has made its steps."""
        server = self._process
        if server.serving is None:
            server.await_serving(self._timeout)
            if server.serving is not None and server.serving.refused:
                self._say(f"the fork server leaves it to each worker to {server.serving.refused}")
        return server.serving is not None

    def _differences(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        names = environment.keys() | self._environment.keys()
        return {n: environment.get(n) for n in sorted(names) if environment.get(n) != self._environment.get(n)}

    def _failed(self) -> WorkerError:
        what, remedy = self._process.fate, f"see {self._log}; env.start_method=spawn needs no such server"
        if self._process.hung:
            return WorkerHungError(f"{what}; it stood at:", f"raise env.init_timeout_s, or {remedy}", tail(self._log))
        return WorkerDiedError(what, remedy, tail(self._log))

    def close(self) -> None:
        """End the server; workers that it still has end with it."""
        self._process.end()


class ServerProcess:
    """A process of the fork server. ``fate`` says how it ended, once that is known."""

    def __init__(self, python: str, hello: Hello, environment: Mapping[str, str], log: Path) -> None:
        self.fate, self.hung = "", False
        self.serving: Serving | None = None
        self.log = log
        self._requests = 0
        self._codes: dict[int, int] = {}  # pid → return code, of workers that have ended
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        told = os.memfd_create("hello", os.MFD_CLOEXEC)
        with theirs, open(told, "wb") as file, log.open("ab") as output:
            pickle.dump(hello, file)
            file.flush()
            self._process = subprocess.Popen(  # no Child: it ends with its socket, and its forks with it
                [python, str(START), "--serve", str(theirs.fileno()), str(told)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(theirs.fileno(), told),
                env=environment,
            )  # fmt: skip
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        if self._process.poll() is not None:
            while self._receive(ANSWER_S, "after its end") is not None:  # messages sent before its end
                pass
        return bool(self.fate)

    def await_serving(self, timeout: float) -> None:
        """Waits until it serves, or has ended.

        Args:
            timeout: seconds for each step.
        """
        step = "start"
        while self.serving is None and (got := self._receive(timeout, f"when it was to {step}")) is not None:
            if isinstance(got[0], Serving):
                self.serving = got[0]
            else:
                step = got[0].step

    def fork(
        self, fds: Sequence[int], environment: Mapping[str, str | None]
    ) -> tuple[ForkedProcess, int, tuple[int, ...]] | None:
        """Fork as :meth:`ForkServer.fork` does, with the output last among ``fds``; None if the server ends
        meanwhile."""
        self._requests += 1
        self._socket.settimeout(ANSWER_S)
        try:
            socket.send_fds(self._socket, [pickle.dumps(Request(self._requests, environment))], fds)
        except OSError:
            self._bury()
            return None
        while (got := self._receive(ANSWER_S, "when asked for a worker")) is not None:
            message, received = got
            if isinstance(message, Forked) and message.number == self._requests:
                if message.error:
                    raise _refused(self.pid, message.error)
                return ForkedProcess(self, message.pid, received[0]), received[0], message.fds[:-1]
        return None

    def code_of(self, pid: int) -> int | None:
        """Return code of a worker that has ended; None if the server has ended too, as nobody knows it then."""
        while pid not in self._codes and self._receive(ANSWER_S, "when asked how a worker ended") is not None:
            pass
        return self._codes.pop(pid, None)

    def _receive(self, timeout: float, when: str) -> tuple[Any, list[int]] | None:
        """The next message with its descriptors; None if the server has ended. Ends a server that does not answer. The
        message may answer an earlier request, if a signal's exception came during the wait for it. The worker of that
        request ends by itself, since nobody holds the other end of its socket."""
        if self.fate:
            return None
        self._socket.settimeout(timeout)
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            self._end_hung(f"the fork server (pid {self.pid}) did not answer for {timeout:g} s {when}")
            return None
        except ConnectionError:
            data = b""
        if not data:
            self._bury()
            return None
        message = pickle.loads(data)
        if isinstance(message, Ended):
            self._codes[message.pid] = message.code
        return message, fds

    def _end_hung(self, fate: str) -> None:
        self._process.send_signal(signal.SIGUSR1)  # its stack goes to its log
        time.sleep(STACK_S)
        self.end()
        self.fate, self.hung = fate, True

    def _bury(self) -> None:
        """Reap the process. Its end of the socket is closed: it has ended, or is about to."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ANSWER_S)
        self.end()
        self.fate = f"the fork server (pid {self.pid}) {how_it_ended(self._process.wait())}"

    def end(self) -> None:
        """Kill the process unless it has ended; it has nothing to close."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self.fate = self.fate or f"the fork server (pid {self.pid}) was ended"


def _refused(pid: int, error: str) -> WorkerDiedError:
    """Returns what the kernel's ``error`` means, when it forks no worker."""
    message = f"the fork server (pid {pid}) could not fork a worker: {error}"
    if error.startswith(f"[Errno {errno.ENOMEM}]"):
        return WorkerDiedError(
            f"{message}; it holds what was built ahead, and Linux promises a fork all memory that it could write to",
            "set env.start_method=spawn, so that each worker builds its own; or, as root, sysctl "
            "vm.overcommit_memory=1, so that Linux promises nothing",
        )
    return WorkerDiedError(message, "lower env.num_workers, or raise the limit on processes (ulimit -u)")


class ForkedProcess:
    """A forked worker, with the part of :class:`subprocess.Popen` that the pool uses.

    ``orphaned`` says how the server ended, if the worker ended with it and its own status is not known.
    """

    def __init__(self, server: ServerProcess, pid: int, pidfd: int) -> None:
        self.pid, self.orphaned = pid, ""
        self.returncode: int | None = None
        self._server, self._pidfd = server, pidfd

    def wait(self, timeout: float | None = None) -> int:
        """Return code, when it has ended. Raises :class:`subprocess.TimeoutExpired`."""
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(f"env worker (pid {self.pid})", timeout or 0.0)
            code = self._server.code_of(self.pid)
            if code is None:
                self.orphaned, code = f"{self._server.fate} (its log: {self._server.log})", -signal.SIGKILL
            self.returncode = code
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
