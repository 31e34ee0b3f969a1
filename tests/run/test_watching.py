"""What a run says of its own work, and when it ends it."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from math import inf
from types import SimpleNamespace

import pytest
import torch

from embodied.errors import Stopped
from embodied.learn.step.passes import until_stopped
from embodied.observe.terminal.console import NullConsole
from embodied.observe.terminal.progress import Phase
from embodied.parallel.group import Group
from embodied.run.folder import pace
from embodied.run.folder.pace import Pace, skipped_updates, starved
from embodied.run.folder.reporter import Expected, Reporter
from embodied.runtime.signals import StopSignal
from embodied.schema import LoggerConfig, RunnerConfig


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("embodied.runtime.signals.time.monotonic", clock)
    monkeypatch.setattr(pace, "monotonic", clock)
    return clock


def test_work_is_granted_half_of_the_time_after_a_signal(clock):
    with StopSignal(20.0) as stop:
        assert stop.grants(1e9)
        assert stop.grants(None)
        with suppress(Stopped), stop.hold():
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.grants(10.0)
            assert not stop.grants(10.1)
            assert not stop.grants(None)
            clock.now += 6.0
            assert stop.grants(4.0)
            assert not stop.grants(4.1)


def test_the_rest_of_a_run_takes_as_long_as_its_iterations_did(clock):
    pace = Pace(iteration=10, last=30)
    clock.now += 60.0
    assert pace.left_s(12) == pytest.approx(18 * 30)
    assert pace.left_s(30) == 0


def test_the_first_estimate_counts_evaluations_apart(clock):
    """As make train has them: one before the first iteration, and one after the tenth."""
    pace = Pace(iteration=0, last=10, interval=10)
    clock.now += 180.0 + 60.0
    pace.evaluated(180.0)
    assert pace.left_s(1) == pytest.approx(9 * 60 + 180)
    clock.now += 50.0
    assert pace.left_s(2) == pytest.approx(8 * 50 + 180), "the first iteration has warmed up"
    clock.now += 8 * 50 + 180.0
    pace.evaluated(180.0)
    assert pace.left_s(10) == 0


def test_an_evaluation_to_come_is_estimated_by_the_speed_of_the_rollout(clock):
    pace = Pace(iteration=0, last=4, interval=2, eval_steps=600)
    clock.now += 10.0
    assert pace.left_s(1) == pytest.approx(3 * 10)
    assert pace.left_s(1, env_steps_per_s=20.0) == pytest.approx(3 * 10 + 2 * 30)


class Said(NullConsole):
    def __init__(self):
        self.lines, self.rows = [], []

    def say(self, text):
        self.lines.append(text)

    def iteration(self, summary):
        self.rows.append(dict(summary))

    @contextmanager
    def panel(self, title, look, earlier=()):
        self.rows += map(dict, earlier)
        yield


def reporting(tmp_path, console, **expected):
    runner = RunnerConfig(max_epochs=5, logger=LoggerConfig(log_path=str(tmp_path), logger_backends=[]))
    made = Reporter(console, Group(), runner, expected=Expected(**expected))
    made.open_trackers(None, {}, {})
    return made


NOTHING = {
    "rollout/success_rate": 0.0,
    "rollout/success_low": 0.0,
    "rollout/success_high": 0.1,
    "rollout/return_mean": 1.0,
}


def test_a_success_that_training_episodes_are_too_short_for_is_left_out_until_one_happens(tmp_path):
    console = Said()
    made = reporting(tmp_path, console, max_steps=40)
    steps = [
        {"eval/success_rate": 0.3, "eval/time_to_success_min": 97}, NOTHING, NOTHING,
        NOTHING | {"rollout/success_rate": 0.1}, NOTHING,
    ]  # fmt: skip
    for iteration, row in enumerate(steps):
        made.log(iteration, row)
    assert ["rollout/success_rate" in row for row in console.rows] == [False, False, False, True, True]
    assert ["rollout/success_high" in row for row in console.rows] == [False, False, False, True, True]
    assert all("rollout/return_mean" in row for row in console.rows[1:])
    (line,) = console.lines
    assert "they end after 40 control steps, and the fastest success of an evaluation took 97" in line


@pytest.mark.parametrize(
    ("limit", "seen"), [(97, {"eval/time_to_success_min": 97}), (40, {}), (inf, {"eval/time_to_success_min": 97})]
)
def test_a_success_of_which_nothing_says_that_it_cannot_happen_is_shown(limit, seen, tmp_path):
    console = Said()
    made = reporting(tmp_path, console, max_steps=limit)
    made.log(0, seen)
    made.log(1, NOTHING)
    assert "rollout/success_rate" in console.rows[1]
    assert console.lines == []


def test_a_resumed_run_knows_what_was_seen_before(tmp_path):
    console = Said()
    made = reporting(tmp_path, console, max_steps=40, sampled=True, eval_sampled=True)
    before = [{"eval/success_rate": 0.3, "eval/time_to_success_min": 97}, NOTHING]
    with made.running(1, dict, before):
        made.log(2, NOTHING)
    assert ["rollout/success_rate" in row for row in console.rows] == [False, False, False]
    assert {(row["rollout/sampled"], row["eval/sampled"]) for row in console.rows} == {(1.0, 1.0)}


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (40, ["return 1", "return 1", "return 1  success 1/3 sampled"]),
        (144, ["success 0/1 sampled", "success 0/2 sampled", "success 1/3 sampled"]),
    ],
)
def test_a_bar_counts_what_can_rise(limit, said, tmp_path):
    made = reporting(tmp_path, Said(), max_steps=40)
    made.log(0, {"eval/time_to_success_min": 97})
    bar, seen = Phase("rollout", 3), []
    advance = made.counting(bar, SimpleNamespace(sampling=SimpleNamespace(do_sample=True), max_steps=limit))
    for success in (False, False, True):
        advance(SimpleNamespace(success=success, episode_return=1.0, not_run=""), {})
        seen.append(bar.facts)
    assert seen == said
    assert bar.done == 3


def test_a_warning_stands_once(tmp_path):
    console = Said()
    made = reporting(tmp_path, console)
    for text, what in (("a", ""), ("a", ""), ("b 1", "b"), ("b 2", "b"), ("c", "")):
        made.warn(text, what)
    assert console.lines == ["a", "b 1", "c"]


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "said"), [(60.0, 19.0, True), (60.0, 21.0, False), (60.0, 120.0, False), (4.9, 0.1, False)]
)
def test_an_update_that_got_a_third_of_its_time_says_so(wall_s, cpu_s, said):
    text = starved(wall_s, cpu_s)
    assert ("took 60 s, and this process got 19 s of CPU time" in text) == said
    assert bool(text) == said


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"train/bad_updates": 0, "train/bad_ratios": 0}, ""),
        ({"train/bad_updates": 2, "train/bad_ratios": 3}, "2 updates of this iteration were left out: log-ratios of"),
        ({"train/bad_updates": 1, "train/bad_ratios": 0}, "left out: loss or gradient not finite"),
        ({"sft/bad_updates": 1}, "left out: loss or gradient not finite"),
    ],
)
def test_updates_that_were_left_out_are_told_with_the_cause(metrics, said):
    text = skipped_updates(metrics)
    assert said in text
    assert bool(text) == bool(said)


def test_a_watch_counts_records_and_asks_whether_to_go_on(clock):
    asked = []
    watching = Reporter(NullConsole(), Group(), RunnerConfig(logger=LoggerConfig(log_path="runs/run")))

    def go_on(left_s):
        asked.append(left_s)
        return len(asked) < 2

    with watching.watch("iteration 1/3", go_on)("update", 8) as passed:
        assert passed(0)
        assert not passed(8)
    assert asked[0] is None, "nothing is known before the first record"
    assert asked[1] == 0


class Two(Group):
    """Stands for two ranks, of which the other one goes on."""

    def any(self, flag: bool) -> bool:
        return flag


def parts_until(stop_after: int, collective_passes: bool) -> tuple[list[int], bool]:
    parallel = SimpleNamespace(world=Group(), in_step=Two(0, 2) if collective_passes else Group())
    seen: list[int] = []
    parts = list(torch.arange(8).split(2))
    try:
        for part, last in until_stopped(parts, lambda records: len(seen) < stop_after, parallel):
            seen.append(int(part[0]))
            assert last == (part is parts[-1])
    except Stopped:
        return seen, True
    return seen, False


@pytest.mark.parametrize("collective_passes", [False, True])
def test_passes_end_where_they_are_told_to(collective_passes):
    assert parts_until(9, collective_passes) == ([0, 2, 4, 6], False)
    assert parts_until(2, collective_passes) == ([0, 2], True)
    assert parts_until(4, collective_passes) == ([0, 2, 4, 6], True), "after the last pass: the step is not made"
