"""What a training says of success before and after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from comparisons import below, changed

from embodied.evaluation.before_after import gain


def put(name: str, run: str, iteration: int) -> None:
    Path(run, "eval").mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(name, "eval", "000000.json"), Path(run, "eval", f"{iteration:06d}.json"))


@pytest.mark.parametrize(
    ("after", "verdict", "difference"),
    [(30, "a rise", "+25.0%"), (10, "a fall", "-25.0%"), (20, "may be chance", "+0.0%")],
)
def test_a_run_that_was_evaluated_before_and_after(write, after, verdict, difference):
    put(write("one", below(20)), "run", 0)
    put(write("worse", below(0)), "run", 5)
    put(write("other", below(after)), "run", 10)
    before, now, change = gain(Path("run"))
    assert before == ["before, greedy", "40/80 = 50.0%", "39.3% to 60.7%"]
    assert now[:2] == ["after 10 iterations, greedy", f"{2 * after}/80 = {after / 40:.1%}"]
    assert (change[1], change[3]) == (difference, verdict)
    low, high = (float(end.rstrip("%")) for end in change[2].split(" to "))
    assert low <= float(difference.rstrip("%")) <= high
    assert (low <= 0 <= high) == (verdict == "may be chance")


def test_nothing_is_said_without_both(write):
    assert gain(Path("run")) == []
    put(write("one", below(20)), "run", 0)
    assert gain(Path("run")) == []
    put(write("other", below(20), seed=1000), "run", 10)  # no start of the first
    assert gain(Path("run")) == []
    put(write("one again", below(20)), "late", 5)
    put(write("and again", below(20)), "late", 10)
    assert gain(Path("late")) == [], "before the training nothing was evaluated"


def test_evaluations_under_other_conditions_are_not_called_a_rise(write):
    put(write("one", below(20)), "run", 0)
    put(write("longer", below(30), change=changed("conditions", "max_steps", 500)), "run", 10)
    assert gain(Path("run")) == [["not compared", "the evaluations' conditions differ: max_steps"]]
    put(write("elsewhere", below(30), change=changed("env", "success_distance", 0.1)), "run", 20)
    ((said, why),) = gain(Path("run"))
    assert said == "not compared"
    assert "env.success_distance" in why


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("conditions", "seed", 9), ("conditions", "reward_coef", 5.0), ("conditions", "reward_mode", "dense"),
     ("conditions", "weights", "of iteration 10")],
)  # fmt: skip
def test_conditions_that_make_no_episode_harder_leave_the_rise(write, section, key, value):
    put(write("one", below(20)), "run", 0)
    put(write("other", below(30), change=changed(section, key, value)), "run", 10)
    assert gain(Path("run"))[2][3] == "a rise"
