"""Translates the clock of a host to that of the rollout."""

from __future__ import annotations

MINUTE = 60.0  # seconds


class Clock:
    """Translates times of another machine: both count from a start of their own.

    The difference is the smallest that a frame has shown in this minute or the one before: frames that were late show a
    larger one, and the clocks drift apart.
    """

    def __init__(self) -> None:
        self._minute, self._now, self._before = 0.0, float("inf"), float("inf")

    def heard(self, theirs: float, ours: float) -> None:
        """Notes that a frame of their time came at our time, both seconds."""
        if ours >= self._minute + MINUTE:
            self._minute, self._before, self._now = ours, self._now, float("inf")
        self._now = min(self._now, ours - theirs)

    def ours(self, theirs: float) -> float:
        """Returns our time of their time."""
        return theirs + min(self._now, self._before)
