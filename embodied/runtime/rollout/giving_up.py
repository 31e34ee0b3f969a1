"""Which episodes of an evaluation are given up because they cannot be run, and when it is not their fault.

    given up three times in a row ─▶ one that was run is run once more, alone ─┬─▶ it ends: the others go on
                                                                               └─▶ it fails: the port judges

Episodes that had begun in other workers and fail meanwhile wait for it, and then are tried again.
So what is given up depends neither on the order of the episodes nor on which worker is left alone with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embodied.types import Episode, EpisodeResult

GIVEN_UP_IN_A_ROW = 3
"""Episodes that could not be run, with none between that could; then it may be the machine."""
ELSEWHERE = (3, 8)
"""Share of the waiting episodes that is put off when one is given up; a few such steps come to different places."""


class GivingUp:
    """Counts the episodes that were given up with none between that could be run."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._redone: set[int] = set()  # ids of episodes that were lost with a worker
        self._witnesses: list[Episode] = []  # copies of episodes that were run, to see whether any can be

    @property
    def allowed(self) -> bool:
        """Whether an episode that cannot be run is to be taken for the cause. Else one runs at a time: an episode that
        cannot be run ends others with its worker."""
        return self._in_a_row < GIVEN_UP_IN_A_ROW

    def counts(self, episode: Episode) -> bool:
        """Returns whether a result of an episode is one of the plan: not of one that is run once more."""
        return not any(episode is one for one in self._witnesses)

    def judged_later(self, episode: Episode) -> bool:
        """Whether an episode that ended its worker waits for what the one shows that is run once more: it had begun
        before, in another worker."""
        return not self.allowed and bool(self._witnesses) and self.counts(episode)

    def lost(self, episode: Episode) -> None:
        """Notes an episode that was lost with its worker."""
        self._redone.add(episode.episode_id)

    def ended(self) -> None:
        """Notes that an episode could be run."""
        self._in_a_row = 0

    def next_ones(self, pending: Sequence[Episode], results: Sequence[EpisodeResult]) -> list[Episode]:
        """Orders the waiting episodes after one was given up. Those that were lost with a worker stay first; the others
        go on elsewhere in the plan, because neighbours may share what is broken.

        Args:
            results: the plan's so far.
        """
        self._in_a_row += 1
        redone = [one for one in pending if one.episode_id in self._redone]
        later = [one for one in pending if one.episode_id not in self._redone]
        onwards = len(later) * ELSEWHERE[0] // ELSEWHERE[1]
        ordered = [*redone, *later[onwards:], *later[:onwards]]
        if self.allowed or (ran := next((one for one in results if not one.not_run), None)) is None:
            return ordered
        self._witnesses.append(replace(ran.episode, video=None))
        return [self._witnesses[-1], *ordered]
