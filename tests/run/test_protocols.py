"""Of what a protocol's hash is made, and of what it is not; when it warns."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embodied.parallel.group import Group
from embodied.run.build.given import Checked
from embodied.run.build.preflight import check
from embodied.run.evaluation import protocol
from embodied.run.evaluation.conditions import Conditions, conditions
from embodied.run.evaluation.evaluator import EvaluationRunner
from embodied.run.evaluation.protocol import Protocol
from embodied.schema.compose.compose import compose
from embodied.testing import FakePolicy
from embodied.types import WorkerFacts

CONFIG = str(Path(__file__).parents[1] / "config")
FACTS = [WorkerFacts(0, "egl", "first", {}, "llvmpipe", {"mujoco": "3.3.7"})]


@pytest.fixture
def checked(tmp_path: Path) -> Checked:
    asked = ["env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", f"runner.output_dir={tmp_path}"]
    return check(compose(asked, "eval", [CONFIG]), Group())


@pytest.fixture
def under(checked: Checked, tmp_path: Path) -> Conditions:
    return conditions(checked.config, checked.eval, FakePolicy(), tmp_path, 0)


def made(checked: Checked, under: Conditions, facts: list[WorkerFacts] = FACTS) -> str:
    return protocol.protocol(checked.composed, checked.eval, under, facts, FakePolicy()).hash


def with_env(checked: Checked, **arguments: Any) -> Checked:
    return replace(checked, eval=replace(checked.eval, kwargs={**checked.eval.kwargs, **arguments}))


@pytest.mark.parametrize(
    "change", [{"weights": "of iteration 7"}, {"env_max_steps": 999}, {"reward_mode": "dense"}, {"reward_coef": 9.0},
               {"use_rel_reward": True}],
)  # fmt: skip
def test_what_success_does_not_depend_on_is_no_part_of_a_protocol(checked, under, change):
    assert made(checked, replace(under, **change)) == made(checked, under)


@pytest.mark.parametrize(
    "change", [{"max_steps": 999}, {"episodes_per_task": 99}, {"init_states_per_task": (9, 9)}, {"group_size": 9},
               {"use_fixed_reset_state_ids": False}, {"ignore_terminations": True}, {"sampling": {"temperature": 9}},
               {"env_seed": 99}, {"seed": 99}, {"held_out_states": 9}],
)  # fmt: skip
def test_every_other_condition_is(checked, under, change):
    assert made(checked, replace(under, **change)) != made(checked, under)


@pytest.mark.parametrize("means", ["renderer", "max_cached_simulators", "vectorization"])
def test_by_which_means_an_env_was_simulated_is_told_by_its_workers_and_not_by_its_keys(checked, under, means):
    """What was drawn with is a fact; a key may say auto."""
    assert made(with_env(checked, **{means: "another"}), under) == made(checked, under)
    assert made(with_env(checked, success_distance=0.123), under) != made(checked, under)
    other = [replace(FACTS[0], versions={"mujoco": "3.3.8"})]
    assert made(checked, under, other) != made(checked, under)


def test_the_tasks_are_part_of_it(checked, under):
    spec = checked.eval.spec
    other = replace(checked, eval=replace(checked.eval, spec=replace(spec, tasks=(*spec.tasks[:-1], "another one"))))
    assert made(other, under) != made(checked, under)
    assert protocol.protocol(checked.composed, checked.eval, under, FACTS, FakePolicy()).keys["tasks"] == list(
        spec.tasks
    )


@pytest.mark.parametrize(
    ("states", "left_out", "said"),
    [(0, None, None), (0, False, None), (3, True, None), (3, None, "is not known"), (3, False, "were trained on")],
)
def test_a_warning_comes_where_training_may_have_seen_what_is_held_out(states, left_out, said):
    found = protocol.warning(Protocol(None, "0", {}, {"held_out_states": states}, left_out))
    assert (found is None) if said is None else (said in found)


def test_workers_that_stay_are_used_again_and_end_with_the_evaluator(checked, tmp_path):
    closed: list[str] = []

    def opened(side: Any, rows: int) -> Any:
        return SimpleNamespace(identity=side.identity, close=lambda: closed.append("closed"))

    simulators: Any = SimpleNamespace(processes=checked.processes, collecting=checked.processes, open=opened)
    reporter: Any = SimpleNamespace()

    def make(keeps: bool) -> EvaluationRunner:
        return EvaluationRunner(checked.composed, checked.eval, simulators, tmp_path, reporter, keeps)

    kept = make(True)
    with ExitStack() as one:
        first = kept._fitting(None, one)
    assert kept._fitting(None, ExitStack()) is first
    assert closed == []
    kept.close()
    assert closed == ["closed"]
    with contextlib.ExitStack() as one:
        make(False)._fitting(None, one)
    assert closed == ["closed"] * 2, "others end with the evaluation"


def test_answers_of_a_file_have_their_own_numbers_in_the_conditions(checked, under, tmp_path):
    """Seven problems of two tasks are up to four of each; what would be sampled says nothing of them."""
    simulators: Any = SimpleNamespace(
        processes=checked.processes, collecting=checked.processes, model=SimpleNamespace(policy=FakePolicy())
    )
    answers: Any = SimpleNamespace(counts=SimpleNamespace(problems=7, most=3))
    reporter: Any = SimpleNamespace()
    composed, side = checked.composed, checked.eval
    found = EvaluationRunner(composed, side, simulators, tmp_path, reporter, answers=answers)._conditions(0)
    assert found == replace(under, episodes_per_task=4, group_size=3, sampling={})
    without = EvaluationRunner(composed, side, simulators, tmp_path, reporter)._conditions(0)
    assert without == under
