"""Who waited for whom: shares from a clock that is told, and traces of real rollouts."""

from __future__ import annotations

import json
import math
import os
import signal
from collections import defaultdict
from itertools import pairwise

import pytest

from embodied.observe.timeline import POLICY, SLOTS, Timeline
from embodied.random import Stream
from embodied.runtime.plan import train_plan
from embodied.runtime.rollout.traces import MOST_SPANS, Traces


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
    timeline = Timeline(slots=2, keep=math.inf, clock=clock)
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
    events = json.loads((tmp_path / "trace" / "a.json").read_text(encoding="utf-8"))["traceEvents"]
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
    timeline = Timeline(slots=1, keep=math.inf, clock=clock)
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
    rollout = rig.rollout(traces=Traces(tmp_path / "trace"))
    results, stats = rollout.collect(plan, rig.job(), disturb)
    rollout.collect(plan, rig.job(stream=Stream.EVAL_NOISE))
    assert sorted(path.name for path in (tmp_path / "trace").iterdir()) == ["000001-train.json", "000002-eval.json"]
    trace = json.loads((tmp_path / "trace" / "000001-train.json").read_text(encoding="utf-8"))
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


def test_the_first_traces_are_few_and_bounded(make_rig, tmp_path, monkeypatch):
    """Two of training, which are no refills and no greedy episodes, and two of evaluations, in all runs of a folder."""
    monkeypatch.setattr("embodied.runtime.rollout.traces.MOST_SPANS", 30)
    rig = make_rig(slots=2, workers=1)
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=4, group_size=2)

    def run(rollout, *jobs):
        for job in jobs:
            rollout.collect(plan, job)
            rollout.records.keep(())

    folder = tmp_path / "trace"
    rollout = rig.rollout(traces=Traces(folder, "first"))
    run(rollout, rig.job(version=0, keep_records=False))
    assert not folder.exists(), "greedy episodes of remax"
    noise = {"stream": Stream.EVAL_NOISE, "keep_records": False}
    run(rollout, rig.job(version=0), rig.job(version=0), rig.job(version=0, **noise))
    resumed = rig.rollout(traces=Traces(folder, "first"))
    run(resumed, *(rig.job(version=2 + number, **more) for number in range(3) for more in ({}, noise)))
    names = [f"{number:06d}-{side}.json" for number, side in enumerate(("train", "eval", "train", "eval"), start=1)]
    assert sorted(path.name for path in folder.iterdir()) == names
    for path in folder.iterdir():
        found = json.loads(path.read_text(encoding="utf-8"))
        spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
        assert len(spans) == 30
        assert found["otherData"]["spans_left_out"] > 0


def test_a_span_is_as_small_as_the_bound_says(tmp_path):
    """With the longest name, in a rollout of a day on a thousand slots."""
    clock = Clock()
    timeline = Timeline(slots=1000, keep=MOST_SPANS, clock=clock)
    for _ in range(MOST_SPANS + 5):
        timeline.sent(999)
        clock.now += 4.320001
        timeline.worked(999, clock.now, {}, waits=True)
        clock.now += 0.123456
    timeline.write(tmp_path / "trace.json")
    size = (tmp_path / "trace.json").stat().st_size
    assert size < 125 * MOST_SPANS
    assert len(timeline.spans) == MOST_SPANS


def test_a_trace_that_cannot_be_written_ends_no_rollout(make_rig, tmp_path):
    (tmp_path / "trace").write_text("a file", encoding="utf-8")
    rig, said = make_rig(slots=2, workers=1), []
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=2, group_size=2)
    results, _ = rig.rollout(traces=Traces(tmp_path / "trace", "first", said.append)).collect(plan, rig.job())
    assert len(results) == 2
    assert ["was not written" in text for text in said] == [True]
