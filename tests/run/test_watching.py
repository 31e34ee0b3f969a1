"""What a run says of its own work, and when it ends it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from embodied.errors import Stopped
from embodied.learn.step.passes import until_stopped
from embodied.observe.terminal.console import NullConsole
from embodied.parallel.group import Group
from embodied.run.folder import reporter
from embodied.run.folder.reporter import Pace, Reporter, starved
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
    monkeypatch.setattr(reporter, "monotonic", clock)
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


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "said"), [(60.0, 19.0, True), (60.0, 21.0, False), (60.0, 120.0, False), (4.9, 0.1, False)]
)
def test_an_update_that_got_a_third_of_its_time_says_so(wall_s, cpu_s, said):
    text = starved(wall_s, cpu_s)
    assert ("took 60 s, and this process got 19 s of CPU time" in text) == said
    assert bool(text) == said


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
