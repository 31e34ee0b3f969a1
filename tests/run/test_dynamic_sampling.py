"""Refills for groups that teach nothing, and greedy episodes: counts, rows, and that a seed is still a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied import train
from embodied.errors import ConfigError
from embodied.run.training import dynamic_sampling
from embodied.run.training.collector import Collector
from embodied.runtime.plan import ROUND_IDS, train_plan
from embodied.runtime.rollout.rollout import RolloutStats
from embodied.schema import AlgorithmConfig, OverlongPenaltyConfig
from embodied.types import Episode, EpisodeResult, Start

HERE = Path(__file__).parents[1]
NO_PENALTY = OverlongPenaltyConfig()


def group(number: int, returns: list[float], rows: int = 1, success: bool = False) -> list[EpisodeResult]:
    """Episodes of one start with these returns; episode i holds rows 100·number + i …"""
    return [
        EpisodeResult(
            Episode(10 * number + i, number, Start(0, number, 0)), (100 * number + i,) * rows, value, success, 8, True,
            False,
        )
        for i, value in enumerate(returns)
    ]  # fmt: skip


def test_groups_without_a_gradient_are_run_again_until_there_are_enough():
    calls = []

    def run(number, groups, kept):
        calls.append((number, groups, sorted({row for result in kept for row in result.rows})))
        return [r for g in range(groups) for r in group(10 * number + g, [0.0, float(g == 0)])]

    judge = dynamic_sampling.make_judge(AlgorithmConfig(), NO_PENALTY, 10)
    results, everything, taken = dynamic_sampling.fill(run, groups=3, max_rounds=5, judge=judge)
    # Of each round the first group alone has a gradient: 3 groups, then 2, then 1.
    assert calls == [(0, 3, []), (1, 2, [0, 1]), (2, 1, [0, 1, 1000, 1001])]
    assert [r.episode.group_id for r in results] == [0, 0, 10, 10, 20, 20]
    assert (len(everything), taken) == (12, 3)
    assert dynamic_sampling.Collected(results, everything, RolloutStats()).dropped_groups == 3


def test_what_is_missing_after_the_last_round_stays_as_it_is():
    def run(number, groups, kept):
        return [r for g in range(groups) for r in group(10 * number + g, [1.0, 1.0])]

    judge = dynamic_sampling.make_judge(AlgorithmConfig(), NO_PENALTY, 10)
    results, everything, taken = dynamic_sampling.fill(run, groups=2, max_rounds=3, judge=judge)
    assert [r.episode.group_id for r in results] == [20, 20, 21, 21]
    assert (len(everything), taken) == (12, 3)


def test_without_refills_everything_is_kept():
    results, everything, taken = dynamic_sampling.fill(
        lambda number, groups, rows: group(0, [1.0, 1.0]),
        1,
        1,
        dynamic_sampling.make_judge(AlgorithmConfig(), NO_PENALTY, 10),
    )
    assert (results, taken) == (everything, 1)


@pytest.mark.parametrize(
    ("algorithm", "penalty", "good"),
    [
        ({}, {}, [True, False, True]),
        ({"filter_rewards": True}, {}, [True, False, False]),
        ({"filter_reward_metric": "success"}, {}, [False, False, False]),
    ],
)
def test_what_makes_a_group_worth_keeping(algorithm, penalty, good):
    # Returns 0 and 1: mean .5. Twice 1. 10 and 20: beyond the bounds of .1 … .9. All succeed.
    results = group(0, [0, 1], success=True) + group(1, [1, 1], success=True) + group(2, [10, 20], success=True)
    judge = dynamic_sampling.make_judge(AlgorithmConfig(**algorithm), OverlongPenaltyConfig(**penalty), 10)
    assert judge(results) == [value for value in good for _ in range(2)]


def test_episodes_that_differ_in_length_alone_are_told_apart_by_the_penalty():
    one, two = group(0, [1.0, 1.0])
    results = [one, EpisodeResult(two.episode, two.rows, 1.0, False, 10, False, True)]
    penalty = OverlongPenaltyConfig(enable=True, buffer_length=1)
    assert dynamic_sampling.make_judge(AlgorithmConfig(), penalty, 10)(results) == [True, True]
    assert dynamic_sampling.make_judge(AlgorithmConfig(), NO_PENALTY, 10)(results) == [False, False]
    assert dynamic_sampling.baselines(results, penalty, 10) == {one.episode.start: 0.0}, "the last of a start counts"


def test_bounds_are_those_of_returns_without_penalties():
    """A mean return of ½ lies within .1 … .9, whatever the length of the episodes is penalised with."""
    one, two = group(0, [1.0, 0.0])
    results = [replace(one, num_steps=10), two]
    penalty = OverlongPenaltyConfig(enable=True, buffer_length=1, factor=50.0)
    assert dynamic_sampling.make_judge(AlgorithmConfig(filter_rewards=True), penalty, 10)(results) == [True, True]


def test_groups_are_counted_by_the_rank_that_has_run_them():
    results = [replace(one, rank=rank) for rank in range(3) for k in range(rank) for one in group(3 * rank + k, [0, 1])]
    assert [dynamic_sampling.num_groups(results, rank) for rank in range(4)] == [0, 1, 2, 0]


def test_a_greedy_plan_has_each_start_once():
    plan = [Episode(i, i // 2, Start(0, i // 2, 7), video="x.mp4") for i in range(6)]
    greedy = dynamic_sampling.greedy_plan(plan)
    assert [(e.episode_id, e.start.init_state_id, e.video) for e in greedy] == [
        (0, 0, None),
        (2, 1, None),
        (4, 2, None),
    ]


@given(st.integers(0, 3), st.integers(0, 20), st.integers(0, 5))
def test_plans_of_rounds_share_no_ids_and_do_not_depend_on_each_other(seed, iteration, number):
    spec = spec_of_two_tasks()
    options = {"seed": seed, "iteration": iteration, "episodes": 6, "group_size": 2}
    plan, first = train_plan(spec, sampling_round=number, **options), train_plan(spec, **options)
    assert plan == train_plan(spec, sampling_round=number, **options)
    assert [e.episode_id - first[i].episode_id for i, e in enumerate(plan)] == [number * ROUND_IDS] * 6
    assert [e.group_id - first[i].group_id for i, e in enumerate(plan)] == [number * ROUND_IDS] * 6
    assert plan[0].start == plan[1].start


def spec_of_two_tasks():
    from embodied.testing import FakeEnv

    return FakeEnv(num_init_states=8).spec


def test_rows_that_are_taken_keep_their_records(make_rig):
    rig = make_rig(slots=2, workers=1, rows=12, success_distance=0.0)
    first, second = (
        train_plan(rig.env.spec, seed=3, iteration=i, episodes=2, group_size=2) for i in range(2)
    )  # fmt: skip
    rollout = rig.rollout()
    kept, _ = rollout.collect(first, rig.job())
    rows = {row for result in kept for row in result.rows}
    before = {name: array[sorted(rows)].copy() for name, array in rig.slab.arrays.items()}
    again, _ = rollout.collect(second, rig.job())
    assert len(rows) == 6
    assert not rows & {row for result in again for row in result.rows}
    assert all(np.array_equal(array[sorted(rows)], before[name]) for name, array in rig.slab.arrays.items())
    with pytest.raises(ConfigError, match="need 6 rows and the slab has 0"):
        rollout.collect(second, rig.job())


# -- whole runs -------------------------------------------------------------------------------------------------------

FAST = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "runner.save_interval=-1",
    "runner.val_check_interval=-1", "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10",
    "env.train.reward_mode=sparse", "env.train.use_rel_reward=false", "env.train.success_distance=0.5",
    "env.train.num_init_states=8",
)  # fmt: skip
REFILLS = ("algorithm.dynamic_sampling=true", "algorithm.max_sampling_rounds=4")
MIXED = ("algorithm.rollout_epoch=16", "env.train.max_episode_steps=24")  # long enough for a start to go either way


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*overrides: str, name: str = "run") -> int:
    return train.main(
        [*FAST, f"runner.experiment_name={name}", *overrides, "--config-dir", str(HERE / "config")], "train"
    )  # fmt: skip


def rows_of(name: str) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    varying = ("time/", "memory/")
    return [
        {
            key: value
            for key, value in row.items()
            if not key.startswith(varying) and not key.endswith(("_per_s", "batch_size_mean"))
        }
        for row in rows
    ]


def test_dynamic_sampling_fills_the_batch_and_is_the_same_run_whatever_the_workers(monkeypatch):
    seen = []
    collect = Collector.collect
    monkeypatch.setattr(Collector, "collect", lambda *given: (seen.append(collect(*given)), seen[-1])[1])
    assert run(*MIXED, "runner.max_epochs=1", name="plain") == 0
    plain = rows_of("plain")[0]
    assert 0 < plain["rollout/zero_advantage_share"] < 1, "there is something to refill, and something to keep"
    seen.clear()
    options = (*MIXED, *REFILLS)
    assert run(*options, name="a") == 0
    assert run(*options, "env.num_workers=1", "rollout.schedule=lockstep", "runner.max_epochs=1", name="b") == 0
    assert run(*options, "env.num_workers=1", "rollout.schedule=lockstep", name="b") == 0
    assert rows_of("a") == rows_of("b")
    first, collected = rows_of("a")[0], seen[0]
    assert first["rollout/sampling_rounds"] == collected.rounds > 1
    assert first["rollout/episodes"] == 32 + 4 * first["rollout/dropped_groups"]
    assert first["rollout/zero_advantage_share"] < plain["rollout/zero_advantage_share"]
    assert len(collected.results) == 32
    ids = [result.episode.episode_id for result in collected.results]
    assert ids == sorted(ids)
    rows = [row for result in collected.results for row in result.rows]
    assert len(set(rows)) == len(rows)


def test_remax_runs_one_greedy_episode_a_start():
    options = ("algorithm.adv_type=remax", "env.train.reward_mode=dense")
    assert run(*options, name="a") == run(*options, "env.num_workers=1", name="b") == 0
    assert rows_of("a") == rows_of("b")
    for row in rows_of("a"):
        assert row["rollout/greedy_episodes"] == 2
        assert row["rollout/episodes"] == 8, "greedy episodes are no part of the success rate"
        assert row["train/optimizer_steps"] >= 1
        assert row["rollout/env_steps"] > row["rollout/episode_length_mean"] * 8
    assert run(*options, "runner.max_epochs=1", "env.train.use_fixed_reset_state_ids=false", name="c") == 0
    assert rows_of("c")[0]["rollout/greedy_episodes"] == 8


def test_a_dry_run_says_what_runs_beside_the_plan(capsys):
    assert run(*REFILLS, "runner.dry_run=true", "actor.global_batch_size=20", "actor.micro_batch_size=8") == 0
    out = capsys.readouterr().out
    assert "8 = 2 starts × 4; at most 3 refills of groups without a gradient, into the rows of those" in out
    assert "24 records" in out, "refills need no more rows"
    assert "3 parts of at most 8" in out
    assert run("algorithm.adv_type=remax", "runner.dry_run=true") == 0
    assert "2 greedy episodes, whose records are not kept" in capsys.readouterr().out
