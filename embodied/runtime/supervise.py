"""How often workers may fail: each failure is said once, and too many in a row end the run.

A failure in a row is one after which that worker has finished no episode yet: a worker that dies now and then is
replaced for as long as the run lasts, one that cannot work ends it soon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from embodied.errors import WorkerError

SAID_LINES = 12  # of a traceback or log; the whole is in the log


class Supervisor:
    """Counts failures.

    Args:
        max_restarts: of one worker in a row; the failure after that ends the run. 0: the first does.
        say: given one paragraph a failure.
    """

    def __init__(self, max_restarts: int, say: Callable[[str], None]) -> None:
        self._max, self._say = max_restarts, say
        self._in_a_row: Counter[int] = Counter()
        self.total = 0  # failures that were survived

    def finished_an_episode(self, worker: int) -> None:
        self._in_a_row[worker] = 0

    def failed(self, worker: int, error: Exception, served: bool, log: object) -> None:
        """A worker has ended with ``error``. Returns if it may be replaced.

        Args:
            served: it had started. Then an error that is explained (an EmbodiedError of the env) would come again on a
                new worker; while a replacement starts it may be of the moment, such as a GPU without memory.

        Raises:
            Exception: ``error``, if it may not be replaced.
        """
        if self._max == 0 or (served and not isinstance(error, WorkerError)):
            raise error
        self._in_a_row[worker] += 1
        count = self._in_a_row[worker]
        if count > self._max:
            raise _too_many(error, f"worker {worker} has failed {count} times in a row without finishing an episode")
        self.total += 1
        self._say(
            f"{getattr(error, 'message', error)}\n{_last_lines(getattr(error, 'detail', ''))}\n"
            f"  a new worker takes its place ({count} of env.max_worker_restarts {self._max} in a row) and redoes its "
            f"episodes; its log stays in {log}"
        )

    def episode_failed(self, error: Exception, episode: int, count: int, suspects: int) -> None:
        """An episode that a worker was busy with when it failed has been started ``count`` times in vain.

        Args:
            suspects: episodes that the worker was busy with, this among them: a batch is stepped as one.

        Raises:
            Exception: ``error``, if that is too often.
        """
        if count > self._max:
            others = f", or one of the {suspects - 1} stepped with it at last," if suspects > 1 else ""
            raise _too_many(error, f"episode {episode}{others} has ended {count} workers") from error


def _too_many(error: Exception, what: str) -> Exception:
    if not isinstance(error, WorkerError):
        return error
    remedy = f"{error.remedy}\n  or, if such failures are of the moment, raise env.max_worker_restarts"
    return type(error)(f"{what}, the last time:\n{error.message}", remedy, error.detail)


def _last_lines(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.rstrip().splitlines()[-SAID_LINES:])
