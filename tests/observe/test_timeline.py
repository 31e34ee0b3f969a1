"""Who waited for whom: shares from a clock that is told, and traces of real rollouts."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from itertools import pairwise

import pytest

from embodied.observe.timeline import POLICY, SLOTS, Timeline
from embodied.random import Stream
from embodied.runtime.plan import train_plan


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def lanes(events):
    """Spans of each lane, in order."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def assert_no_overlap(events):
    for spans in lanes(events).values():
        for before, after in pairwise(sorted(spans, key=lambda span: (span["ts"], span["ts"] + span["dur"]))):
            assert before["ts"] + before["dur"] <= after["ts"], (before, after)


def test_spans_are_those_of_the_workers_clock(tmp_path):
    clock = Clock()
    timeline = Timeline(slots=2, keep=True, clock=clock)
    timeline.sent(0)
    clock.now = 109.0  # noticed late
    timeline.worked(0, began=101.0, parts={"reset": 2.0, "render": 0.5}, waits=True)
    with timeline.policy() as answered:
        answered.append(None)
        clock.now = 110.0
    timeline.sent(0)
    clock.now = 120.0
    assert (timeline.slot_s, timeline.idle_s) == pytest.approx((40, 36.5))
    timeline.write(tmp_path / "trace" / "a.json")
    events = json.loads((tmp_path / "trace" / "a.json").read_text())["traceEvents"]
    got = {
        event["name"]: (event["pid"], event["tid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"
    }
    assert got == {
        "queued": (SLOTS, 0, 0, 1_000_000),
        "reset": (SLOTS, 0, 1_000_000, 2_000_000),
        "render": (SLOTS, 0, 3_000_000, 500_000),
        "waits for the policy": (SLOTS, 0, 3_500_000, 6_500_000),
        "policy, 1 rows": (POLICY, 0, 9_000_000, 1_000_000),
    }
    assert_no_overlap(events)


def test_a_lost_slot_is_shown_as_such():
    clock = Clock()
    timeline = Timeline(slots=1, keep=True, clock=clock)
    timeline.sent(0)
    clock.now = 103.0
    timeline.lost(0)
    clock.now = 107.0
    timeline.back(0)
    assert [(span.name, span.began, span.ended) for span in timeline.spans] == [
        ("in vain", 100.0, 103.0), ("lost", 103.0, 107.0)
    ]  # fmt: skip
    assert (timeline.slot_s, timeline.idle_s) == pytest.approx((7, 4))


def test_without_a_trace_nothing_is_remembered():
    timeline = Timeline(slots=1)
    timeline.sent(0)
    timeline.worked(0, timeline._sent[0], {"step": 0.1}, waits=True)
    with timeline.policy() as answered:
        answered += [None] * 3
        pass
    assert timeline.spans == []


@pytest.mark.parametrize("kill", [False, True])
def test_a_rollout_leaves_a_trace_of_all_it_did(make_rig, tmp_path, kill):
    rig = make_rig(slots=4, workers=2, step_s=0.001, success_distance=0.6, max_restarts=3)
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=8, group_size=2)

    def disturb(result):
        if kill and not killed:
            killed.append(rig.pool.pids[0])
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    rollout = rig.rollout(trace=tmp_path / "trace")
    results, stats = rollout.collect(plan, rig.job(), disturb)
    rollout.collect(plan, rig.job(stream=Stream.EVAL_NOISE))
    assert sorted(path.name for path in (tmp_path / "trace").iterdir()) == ["000001-train.json", "000002-eval.json"]
    trace = json.loads((tmp_path / "trace" / "000001-train.json").read_text())
    events = trace["traceEvents"]
    assert_no_overlap(events)
    by_lane = lanes(events)
    assert set(by_lane) == {(POLICY, 0), *((SLOTS, slot) for slot in range(4))}
    names = [event["name"] for event in events]
    rows = sum(event["args"]["rows"] for event in by_lane[POLICY, 0])
    if kill:
        assert rows >= stats.chunks
        assert names.count("lost") == 2 * stats.worker_restarts == 2
    else:
        assert rows == stats.chunks == names.count("step")
        assert names.count("reset") == len(results)
    assert 0 < stats.slot_idle_s < stats.slot_s
    assert {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"} == {
        (POLICY, "policy"), *((SLOTS, f"slot {slot}") for slot in range(4))
    }  # fmt: skip
