"""Who waited for whom in a rollout: the share of idle slots, and a trace that Perfetto or chrome://tracing shows.

One lane for the policy and one for each env slot. Times of the simulators are those of the workers' own clock, which is
that of the launcher (CLOCK_MONOTONIC, one for all processes of a machine), so a lane shows when the work was done and
not when somebody noticed. What a lane of a slot can show: ``queued`` (its worker is busy with another slot, or its
batch waits for another's command), ``reset``, ``step``, ``render``, ``round`` (all of these, of a batch of slots
together), ``waits for the policy``, ``in vain`` (its worker failed meanwhile), ``lost`` (until a new one serves it); a
gap is a slot without an episode.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLICY, SLOTS = 1, 2  # "processes" of the trace; their "threads" are the lanes


@dataclass(frozen=True)
class Span:
    """Something that took from ``began`` to ``ended`` on one lane, monotonic seconds."""

    process: int
    lane: int
    name: str
    began: float
    ended: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Timeline:
    """What one rollout tells as it goes.

    Args:
        slots: those that are used.
        keep: remember every span for :meth:`write`; without it only the idle time is added up.
    """

    def __init__(self, slots: int, keep: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots, self._keep, self._clock = slots, keep, clock
        self._began = clock()
        self._sent: dict[int, float] = {}  # slot → when its present command was sent
        self._waits: dict[int, float] = {}  # slot → since when its observation waits for the policy
        self._lost: dict[int, float] = {}
        self._busy = 0.0
        self.spans: list[Span] = []

    def sent(self, slot: int) -> None:
        """A command goes to the slot."""
        now = self._sent[slot] = self._clock()
        if slot in self._waits:
            self._span(slot, "waits for the policy", self._waits.pop(slot), now)

    def worked(self, slot: int, began: float, parts: Mapping[str, float], waits: bool) -> None:
        """The slot has executed its command.

        Args:
            began: when its worker took it up.
            parts: seconds of what it then did, one after another.
            waits: it now waits for the policy.
        """
        sent, now = self._sent.pop(slot), began
        self._span(slot, "queued", sent, began)
        for name, seconds in parts.items():
            self._span(slot, name, now, now + seconds)
            now += seconds
        self._busy += now - sent
        if waits:
            self._waits[slot] = now

    def lost(self, slot: int) -> None:
        """The slot's worker has failed."""
        now = self._clock()
        if slot in self._sent:
            sent = self._sent.pop(slot)
            self._span(slot, "in vain", sent, now)
            self._busy += now - sent
        elif slot in self._waits:
            self._span(slot, "waits for the policy", self._waits.pop(slot), now)
        self._lost[slot] = now

    def back(self, slot: int) -> None:
        """A new worker serves the slot."""
        if slot in self._lost:
            self._span(slot, "lost", self._lost.pop(slot), self._clock())

    @contextmanager
    def policy(self) -> Iterator[list[object]]:
        """The policy works; what it has answered is put into the list."""
        began, answered = self._clock(), []  # type: float, list[object]
        yield answered
        if self._keep and (rows := len(answered)):
            self.spans.append(Span(POLICY, 0, f"policy, {rows} rows", began, self._clock(), {"rows": rows}))

    @property
    def slot_s(self) -> float:
        """Seconds so far, summed over the slots."""
        return self._slots * (self._clock() - self._began)

    @property
    def idle_s(self) -> float:
        """Of these, without a command: the slot waited for the policy or an episode."""
        return max(0.0, self.slot_s - self._busy)

    def write(self, path: Path) -> None:
        """The spans as a Chrome trace (JSON); open it at https://ui.perfetto.dev."""
        for slot in list(self._lost):
            self.back(slot)  # not yet, but the trace ends here
        lanes = sorted({(span.process, span.lane) for span in self.spans})
        events = [
            *(_name("process_name", process, 0, name) for process, name in ((POLICY, "policy"), (SLOTS, "env slots"))),
            *(
                _name("thread_name", process, lane, f"slot {lane}" if process == SLOTS else "policy")
                for process, lane in lanes
            ),
            *(self._event(span) for span in sorted(self.spans, key=lambda span: span.began)),
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))

    def _span(self, slot: int, name: str, began: float, ended: float) -> None:
        if self._keep and ended > began:
            self.spans.append(Span(SLOTS, slot, name, began, ended))

    def _event(self, span: Span) -> dict[str, Any]:
        return {
            "name": span.name, "ph": "X", "pid": span.process, "tid": span.lane,
            "ts": _microseconds(span.began - self._began),
            "dur": _microseconds(span.ended - self._began) - _microseconds(span.began - self._began),
            "args": dict(span.facts),
        }  # fmt: skip


def _microseconds(seconds: float) -> int:
    """Rounded before lengths are taken, so that what ends where the next begins does so in the trace as well."""
    return round(1e6 * seconds)


def _name(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
