"""benchmarks/off_policy.py: what it times and trains of our side."""

import math

import benchmark_file
import pytest


@pytest.fixture(scope="module")
def off_policy():
    return benchmark_file.load("off_policy")


def test_updates_that_are_timed_change_the_weights(off_policy, tmp_path):
    made = off_policy.learner(tmp_path)
    before = [parameter.detach().clone() for parameter in made.policy.parameters()]
    assert off_policy.own_updates(made, 1) > 0
    assert any(not old.equal(new) for old, new in zip(before, made.policy.parameters(), strict=True))
    assert all(new.isfinite().all() for new in made.policy.parameters())


def test_an_interval_is_that_of_students_t(off_policy):
    found = off_policy.interval([1.0, 2.0, 3.0])
    assert found["mean"] == 2.0
    assert found["high"] - 2.0 == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)  # t of two degrees of freedom


@pytest.mark.slow
@pytest.mark.parametrize(("task", "steps", "least", "most"), [("pendulum", 200, -2000, -1), ("pull_cube", 50, 0, 50)])
def test_a_short_training_returns_what_its_evaluation_measured(off_policy, task, steps, least, most):
    if task == "pull_cube":
        pytest.importorskip("mani_skill")
    assert least < off_policy.own_run(task, 0, steps, 1) < most
