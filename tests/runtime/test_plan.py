"""The plan and the sampling noise: functions of seed, iteration, episode and chunk, and of nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import ConfigError
from embodied.perturbations import Condition, Perturbation
from embodied.random import Stream
from embodied.runtime.plan import (
    EVAL_SEEDS,
    eval_plan,
    noise,
    states_of_training,
    tasks_and_starts,
    train_plan,
    under_conditions,
    video_name,
    with_videos,
)
from embodied.types import DiscreteAction, EnvSpec, Noise

STATES = (3, 2, 4)
SPEC = EnvSpec({}, (), DiscreteAction(2), ("a", "b", "c"), STATES, 10, 20.0)
PAIRS = {(task, state) for task, states in enumerate(STATES) for state in range(states)}


def plan(seed=1, iteration=0, episodes=12, group_size=4, **more):
    return train_plan(SPEC, seed=seed, iteration=iteration, episodes=episodes, group_size=group_size, **more)


def pairs(episodes):
    return [(e.start.task_id, e.start.init_state_id) for e in episodes]


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_a_plan_is_a_function_of_seed_and_iteration(seed, iteration, groups, group_size, shared):
    def make():
        return train_plan(
            SPEC, seed=seed, iteration=iteration, episodes=groups * group_size, group_size=group_size,
            shared_start=shared,
        )  # fmt: skip

    made = make()
    assert made == make()
    assert len(made) == groups * group_size
    assert set(pairs(made)) <= PAIRS
    by_group = Counter(e.group_id for e in made)
    assert list(by_group.values()) == [group_size] * groups
    if shared:
        assert len({(e.group_id, e.start) for e in made}) == groups


def test_ids_are_unique_in_a_run():
    episodes = [e for i in range(5) for e in plan(iteration=i)]
    assert [e.episode_id for e in episodes] == list(range(60))
    assert [e.group_id for e in episodes] == [n // 4 for n in range(60)]


def test_starts_come_without_replacement_across_iterations():
    """9 starts, 3 groups an iteration: each start once in three iterations, then in another order."""
    groups = [e for i in range(6) for e in plan(iteration=i)[::4]]
    assert set(pairs(groups[:9])) == set(pairs(groups[9:])) == PAIRS
    assert pairs(groups[:9]) != pairs(groups[9:])


def test_seeds_of_starts_differ_and_begin_at_env_seed():
    episodes = plan(iteration=2, env_seed=1000)
    assert [e.start.seed for e in episodes[::4]] == [1006, 1007, 1008]


def test_each_episode_has_a_start_of_its_own_when_not_shared():
    episodes = plan(shared_start=False, episodes=8)
    assert len({e.start for e in episodes}) == 8
    assert [e.group_id for e in episodes] == [0] * 4 + [1] * 4


def test_other_seeds_give_other_orders():
    orders = {tuple(pairs(plan(seed=seed, episodes=9, group_size=1))) for seed in range(10)}
    assert len(orders) == 10


def test_evaluation_runs_the_first_states_of_every_task():
    episodes = eval_plan(SPEC, episodes_per_task=3)
    assert pairs(episodes) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert [e.episode_id for e in episodes] == list(range(9))
    assert len({(e.start.task_id, e.start.init_state_id, e.start.seed) for e in episodes}) == 9


@pytest.mark.parametrize(("most", "expected"), [(0, 0), (1, 1), (3, 3), (12, 12), (50, 12)])
def test_videos_are_spread_and_bounded(most, expected):
    episodes = plan()
    named = with_videos(episodes, Path("v"), most)
    names = [e.video for e in named if e.video]
    assert len(names) == len(set(names)) == expected
    assert [(e.episode_id, e.start, e.group_id) for e in named] == [
        (e.episode_id, e.start, e.group_id) for e in episodes
    ]
    if most == 3:
        assert [bool(e.video) for e in named].index(True) == 0
        assert named[-1].video == f"v/{video_name(episodes[-1])}"


def test_a_start_is_perturbed_by_the_same_numbers_under_each_condition():
    """Else a condition's cost would be that of its draw."""
    clean = eval_plan(SPEC, episodes_per_task=2, group_size=2)
    conditions = [
        Condition("delay", strength, Perturbation(action_delay=steps)) for steps, strength in ((1, "l"), (3, "h"))
    ]
    found = under_conditions(clean, conditions)
    assert found[: len(clean)] == clean
    assert len({one.episode_id for one in found}) == len(found) == 3 * len(clean)
    for number, condition in enumerate(conditions, start=1):
        under = found[number * len(clean) : (number + 1) * len(clean)]
        assert [(one.start, one.group_id) for one in under] == [(one.start, one.group_id) for one in clean]
        assert [one.perturbed.condition for one in under] == [condition] * len(clean)
        assert [one.perturbed.place for one in under] == [one.episode_id for one in clean]


