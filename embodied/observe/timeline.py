"""Records waiting times of a rollout: the share of idle slots, and a trace for Perfetto or chrome://tracing.

The policy has one lane, and so has each env slot. Workers take the times of simulators themselves, by the clock that
all processes of a machine share (CLOCK_MONOTONIC). A lane therefore shows when the work was done, not when the launcher
noticed. A slot's lane can show: ``queued`` (its worker is busy with another slot, or its batch waits for another slot's
command), ``reset``, ``step``, ``render``, ``round`` (all of these, for a whole batch of slots), ``waits for the
policy``, ``in vain`` (its worker failed meanwhile), ``lost`` (until a new worker serves it). A gap is a slot without an
episode.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied.lib.whole import write_whole

POLICY, SLOTS = 1, 2  # "processes" of the trace; their "threads" are the lanes


@dataclass(frozen=True)
class Span:
    """Work or waiting on one lane from ``began`` to ``ended``, monotonic seconds."""

    process: int
    lane: int
    name: str
    began: float
    ended: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Timeline:
    """Collects the spans of one rollout (work and waiting of slots and policy), for a trace.

    Args:
        slots: number of used slots.
        keep: spans that are kept for :meth:`write`, the first ones; with 0 only the idle time is summed.
    """

    def __init__(self, slots: int, keep: float = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots, self._keep, self._clock = slots, keep, clock
        self._began = clock()
        self._sent: dict[int, float] = {}  # slot → time when its present command was sent
        self._waits: dict[int, float] = {}  # slot → time since which its observation waits for the policy
        self._lost: dict[int, float] = {}
        self._busy = 0.0
        self.spans: list[Span] = []
        self._left_out = 0  # spans beyond those that are kept

    def take_over(self, before: Timeline) -> None:
        """Takes over what slots do at the end of the timeline ``before``, as if they had just begun with it."""
        self._sent, self._waits, self._lost = (
            dict.fromkeys(since, self._began) for since in (before._sent, before._waits, before._lost)
        )

    def sent(self, slot: int) -> None:
        """Notes that a command goes to the env slot."""
        now = self._sent[slot] = self._clock()
        if slot in self._waits:
            self._span(slot, "waits for the policy", self._waits.pop(slot), now)

    def worked(self, slot: int, began: float, parts: Mapping[str, float], waits: bool) -> None:
        """Notes that the env slot has executed its command, and for how long it worked at what.

        Args:
            began: time when its worker started on it.
            parts: name → seconds of its steps, one after another.
            waits: whether the slot now waits for the policy.
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
        """Notes that the env slot's worker has failed."""
        now = self._clock()
        if slot in self._sent:
            sent = self._sent.pop(slot)
            self._span(slot, "in vain", sent, now)
            self._busy += now - sent
        elif slot in self._waits:
            self._span(slot, "waits for the policy", self._waits.pop(slot), now)
        self._lost[slot] = now

    def back(self, slot: int) -> None:
        """Notes that a new worker serves the env slot."""
        if slot in self._lost:
            self._span(slot, "lost", self._lost.pop(slot), self._clock())

    @contextmanager
    def policy(self) -> Iterator[list[object]]:
        """Time a call of the policy. The caller puts what it has answered into the list."""
        began, answered = self._clock(), []  # type: float, list[object]
        yield answered
        if self._keep and (rows := len(answered)):
            self._add(Span(POLICY, 0, f"policy, {rows} rows", began, self._clock(), {"rows": rows}))

    @property
    def slot_s(self) -> float:
        """Seconds since the rollout began, times its slots."""
        return self._slots * (self._clock() - self._began)

    @property
    def idle_s(self) -> float:
        """Seconds of :attr:`slot_s` without a command: the slot waited for the policy or an episode."""
        return max(0.0, self.slot_s - self._busy)

    def write(self, path: Path) -> None:
        """Write the spans as a Chrome trace (JSON); open it at https://ui.perfetto.dev."""
        for slot in list(self._lost):
            self.back(slot)  # no new worker is there yet, but the trace ends here
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
        whole = {"displayTimeUnit": "ms", "otherData": {"spans_left_out": self._left_out}, "traceEvents": events}
        write_whole(path, json.dumps(whole))

    def _span(self, slot: int, name: str, began: float, ended: float) -> None:
        if self._keep and ended > began:
            self._add(Span(SLOTS, slot, name, began, ended))

    def _add(self, span: Span) -> None:
        if len(self.spans) < self._keep:
            self.spans.append(span)
        else:
            self._left_out += 1

    def _event(self, span: Span) -> dict[str, Any]:
        return {
            "name": span.name, "ph": "X", "pid": span.process, "tid": span.lane,
            "ts": _microseconds(span.began - self._began),
            "dur": _microseconds(span.ended - self._began) - _microseconds(span.began - self._began),
            "args": dict(span.facts),
        }  # fmt: skip


def _microseconds(seconds: float) -> int:
    """Round times before lengths are computed: spans that touch then touch in the trace too."""
    return round(1e6 * seconds)


def _name(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
