"""Whole runs that remember their starts: the same bits after a resume, for any number of processes, with any lag."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from logged import rows_of
from seeded_runs import tensors
from test_run import run
from test_run_ranks import finished, started

from embodied.run.training.collector import Collector

STARTS = (
    "algorithm=start_value", "algorithm.group_size=1", "env.train.num_init_states=3", "env.train.reward_mode=dense",
    "runner.max_epochs=4", "env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.rollout_epoch=2",
    "env.start_method=forkserver",
)  # fmt: skip
DRAWN = "data.start_sampling=informative"
STILL = ("actor.optim.lr=1e-30",)  # else weights depend on how many processes add up their gradients


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def same(one: str, other: str, prefix: str = "") -> None:
    """Compares metrics of starts and returns, or all that last, and the tensors of the last checkpoint."""
    names = ("train/start_", "rollout/return", "rollout/success") if prefix else ("",)
    found, expected = (
        [{key: value for key, value in row.items() if key.startswith(names)} for row in rows_of(Path("runs", name))]
        for name in (one, other)
    )
    assert found == expected
    assert found[-1]["train/start_memory_share"] > 0
    got, wanted = (tensors(Path("runs", name)) for name in (one, other))
    assert any(key.startswith("trainer/starts") for key in wanted)
    assert [k for k in wanted if k.startswith(prefix) and not torch.equal(got[k], wanted[k])] == []


def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[tuple[int, int]]]]:
    """Watches which starts are planned: (iteration, starts)."""
    found, plan = [], Collector.plan

    def watched(collector, iteration, *more):
        made = plan(collector, iteration, *more)
        found.append((iteration, [(e.start.task_id, e.start.init_state_id) for e in made]))
        return made

    monkeypatch.setattr(Collector, "plan", watched)
    return found


REFILLS = (
    "algorithm.group_size=2", "algorithm.dynamic_sampling=true", "algorithm.max_sampling_rounds=2",
    "algorithm.filter_reward_metric=success", "env.train.success_distance=0.8",
)  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((DRAWN, "algorithm.max_staleness=1", *REFILLS), id="stale-refills"),
        pytest.param((DRAWN, "algorithm.max_staleness=2"), id="staler", marks=pytest.mark.slow),
        pytest.param((), id="even", marks=pytest.mark.slow),
        pytest.param(("algorithm.max_staleness=2", *REFILLS, DRAWN), id="all", marks=pytest.mark.slow),
        pytest.param((DRAWN, "algorithm.adv_type=grpo", "algorithm.group_size=2"), id="grpo", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_interrupted_is_the_run_that_was_not(more, monkeypatch):
    options, plans = (*STARTS, *more), planned(monkeypatch)
    assert run(*options, name="whole") == 0
    whole = dict(plans)
    plans.clear()
    assert run(*options, "runner.max_epochs=2", name="parts") == 0
    assert run(*options, name="parts") == 0
    assert dict(plans) == whole
    if "algorithm.adv_type=grpo" not in more:
        same("parts", "whole")


def test_what_is_known_is_that_before_the_lag(monkeypatch):
    """With a lag of 2 the first three plans know nothing; without one the second is drawn by the first results."""
    plans = planned(monkeypatch)
    assert run(*STARTS, DRAWN, *STILL, name="in-turn") == 0
    first = dict(plans)
    plans.clear()
    assert run(*STARTS, DRAWN, *STILL, "algorithm.max_staleness=2", name="late") == 0
    late = dict(plans)
    assert late[0] == first[0]
    assert any(late[n] != first[n] for n in (1, 2, 3))


def test_two_processes_remember_the_same():
    """Of two processes each sees the returns of both, in the order of the plan."""
    options = (*STARTS, DRAWN, *STILL, "actor.fsdp_config.strategy=replicate")
    assert run(*options, name="one") == 0
    with started(*options, name="two", forks=True) as process:
        assert finished(process) == 0
    same("two", "one", prefix="trainer/starts")


@pytest.mark.slow
def test_a_process_that_only_collects_plans_by_what_the_other_has_learned():
    options = (*STARTS, DRAWN, "actor.fsdp_config.strategy=replicate", "algorithm.max_staleness=1")
    assert run(*options, name="one") == 0
    placed = "cluster.component_placement={actor: 0, rollout: 1}"
    with started(*options, placed, "runner.max_epochs=2", name="apart", forks=True) as process:
        assert finished(process) == 0
    with started(*options, placed, name="apart", forks=True) as process:
        assert finished(process) == 0
    same("apart", "one", prefix="trainer/starts")


def test_a_dry_run_says_when_a_start_comes_again(capsys):
    assert run(*STARTS, "runner.dry_run=true") == 0
    assert "a start comes again after about 1 iterations" in capsys.readouterr().out
    assert run(*STARTS, "env.train.num_init_states=300", "runner.dry_run=true") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "after about 75 iterations, and little is remembered then: set algorithm.start_value.half_life to 75" in said
    assert run(*STARTS, "env.train.num_init_states=1", "runner.dry_run=true") == 0
    assert "no start comes again, as seeds draw them" in capsys.readouterr().out


def test_a_choice_between_one_start_is_refused(capsys):
    one = ("env.train.num_init_states=1", "env.train.num_tasks=1", "env.eval.num_tasks=1")
    assert run(*STARTS, DRAWN, *one, "runner.dry_run=true") != 0
    assert "one task with one state" in " ".join(capsys.readouterr().err.split())