def test_the_name_of_a_video_says_how_its_episode_is_perturbed():
    first = plan()[:1]
    conditions = [Condition(kind, "mild", Perturbation(blur=0.1)) for kind in ("blur", "../my own: dusk", "long" * 80)]
    names = [video_name(episode) for episode in under_conditions(first, conditions)]
    start = f"task{first[0].start.task_id:02d}_start{first[0].start.init_state_id:02d}"
    assert names[:3] == [
        f"{start}_episode00000.mp4", f"{start}_episode00001_blur-mild.mp4",
        f"{start}_episode00002_.._my_own__dusk-mild.mp4",
    ]  # fmt: skip
    assert len(names[3]) < 128, "file systems take 255"


KEYS = st.tuples(
    st.integers(0, 2**32),
    st.sampled_from([Stream.TRAIN_NOISE, Stream.EVAL_NOISE]),
    st.integers(0, 2**40),
    st.integers(0, 5000),
)


@given(st.lists(KEYS, min_size=2, max_size=6, unique=True))
def test_noise_depends_on_its_key_and_not_on_order(keys):
    forwards = {key: noise(*key, Noise((28,))) for key in keys}
    backwards = {key: noise(*key, Noise((28,))) for key in reversed(keys)}
    for key in keys:
        assert np.array_equal(forwards[key], backwards[key])
    assert len({draw.tobytes() for draw in forwards.values()}) == len(keys)


def test_noise_is_uniform_and_a_longer_chunk_begins_like_a_shorter_one():
    draws = np.stack(
        [noise(3, Stream.TRAIN_NOISE, episode, t, Noise((56,))) for episode in range(20) for t in range(20)]
    )
    assert draws.dtype == np.float32
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.01
    assert np.unique(draws).size > 0.99 * draws.size
    assert np.array_equal(
        noise(3, Stream.TRAIN_NOISE, 1, 1, Noise((8,))), noise(3, Stream.TRAIN_NOISE, 1, 1, Noise((56,)))[:8]
    )


def test_eval_plan_takes_each_state_once_where_it_is_asked_to():
    spec = replace(SPEC, num_init_states=(2, 5))
    whole = eval_plan(spec, episodes_per_task=4, group_size=2)
    once = eval_plan(spec, episodes_per_task=4, group_size=2, once=True)
    starts = [(one.start.task_id, one.start.init_state_id) for one in once[::2]]
    assert starts == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert {one.start for one in once} <= {one.start for one in whole}, "those that remain keep their seeds"
    assert [one.episode_id for one in once] == [*range(12)]


