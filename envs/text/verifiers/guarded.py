"""Verifiers that may never end run in a process beside the worker, which is killed when their time is up.

Examples are ``9^{9^{9^9}}``, a ``while True`` in a function of the user, a regular expression that backtracks. In the
worker itself such a response would last until ``env.step_timeout_s``. The worker would be replaced and the episode
redone, with the same response and the same end, until the run ends. Here it costs one helper process and one counted
failure. The worker and its other episodes go on.

A helper is forked from the worker by the first response, and serves until it must be killed or dies. Imports come
before the fork, so that the next helper has them.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol

from embodied.errors import EmbodiedError

from ..verdict import Problem, Verdict, Verifier
from .failures import VerifierFailed

PR_SET_PDEATHSIG = 1

Question = tuple[Problem, str]


class Unbounded(Verifier, Protocol):
    """A verifier whose time has no bound."""

    def load(self) -> None:
        """Import what verdicts need, in the worker and before helpers are forked."""
        ...


class Guarded:
    """Asks a verifier in a helper process.

    Args:
        timeout_s: for one verdict, seconds. The deadline of the env's step has to be longer than those of all guarded
            verifiers together.
    """

    def __init__(self, verifier: Unbounded, timeout_s: float = 10.0) -> None:
        self._verifier, self._timeout_s = verifier, timeout_s
        self._helper: Helper | None = None

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the verifier raises, is not done in time, or its process ends. An error
        with a fix (:class:`EmbodiedError`) comes through as it is."""
        question = _pickled((problem, response))
        helper = self._serving(None if question else (problem, response))
        try:
            if question:
                helper.ask(question)
            verdict, error = helper.answer(self._timeout_s)
        except TimeoutError:
            self.close()
            raise VerifierFailed(f"it was not done within verify_timeout_s {self._timeout_s:g} s", "timeouts") from None
        except (EOFError, OSError):
            raise VerifierFailed(f"its process {self._buried()}", "deaths") from None
        if error is not None:
            raise error
        assert verdict is not None
        return verdict

    @property
    def longest_s(self) -> float:
        """Seconds that a verdict takes at most."""
        return self._timeout_s

    def close(self) -> None:
        """End the helper. The next question starts another one."""
        if self._helper is not None:
            self._helper.end()
            self._helper = None

    def _serving(self, inherited: Question | None) -> Helper:
        """The helper that serves, or a new one. What cannot be pickled (a lambda among the fields) is inherited by a
        helper of its own, with the fork."""
        if self._helper is not None and (inherited or not self._helper.alive):
            self.close()
        if self._helper is None:
            self._verifier.load()
            self._helper = Helper(self._verifier, inherited)
        return self._helper

    def _buried(self) -> str:
        assert self._helper is not None
        code = self._helper.end()
        self._helper = None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


class Helper:
    """A forked process that answers questions with a verifier.

    It leads a process group, which is killed as a whole: what the verifier has started ends with it. The kernel ends
    the helper with its parent, and takes it first when memory runs out.
    """

    def __init__(self, verifier: Verifier, first: Question | None) -> None:
        self._pipe, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run(lambda: _serve(verifier, first, theirs, self._pipe, parent))
        theirs.close()
        self._pidfd = os.pidfd_open(self._pid)
        with suppress(OSError):  # it has done so itself
            os.setpgid(self._pid, self._pid)

    @property
    def alive(self) -> bool:
        return not wait([self._pidfd], 0)

    def ask(self, question: bytes) -> None:
        self._pipe.send_bytes(question)

    def answer(self, timeout_s: float) -> tuple[Verdict | None, Exception | None]:
        """Wait for a verdict, or what came instead of it.

        Raises:
            TimeoutError: it does not come in time.
            EOFError: the process has ended.
        """
        ready = wait([self._pipe, self._pidfd], timeout_s)
        if not ready:
            raise TimeoutError
        if self._pipe not in ready:
            raise EOFError
        verdict, error = pickle.loads(self._pipe.recv_bytes())
        return verdict, error

    def end(self) -> int:
        """Kill it and what it has started. Returns its exit status; negative is a signal."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._pidfd)
        self._pipe.close()
        return os.waitstatus_to_exitcode(status)


def _pickled(question: Question) -> bytes | None:
    """The question in bytes; None if it cannot be pickled."""
    try:
        return pickle.dumps(question)
    except Exception:  # noqa: BLE001 (objects of users raise what they like)
        return None


def _run(serve: Callable[[], None]) -> None:
    """Run the helper to its end. It leaves without the clean-up of the process that it is a copy of."""
    code = 1
    try:
        serve()
        code = 0
    except BaseException:  # noqa: BLE001 (nothing may get out of here: above is the code of the worker)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(verifier: Verifier, first: Question | None, ours: Connection, theirs: Connection, parent: int) -> None:
    theirs.close()
    os.setpgid(0, 0)
    for stop in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # they are meant for the run, and programs started here get the default
        signal.signal(stop, lambda *_: None)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if first is not None:
        ours.send_bytes(pickle.dumps(_judged(verifier, *first)))
    while True:
        try:
            question = ours.recv_bytes()
        except EOFError:
            return
        ours.send_bytes(pickle.dumps(_judged(verifier, *pickle.loads(question))))


def _judged(verifier: Verifier, problem: Problem, response: str) -> tuple[Verdict | None, Exception | None]:
    try:
        return verifier(problem, response), None
    except (EmbodiedError, VerifierFailed) as error:
        return None, error
    except (Exception, SystemExit) as error:  # noqa: BLE001 (any failure of any verifier costs one response)
        return None, VerifierFailed(f"it raised {described(error)}")


def described(error: BaseException) -> str:
    """An error in one line, with the place where it was raised: ``ValueError: no number (my_rewards.py, line 12)``."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{''.join(traceback.format_exception_only(error)).strip().splitlines()[-1]}{place}"
