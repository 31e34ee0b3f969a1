"""Progress of a phase of a run: counts, facts beside them, and an estimate of the remaining time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

Fact = float | str


class Phase:
    """The progress of a phase of a run, e.g. a rollout of 64 episodes.

    Args:
        name: text shown for the phase.
        total: how many there are to do; None = unknown, and only the time is shown.
        changed: called after every change.
        clock: gives seconds.
        done: how many were there before the phase began.
    """

    def __init__(
        self, name: str, total: int | None, changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic, done: int = 0,
    ) -> None:  # fmt: skip
        self.name, self.total, self.done = name, total, done
        self._changed, self._clock = changed, clock
        self._began = clock()
        self._facts: dict[str, Fact] = {}
        self._finer = 0.0
        self._first = self.share

    def advance(self, n: int = 1, **facts: Fact) -> None:
        """Counts ``n`` more items as done, and shows facts beside the count.

        ``facts`` are shown beside the count and stay until they are given again, e.g.
        ``success="12/30", env_steps_per_s=812.0`` → ``success 12/30  env steps per s 812``.
        """
        self.done += n
        self._facts |= facts
        self._changed()

    def at(self, share: float) -> None:
        """Set the share (0 to 1) of the work that is done. It is finer than the count if one item takes long."""
        self._finer = share
        self._changed()

    @property
    def share(self) -> float:
        """Share of the work that is done, 0 to 1."""
        return max(self._finer, self.done / self.total) if self.total else self._finer

    @property
    def elapsed_s(self) -> float:
        """Seconds since the phase began."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float | None:
        """Seconds until the end, at the speed so far; None before anything is done."""
        made = self.share - self._first
        return self.elapsed_s * (1 - self.share) / made if made > 0 else None

    @property
    def count(self) -> str:
        """The count as text: ``48/64``, or empty if there is no total."""
        return f"{self.done}/{self.total}" if self.total is not None else ""

    @property
    def facts(self) -> str:
        """The facts beside the count, as they are shown."""
        return shown_facts(self._facts)

    @property
    def left(self) -> str:
        """``about 5 min left``; empty at the end and as long as there is no estimate."""
        seconds = self.left_s
        return f"about {duration(seconds)} left" if seconds else ""

    def line(self) -> str:
        """Formats the phase in one line: ``iteration 3/100 rollout: 48/64  success 12/48  elapsed 30.0 s  about 10 s
        left``."""
        parts = [self.count, self.facts, f"elapsed {self.elapsed_s:.1f} s", self.left]
        return f"{self.name}: " + "  ".join(filter(None, parts))


def duration(seconds: float) -> str:
    """Formats seconds as short text for a person.

    >>> [duration(s) for s in (0.2, 47, 330, 5000, 200000)]
    ['1 s', '47 s', '6 min', '1.4 h', '56 h']
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    if seconds < 3600:
        return f"{round(seconds / 60)} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"


def shown_facts(facts: Mapping[str, Fact]) -> str:
    """Formats facts in one line: ``success 12/30  env steps per s 812``."""
    return "  ".join(f"{name.replace('_', ' ')} {shown_number(value)}" for name, value in facts.items())


def shown_number(value: Fact) -> str:
    """Formats a number with three significant digits, without exponent at usual sizes: 0.0123, 1.5, 812, 12345."""
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