def test_eval_plan_draws_states_when_they_are_not_fixed():
    drawn = [eval_plan(SPEC, episodes_per_task=6, fixed_states=False, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(pairs(drawn[0])) <= PAIRS
    assert pairs(drawn[0]) != pairs(eval_plan(SPEC, episodes_per_task=6))


def test_evaluation_and_training_share_no_seed():
    trained = {e.start.seed for iteration in range(50) for e in plan(iteration=iteration, env_seed=0)}
    evaluated = {
        e.start.seed for fixed in (True, False) for e in eval_plan(SPEC, episodes_per_task=50, fixed_states=fixed)
    }
    assert evaluated == set(range(EVAL_SEEDS, EVAL_SEEDS + 50))
    assert not trained & evaluated


@pytest.mark.parametrize("env_seed", [EVAL_SEEDS - 2, EVAL_SEEDS, 3 * EVAL_SEEDS + 1])
def test_training_draws_no_scene_of_evaluations_whatever_its_seeds_begin_at(env_seed):
    seeds = [e.start.seed for number in range(3) for e in plan(env_seed=env_seed, group_size=1, sampling_round=number)]
    assert len(set(seeds)) == 36
    assert 0 <= min(seeds) <= max(seeds) < EVAL_SEEDS


def test_states_that_are_held_out_are_the_last_of_each_task_and_a_single_one_is_kept():
    spec = replace(SPEC, num_init_states=(3, 1, 4))
    assert states_of_training(spec, 2) == [1, 1, 2]
    assert tasks_and_starts(spec, 2) == "3 (4 starts)"
    assert tasks_and_starts(replace(spec, num_init_states=(1, 1, 1)), 2) == "3 (starts drawn from the seed)"
    assert pairs(eval_plan(spec, episodes_per_task=2, held_out=2)) == [(0, 1), (0, 2), (1, 0), (1, 0), (2, 2), (2, 3)]
    trained = [train_plan(spec, seed=1, iteration=k, episodes=4, group_size=1, held_out=2) for k in range(3)]
    assert {pair for one in trained for pair in pairs(one)} == {(0, 0), (1, 0), (2, 0), (2, 1)}


def test_a_refill_has_scenes_of_its_own_and_none_of_the_evaluation():
    seeds = [{episode.start.seed for episode in plan(sampling_round=number)} for number in range(3)]
    assert len(set.union(*seeds)) == sum(map(len, seeds)) == 9
    assert max(set.union(*seeds)) < EVAL_SEEDS <= min(e.start.seed for e in eval_plan(SPEC, episodes_per_task=2))


def test_starts_in_their_order():
    asked = [pair for i in range(3) for pair in pairs(plan(iteration=i, episodes=4, group_size=1, shuffle=False))]
    assert asked == [*sorted(PAIRS), *sorted(PAIRS)[:3]]
    assert pairs(plan(seed=2, episodes=4, group_size=1, shuffle=False)) == asked[:4]


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_iteration_of_whole_passes_has_no_starts_of_two(shuffle):
    passes = [
        [
            pair
            for i in (2 * n, 2 * n + 1)
            for pair in pairs(plan(iteration=i, group_size=3, drop_last=True, shuffle=shuffle)[::3])
        ]
        for n in range(4)
    ]  # a pass has nine starts: two iterations of four, of three episodes each
    for one in passes:
        assert len(set(one)) == 8
    assert (len({tuple(one) for one in passes}) == 1) is not shuffle
    with pytest.raises(ConfigError, match="leaves out all 9 starts: an iteration takes 12"):
        plan(episodes=12, group_size=1, drop_last=True)


SPREAD = np.array([0, 1, 1, 0, 0, 0, 1, 2, 3.0])  # of the states of SPEC, task by task


def test_informative_starts_have_weights_and_depend_on_seed_iteration_and_what_is_known_alone():
    made = [plan(iteration=n, spread=SPREAD) for n in range(40)]
    assert made[3] == plan(iteration=3, spread=SPREAD)
    assert made[3] != plan(iteration=3, spread=SPREAD, seed=2)
    assert made[3] != plan(iteration=3, spread=SPREAD, sampling_round=1)
    episodes = [episode for one in made for episode in one]
    assert [(e.episode_id, e.group_id) for e in episodes] == [(i, i // 4) for i in range(12 * 40)]
    assert len({e.start.seed for e in episodes}) == 3 * 40, "each group has a seed of its own"
    # Chances 1/18 + spread/16, weights (1/9) / chance.
    weights = {pair: 1 / (9 * (1 / 18 + spread / 16)) for pair, spread in zip(sorted(PAIRS), SPREAD, strict=True)}
    assert all(e.weight == pytest.approx(weights[pair]) for e, pair in zip(episodes, pairs(episodes), strict=True))
    often = Counter(pairs(episodes[::4]))
    assert often[(2, 3)] == pytest.approx(120 * (1 / 18 + 3 / 16), rel=0.2)
    assert often[(0, 0)] == pytest.approx(120 / 18, rel=0.5)
    assert sum(e.weight for e in episodes) / len(episodes) == pytest.approx(1, abs=0.05)


def test_informative_starts_leave_held_out_states_alone():
    made = [e for n in range(30) for e in plan(iteration=n, spread=np.ones(9), held_out=1)]
    assert set(pairs(made)) == {(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)}
    assert {e.weight for e in made} == {1.0}
    # Those that are left have spreads 0, 1; 0; 0, 1, 2: chances 1/12 + spread/8.
    left = plan(episodes=120, spread=SPREAD, held_out=1)
    expected = {pair: 1 / (6 * (1 / 12 + SPREAD[sorted(PAIRS).index(pair)] / 8)) for pair in set(pairs(left))}
    assert len(expected) == 6
    assert all(e.weight == pytest.approx(expected[pair]) for e, pair in zip(left, pairs(left), strict=True))


def test_episodes_of_one_group_without_a_shared_start_are_drawn_each():
    made = plan(spread=SPREAD, shared_start=False)
    assert len({e.start.seed for e in made}) == 12
    assert len(set(pairs(made))) > 3
