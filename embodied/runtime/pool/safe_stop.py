"""Guardian: a process beside each worker of a robot, which stops the robot before that worker is killed.

    launcher ── setup ──────▶ guardian    it imports the env's class at once: a stop must not wait for imports
    launcher ◀── ready ────── guardian
    launcher ── Watch(pid) ─▶ guardian    the worker runs now
    launcher ── STOP ───────▶ guardian ── env.safe_stop()
    launcher ◀── Done ─────── guardian    within ``env.safe_stop_timeout_s``; then the worker is killed
    launcher ── DISMISS ────▶ guardian    the worker has ended in order: nothing is stopped

The worker is frozen (SIGSTOP) before the robot is stopped, so that it commands nothing afterwards. If the launcher is
killed, the guardian sees the end of their socket, freezes the worker, stops the robot and kills the worker. Only envs
with ``EnvSpec.retry_safe=False`` have such a process (:class:`embodied.protocols.SafeStop`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from embodied.errors import SafeStopError
from embodied.lib.child import Child, tail
from embodied.lib.targets import load_target
from embodied.protocols import SafeStop
from embodied.runtime.messages import receive, send
from embodied.runtime.pool.placement import START, module_folders


@dataclass(frozen=True)
class Setup:
    """First message to a guardian process, which stops a robot: the env's class and how to make it."""

    env_target: str
    env_kwargs: Mapping[str, Any]
    sys_path: tuple[str, ...]  # see embodied.runtime.messages.WorkerSetup
    timeout_s: float  # longest time that a stop may take


@dataclass(frozen=True)
class Watch:
    """Message to a guardian process: the worker that the robot belongs to."""

    pid: int


@dataclass(frozen=True)
class Done:
    """Message of a guardian process: set-up or stop is done."""

    error: str = ""  # a traceback; empty if all is well


STOP, DISMISS = "stop", "dismiss"
FREEZE_S = 2.0  # limit for a process to stand still after SIGSTOP; it must be scheduled for that


class Guardian:
    """The launcher's end of a guardian: a process that stops a robot when its worker cannot.

    Args:
        python: the worker's interpreter; None = this one.
        start_s: seconds that its start may take.

    Raises:
        SafeStopError: it cannot start, so the robot could not be stopped.
    """

    def __init__(self, setup: Setup, python: str | None, log: Path, start_s: float) -> None:
        self._timeout_s, self._log = setup.timeout_s, log
        self._socket, theirs = socket.socketpair()
        with theirs, log.open("wb") as output:
            self._process = Child(
                [python or sys.executable, str(START), "--safe-stop", str(theirs.fileno())],
                death=None,  # it stops the robot when the launcher is killed
                stdout=output, stderr=output, pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        try:
            self._ask(setup, start_s, "cannot be started")
        except BaseException:
            self._end()
            raise

    @staticmethod
    def setup(target: str, kwargs: Mapping[str, Any], python: str | None, timeout_s: float) -> Setup:
        """Makes the first message to a guardian."""
        return Setup(target, kwargs, module_folders(python, sys.path, (sys.prefix, sys.base_prefix)), timeout_s)

    def watch(self, pid: int) -> None:
        """Tells the guardian the worker that it has to kill if the launcher is killed."""
        with suppress(OSError):  # it has ended; a stop will say so
            send(self._socket, Watch(pid))

    def stop(self) -> None:
        """Stop the robot; returns when it stands.

        Raises:
            SafeStopError: the hook raised, took too long, or its process has ended.
        """
        self._ask(STOP, self._timeout_s, "failed")

    def dismiss(self) -> None:
        """End the process; the worker has ended."""
        with suppress(OSError):
            send(self._socket, DISMISS)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._end()

    def _ask(self, message: object, seconds: float, what: str) -> None:
        self._socket.settimeout(seconds)
        try:
            send(self._socket, message)
            done = receive(self._socket)
        except TimeoutError as error:
            raise self._failed(f"{what}: no answer within {seconds:g} s", tail(self._log)) from error
        except (OSError, EOFError) as error:
            raise self._failed(f"{what}: its process has ended", tail(self._log)) from error
        if done.error:
            raise self._failed(what, done.error)

    def _failed(self, what: str, detail: str) -> SafeStopError:
        return SafeStopError(
            f"THE ROBOT MAY STILL MOVE. The safe-stop hook of the env {what}\n{detail.rstrip()}",
            "stop the robot by hand; then mend safe_stop() of the env, or raise env.safe_stop_timeout_s. "
            f"Its log: {self._log}",
        )

    def _end(self) -> None:
        self._process.end()
        self._socket.close()


# -- the process -----------------------------------------------------------------------------------------------------


class Worker(NamedTuple):
    """The worker process that the robot belongs to."""

    pid: int
    pidfd: int


def main() -> int:
    """Runs the guardian of one launcher; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    launcher = socket.socket(fileno=int(sys.argv[2]))
    setup: Setup = receive(launcher)
    sys.path += [folder for folder in setup.sys_path if folder not in sys.path]
    try:
        env: SafeStop = load_target(setup.env_target, "env._target_")(**setup.env_kwargs)
        _ = env.safe_stop  # fails now, before the robot moves, if the hook is missing
    except Exception:  # noqa: BLE001  whatever an env raises is told to the launcher
        send(launcher, Done(traceback.format_exc()))
        return 1
    send(launcher, Done())
    worker: Worker | None = None
    while True:
        try:
            message = receive(launcher)
        except (EOFError, OSError):
            _launcher_is_gone(env, worker, setup.timeout_s)
        if message == DISMISS:
            return 0
        if isinstance(message, Watch):
            with suppress(ProcessLookupError):  # it has ended already
                worker = Worker(message.pid, os.pidfd_open(message.pid))
        else:
            send(launcher, Done(_stop(env)))


def _stop(env: SafeStop) -> str:
    """Calls the hook; returns its traceback, or nothing."""
    began = time.monotonic()
    try:
        env.safe_stop()
    except Exception:  # noqa: BLE001  whatever an env raises is told to the launcher
        return traceback.format_exc()
    print(f"safe_stop() took {time.monotonic() - began:.3f} s", flush=True)
    return ""


def _launcher_is_gone(env: SafeStop, worker: Worker | None, timeout_s: float) -> NoReturn:
    """Stops the robot and kills the worker, the latter also if the hook does not come back."""
    print("the launcher has ended without a word: stopping the robot", flush=True)
    if worker is not None:
        _signal(worker, signal.SIGSTOP)
        await_frozen(worker.pid)
    limit = threading.Timer(timeout_s, _kill_and_end, (worker, f"safe_stop() did not end within {timeout_s:g} s"))
    limit.daemon = True
    limit.start()
    _kill_and_end(worker, _stop(env))


def _kill_and_end(worker: Worker | None, said: str) -> NoReturn:
    if said:
        print(f"THE ROBOT MAY STILL MOVE. {said}", file=sys.stderr, flush=True)
    _signal(worker, signal.SIGKILL)
    os._exit(1 if said else 0)


def _signal(worker: Worker | None, number: int) -> None:
    if worker is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.pidfd, number)


def await_frozen(pid: int) -> None:
    """Wait until a process that was sent SIGSTOP stands still, or has ended."""
    until = time.monotonic() + FREEZE_S
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state in "TtZX":
            return
        time.sleep(0.001)
