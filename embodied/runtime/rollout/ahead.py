"""Slots that go to the starts of episodes whose plan runs next, while something else is done, such as an update.

    reset_ahead(plan, job) ──RESET──▶ slot       returns at once; no row is taken, nothing is observed
    collect(plan, job)     ──OBSERVE─▶ slot ──▶ policy …

It changes no number: an episode is a function of its start and the weights that act in it, and what the policy sees
was observed after :meth:`Rollout.collect` has begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embodied.observe.timeline import Timeline
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.rollout.episodes import Episodes
from embodied.runtime.rollout.several import Several
from embodied.types import Episode


@dataclass
class Arriving:
    """Slots that were sent ahead and have not said that they are there."""

    observes: dict[int, Command | None] = field(default_factory=dict)  # slot → what it is to do there; None = nothing
    since: float = 0.0  # monotonic time since which the rollout waits for them

    @classmethod
    def of(cls, ahead: Mapping[int, Episode], episodes: Episodes | Several, timeline: Timeline, now: float) -> Arriving:
        """Begins those episodes whose slots were sent ahead. A slot whose episode is in no plan gets another one once
        it is there."""
        observes: dict[int, Command | None] = {}
        for slot, episode in ahead.items():
            timeline.sent(slot)
            observes[slot] = None
            if episode in episodes.pending and episodes.may_start:
                command, _, _ = episodes.start(slot, episodes.pending.index(episode))
                observes[slot] = Command(Kind.OBSERVE, slot, next_row=command.next_row)
        return cls(observes, now)

    def arrive(self, done: Completion, timeline: Timeline) -> Command | None:
        """Returns what a slot is to do that has been reset; its reset counts from when it was waited for."""
        began = max(self.since, done.began)
        timeline.worked(done.slot, began, {"reset": max(0.0, done.finished - began)}, waits=False)
        return self.observes.pop(done.slot)
