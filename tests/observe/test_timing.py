"""Sections of wall time, with a clock that the test turns."""

import time

import pytest

from embodied.observe import timing
from embodied.observe.timing import Sections


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


def test_visits_add_up_and_shares_are_of_the_whole_or_of_a_section(clock):
    sections = Sections()
    with sections("rollout"):
        with sections("rollout/policy"):
            clock.now += 3
        clock.now += 1
        with sections("rollout/policy"):
            clock.now += 2
        with sections("rollout/wait"):
            clock.now += 2
    clock.now += 8
    # rollout 3 + 1 + 2 + 2 = 8 of 16 s; policy 3 + 2 = 5; wait 2.
    assert [sections.seconds(n) for n in ("rollout", "rollout/policy", "rollout/wait", "never")] == [8, 5, 2, 0]
    assert sections.elapsed == 16
    assert sections.shares() == {"rollout": 8 / 16, "rollout/policy": 5 / 16, "rollout/wait": 2 / 16}
    assert sections.share("rollout/policy", of="rollout") == 5 / 8
    assert sections.share("rollout/policy", of="never") == 0.0


def test_a_section_within_itself_counts_once(clock):
    sections = Sections()
    with sections("a"):
        clock.now += 1
        with sections("a"):
            clock.now += 1
        clock.now += 1
    assert sections.seconds("a") == 3


def test_reset_forgets_also_inside_a_section(clock):
    sections = Sections()
    with sections("a"):
        clock.now += 5
        sections.reset()
        clock.now += 2
    assert sections.seconds("a") == 2
    assert sections.elapsed == 2


def test_a_block_that_raises_is_counted_and_raises(clock):
    sections = Sections()

    def fail():
        clock.now += 4
        raise KeyError

    with pytest.raises(KeyError), sections("a"):
        fail()
    assert sections.seconds("a") == 4


def test_a_section_costs_less_than_2_microseconds():
    sections = Sections()

    def cost(visits: int = 2000) -> float:
        began = time.perf_counter()
        for _ in range(visits):
            with sections("rollout/policy"):
                pass
        return (time.perf_counter() - began) / visits

    # The best of many: a shared core may be taken away during any one of them.
    assert min(cost() for _ in range(20)) < 2e-6
