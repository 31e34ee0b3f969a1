"""Limits how often workers may fail: each failure is reported once, and too many in a row end the run.

Failures are in a row if the worker finishes no episode between them. So a worker that dies now and then is replaced for
as long as the run lasts, and one that cannot work soon ends the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from embodied.errors import EnvsDifferError, WorkerError, is_explained

SAID_LINES = 12  # shown lines of a traceback or log; the log has all of it


class Supervisor:
    """Counts workers' failures in a row; ends the run after too many.

    Args:
        max_restarts: restarts of one worker in a row; the failure after that ends the run. 0: the first does.
        say: given one paragraph a failure.
        kind: what fails: worker, or simulator host.
    """

    def __init__(self, max_restarts: int, say: Callable[[str], None], kind: str = "worker") -> None:
        self._max, self._say, self._kind = max_restarts, say, kind
        self._in_a_row: Counter[int] = Counter()
        self._noticed = False
        self.total = 0  # failures that were survived

    def noticed(self, notices: Sequence[str]) -> None:
        """Prints the first notice of a worker; the other workers send the same."""
        if notices and not self._noticed:
            self._noticed = True
            self._say(notices[0])

    def finished_an_episode(self, worker: int) -> None:
        """Resets the worker's failures in a row."""
        self._in_a_row[worker] = 0

    def failed(self, worker: int, error: Exception, served: bool, log: object) -> None:
        """Report that a worker has ended with ``error``. Returns if it may be replaced.

        Args:
            served: the worker had started. Then an error that is explained (an EmbodiedError of the env) would come
                again on a new worker. While a replacement starts, such an error may be temporary, e.g. a GPU without
                memory. False also of one that is of a start alone: :meth:`episode_failed` is then told.

        Raises:
            Exception: ``error``, if it may not be replaced.
        """
        if self._max == 0 or isinstance(error, EnvsDifferError) or (served and not isinstance(error, WorkerError)):
            raise error
        self._in_a_row[worker] += 1
        count = self._in_a_row[worker]
        if count > self._max:
            raise _too_many(
                error, f"{self._kind} {worker} has failed {count} times in a row without finishing an episode"
            )
        self.total += 1
        self._say(
            f"{getattr(error, 'message', error)}\n{last_lines(getattr(error, 'detail', ''))}\n"
            f"  a new {self._kind} takes its place ({count} of env.max_worker_restarts {self._max} in a row) and "
            f"redoes its episodes; its log stays in {log}"
        )

    def episode_failed(self, error: Exception, episode: int, count: int, suspects: int) -> None:
        """Report an episode that was started ``count`` times in vain: each time a worker that was busy with it failed.

        Args:
            suspects: number of episodes that the worker was busy with, this one included; a batch is stepped as one.

        Raises:
            Exception: ``error``, if that is too often. One that is explained would come again.
        """
        if is_explained(error):
            raise error
        if count > self._max:
            others = f", or one of the {suspects - 1} stepped with it at last," if suspects > 1 else ""
            raise _too_many(error, f"episode {episode}{others} has ended {count} workers") from error


def _too_many(error: Exception, what: str) -> Exception:
    if not isinstance(error, WorkerError):
        return error
    remedy = f"{error.remedy}\n  or, if such failures are of the moment, raise env.max_worker_restarts"
    return type(error)(f"{what}, the last time:\n{error.message}", remedy, error.detail)


def last_lines(text: str) -> str:
    """Cuts a traceback or log to its end, marked as such."""
    return "\n".join(f"  | {line}" for line in text.rstrip().splitlines()[-SAID_LINES:])
