"""Verifiers that may never end run in a process beside the worker, which is killed when their time is up.

Examples are ``9^{9^{9^9}}``, a ``while True`` in a function of the user, a regular expression that backtracks. In the
worker itself such a response would last until ``env.step_timeout_s``. The worker would be replaced and the episode
redone, with the same response and the same end, until the run ends. Here it costs one helper process and one counted
failure. The worker and its other episodes go on.

A helper is forked from the worker by the first response, and serves until it must be killed or dies. Imports come
before the fork, so that the next helper has them. Functions among a problem's fields are inherited with the fork as
well, and one that is new costs a new helper. The scorer of a reasoning-gym task may hold megabytes of words.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Protocol

from embodied.errors import EmbodiedError
from embodied.lib.child import end_with_parent

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict, Verifier

MAX_FUNCTIONS = 256
"""Functions that a helper inherits: reasoning-gym has some hundred tasks."""


@dataclass(frozen=True)
class Inherited:
    """Stands, in a pickled problem, for a function that the forked helper process has inherited."""

    number: int


class Unbounded(Verifier, Protocol):
    """Interface of a verifier that may take for ever, so that it is called in a helper process."""

    def load(self) -> None:
        """Import what verdicts need, in the worker and before helpers are forked."""
        ...


class Guarded:
    """Runs a verifier in a helper process, which is killed after ``timeout_s``.

    Args:
        timeout_s: for one verdict, seconds. The deadline of the env's step has to be longer than those of all guarded
            verifiers together.
    """

    def __init__(self, verifier: Unbounded, timeout_s: float = 10.0) -> None:
        self._verifier, self._timeout_s = verifier, timeout_s
        self._helper: Helper | None = None
        self._functions: dict[Callable[..., Any], int] = {}  # numbers of functions in this or the next helper

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the verifier raises, is not done in time, or its process ends. An error
        with a fix (:class:`EmbodiedError`) comes through as it is."""
        question = _pickled(self._inheriting(problem), response)
        helper = self._serving()
        try:
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

    def load(self) -> None:
        """Imports what verdicts need, so that helpers inherit it."""
        self._verifier.load()

    @property
    def longest_s(self) -> float:
        """Seconds that a verdict takes at most."""
        return self._timeout_s

    def close(self) -> None:
        """End the helper. The next question starts another one."""
        if self._helper is not None:
            self._helper.end()
            self._helper = None

    def _inheriting(self, problem: Problem) -> Problem:
        """The problem with numbers in place of the functions among its fields."""
        functions = [value for value in problem.fields.values() if _is_function(value)]
        new = [function for function in functions if function not in self._functions]
        if new:
            self.close()
            if len(self._functions) + len(new) > MAX_FUNCTIONS:
                self._functions.clear()
                new = functions
        for function in new:
            self._functions.setdefault(function, len(self._functions))
        fields = {
            name: Inherited(self._functions[value]) if _is_function(value) else value
            for name, value in problem.fields.items()
        }
        return replace(problem, fields=fields)

    def _serving(self) -> Helper:
        """The helper that serves, or a new one."""
        if self._helper is not None and not self._helper.alive:
            self.close()
        if self._helper is None:
            self.load()
            self._helper = Helper(self._verifier, tuple(self._functions))
        return self._helper

    def _buried(self) -> str:
        assert self._helper is not None
        code = self._helper.end()
        self._helper = None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


class Helper:
    """A forked helper process that judges responses with a verifier.

    It leads a process group, which is killed as a whole: what the verifier has started ends with it. The kernel ends
    the helper with its parent, and takes it first when memory runs out. One that nobody holds any more is ended too.
    """

    def __init__(self, verifier: Verifier, functions: Sequence[Callable[..., Any]]) -> None:
        self._pipe, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run(lambda: _serve(verifier, functions, theirs, self._pipe, parent))
        theirs.close()
        self._pidfd = os.pidfd_open(self._pid)
        with suppress(OSError):  # it has done so itself
            os.setpgid(self._pid, self._pid)
        self._ended = weakref.finalize(self, _end, self._pid, self._pidfd, parent)

    @property
    def alive(self) -> bool:
        """Whether the helper process still runs."""
        return not wait([self._pidfd], 0)

    def ask(self, question: bytes) -> None:
        """Sends a pickled question to the helper process."""
        self._pipe.send_bytes(question)

    def answer(self, timeout_s: float) -> tuple[Verdict | None, Exception | None]:
        """Waits for the verdict of the helper process, or its error.

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
        """Kills the helper and what it has started. Called once. Returns its exit status; negative is a signal."""
        status = self._ended()
        assert status is not None, "it was ended before"
        self._pipe.close()
        return status


def _end(pid: int, pidfd: int, parent: int) -> int:
    """Kill a helper's process group, and return the helper's exit status. In a fork of its parent it does nothing."""
    if os.getpid() != parent:
        return 0
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # no lib.child.Child, which starts programs: this is a fork
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    return os.waitstatus_to_exitcode(status)


def _is_function(value: Any) -> bool:
    """Whether it is a function or a method. Other objects that can be called are pickled like the rest."""
    return isinstance(value, FunctionType | MethodType | BuiltinFunctionType)


def _pickled(problem: Problem, response: str) -> bytes:
    try:
        return pickle.dumps((problem, response))
    except Exception as error:
        raise VerifierFailed(f"the problem cannot be pickled for the helper process: {error}") from error


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


def _serve(
    verifier: Verifier, functions: Sequence[Callable[..., Any]], ours: Connection, theirs: Connection, parent: int
) -> None:  # fmt: skip
    theirs.close()
    os.setpgid(0, 0)
    # Both are meant for the run. With a handler in place of SIG_IGN, programs that are started here get the default.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: None)
    end_with_parent(parent)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    while True:
        try:
            question = ours.recv_bytes()
        except EOFError:
            return
        ours.send_bytes(pickle.dumps(_judged(verifier, question, functions)))


def _judged(
    verifier: Verifier, question: bytes, functions: Sequence[Callable[..., Any]]
) -> tuple[Verdict | None, Exception | None]:
    try:
        problem, response = pickle.loads(question)
        fields = {
            name: functions[value.number] if isinstance(value, Inherited) else value
            for name, value in problem.fields.items()
        }
        return verifier(replace(problem, fields=fields), response), None
    except (EmbodiedError, VerifierFailed) as error:
        return None, error
    except (Exception, SystemExit) as error:  # noqa: BLE001 (any failure of any verifier costs one response)
        return None, VerifierFailed(f"it raised {described(error)}")


def described(error: BaseException) -> str:
    """Formats an error in one line, with the place where it was raised: ``ValueError: no number (my_rewards.py, line
    12)``."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{''.join(traceback.format_exception_only(error)).strip().splitlines()[-1]}{place}"
