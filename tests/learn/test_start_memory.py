"""The memory of starts in a run: whose return goes where, what a plan may know, and what a checkpoint holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rig import CPU

from embodied.algorithms.advantages.estimators import make_estimator
from embodied.algorithms.layout import Layout
from embodied.algorithms.rewards import Rewards
from embodied.learn.score.batches import gather_numbers, make_batch, returns_of
from embodied.learn.score.score import Scorer
from embodied.learn.score.start_memory import StartMemory
from embodied.learn.trainer import Trainer
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig, StartValueConfig
from embodied.testing import FakePolicy
from embodied.types import DiscreteAction, Elements, EnvSpec, Episode, EpisodeResult, Sampling, Start

SPEC = EnvSpec({}, (), DiscreteAction(2), ("a", "b"), (2, 1), 10, 20.0)
EXACT = StartValueConfig(half_life=None, prior_episodes=0.0)
REWARDS = Rewards(Layout(Elements((3,), length_axis=0), 1), "chunk_level")


def episodes(*starts: tuple[int, int, int], first: int = 0, weight: float = 1.0) -> list[EpisodeResult]:
    """Of one record each, in groups of their own."""
    return [
        EpisodeResult(Episode(first + i, first + i, Start(*start), weight=weight), (i,), 0.0, False, 2, True, False)
        for i, start in enumerate(starts)
    ]


def returns(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def records(values: list[float]) -> dict[str, np.ndarray]:
    ones, rewards = np.ones(len(values), np.int32), np.array(values, np.float32)[:, None]
    return {"rewards": rewards, "num_steps": ones, "length": ones, "version": np.zeros(len(values), np.int64)}


def test_a_start_is_a_task_and_a_state_of_it_whatever_the_seed():
    memory = StartMemory(SPEC, EXACT)
    memory.learn(episodes((0, 0, 5), (0, 1, 6)), returns(1, 0), 0)
    memory.learn(episodes((0, 0, 7), (0, 1, 8)), returns(0, 0), 1)
    assert memory.baselines(episodes((0, 0, 9), (0, 1, 10)), returns(5, 5)) == pytest.approx([0.5, 0.0])
    assert memory.metrics["train/start_memory_share"] == 1.0
    twice = memory.baselines(episodes((0, 1, 9), (0, 1, 10)), returns(6, 3))
    assert twice == pytest.approx([1.0, 2.0]), "(0 + 3) / 3 and (0 + 6) / 3: two groups of one start in an iteration"


def test_where_a_task_has_one_state_seeds_draw_starts_and_the_task_is_remembered():
    memory = StartMemory(SPEC, EXACT)
    memory.learn(episodes((1, 0, 5), (1, 0, 6)), returns(1, 0), 0)
    found = memory.baselines(episodes((1, 0, 7), (1, 0, 7), (1, 0, 8)), returns(1, 0, 1))
    # Equal seeds are one start: each has the other's return. The third has its task's: all others are worth
    # (1 + 1) / 4 = 1/2, and the task (1/2 + 1 + 1) / (1 + 4).
    assert found == pytest.approx([0.0, 1.0, 0.5])
    assert memory.metrics["train/start_memory_share"] == 0.0


def test_what_was_dropped_is_remembered_too_and_once():
    memory, dropped = StartMemory(SPEC, EXACT), episodes((0, 1, 3), first=9)
    memory.dropped([(dropped[0], 1.0)])
    memory.learn(episodes((0, 0, 5)), returns(0), 0)
    memory.learn(episodes((0, 0, 6)), returns(0), 1)
    assert memory.baselines(episodes((0, 1, 7)), returns(0)) == [1.0]
    assert memory.state_dict()["starts"][0].tolist() == [2.0, 1.0, 0.0]


def test_how_much_less_is_left_of_the_squares():
    memory = StartMemory(SPEC, EXACT)
    memory.learn(episodes((0, 0, 5), (0, 1, 6)), returns(1, 0), 0)
    # Others of all: 1, 2, 0 … values of starts, with two episodes each of the first: see below.
    starts = episodes((0, 0, 7), (0, 0, 7), (0, 1, 8))
    found = memory.baselines(starts, returns(1, 0, 0))
    assert found == pytest.approx([0.5, 1.0, 0.0])  # (1 + 0)/2, (1 + 1)/2, 0
    # Squares: 1/4 + 1 + 0. The others of the group alone: (1 − 0)² + (0 − 1)² of the first two, whose own are 5/4.
    assert memory.metrics["train/start_variance_to_group"] == pytest.approx(5 / 8)
    # The task's value: all others and memory 1/4, 2/4, 2/4, and with one episode of that (x + 1 + others) / (1 + 4):
    # 1.25/5, 2.5/5, 2.5/5. Squares 9/16, 1/4, 1/4.
    assert memory.metrics["train/start_variance_share"] == pytest.approx((5 / 4) / (17 / 16))


def test_a_plan_knows_what_the_lag_allows():
    memory = StartMemory(SPEC, EXACT, lag=1)
    known = [memory.spread(0)]
    for iteration, value in enumerate((1.0, 0.0, 1.0)):
        memory.learn(episodes((0, 0, 2 * iteration), (0, 1, 2 * iteration + 1)), returns(value, 1.0), iteration)
        known.append(memory._spread().numpy())
        if iteration:
            assert np.array_equal(memory.spread(iteration + 1), known[iteration]), "not that of the last update"
            assert np.array_equal(memory.spread(iteration + 2), known[iteration + 1])
    assert not np.array_equal(known[2], known[3])
    assert len(memory.state_dict()["spreads"]) == 2


@pytest.mark.parametrize("lag", [None, 0, 2])
def test_a_memory_goes_on_as_if_it_had_not_been_interrupted(lag):
    config = StartValueConfig()
    one, other = StartMemory(SPEC, config, lag), StartMemory(SPEC, config, lag)
    for iteration in range(4):
        one.learn(episodes((0, 0, 1), (0, 1, 2), (1, 0, 3)), returns(iteration % 2, 1, 0.5), iteration)
    other.load_state_dict(one.state_dict())
    for memory in (one, other):
        memory.learn(episodes((0, 1, 4)), returns(0.25), 4)
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(torch.as_tensor(first[name]), torch.as_tensor(second[name])) for name in first)
    if lag is not None:
        assert all(np.array_equal(one.spread(n), other.spread(n)) for n in (3, 4, 5))


def test_a_memory_of_other_starts_is_begun_anew():
    memory, other = StartMemory(SPEC, EXACT), StartMemory(replace(SPEC, num_init_states=(3, 1)), EXACT)
    other.learn(episodes((0, 2, 0)), returns(1.0), 0)
    memory.load_state_dict(other.state_dict())
    assert "values of these 3 begin anew" in memory.said
    memory.load_state_dict({})
    assert memory.said == ""
    assert memory.baselines(episodes((0, 0, 0)), returns(1.0)) == [0.0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"tasks": ("a", "b"), "num_init_states": (3, 3)}, {"tasks": ("a", "b", "c"), "num_init_states": (2, 2, 2)}),
        ({"tasks": ("a",), "num_init_states": (6,)}, {"tasks": ("a", "b"), "num_init_states": (3, 3)}),
        ({"tasks": ("a", "b")}, {"tasks": ("a", "c")}),
    ],
)
def test_as_many_starts_of_other_tasks_are_no_memory(before, after):
    memory, other = (StartMemory(replace(SPEC, **changes), EXACT, lag=0) for changes in (after, before))
    other.learn(episodes((0, 0, 0), (0, 1, 0)), returns(1.0, 1.0), 0)
    memory.load_state_dict(other.state_dict())
    assert "begin anew" in memory.said
    assert memory.baselines(episodes((0, 0, 0)), returns(1.0)) == [0.0]
    memory.learn(episodes((0, 0, 0)), returns(1.0), 0)
    assert len(memory.spread(1)) == sum(replace(SPEC, **after).num_init_states)


def test_an_episode_whose_return_is_not_finite_leaves_nothing(collected):
    """Its own update is left out, as that of any estimator; those that follow go on."""
    env, arrays, results = collected
    made, broken = trainer(env), {**arrays, "rewards": arrays["rewards"].copy()}
    broken["rewards"][results[3].rows[0]] = np.nan
    metrics, batch = made.update(broken, results, 0)
    assert metrics["train/optimizer_steps"] == 0
    assert [n for n, value in enumerate(of_episodes(batch)) if not np.isfinite(value)] == [3]
    assert all(bool(tensor.isfinite().all()) for tensor in made.state_dict()["starts"].values())
    assert all(np.isfinite(value) for name, value in metrics.items() if name.startswith("train/start_"))
    metrics, batch = made.update(arrays, results, 1)
    assert np.isfinite(of_episodes(batch)).all()
    assert metrics["train/optimizer_steps"] > 0


def test_returns_are_those_with_penalties():
    results, penalty = episodes((0, 0, 1), (0, 1, 2)), np.array([[-0.5], [0.25]], np.float32)
    numbers = gather_numbers(records([1.0, 0.0]), results, penalties=penalty)
    assert returns_of(numbers, results, REWARDS).tolist() == [0.5, 0.25]


def test_an_episodes_weight_multiplies_its_advantage_and_no_whitening():
    results = episodes((0, 0, 1), weight=2.0) + episodes((0, 1, 2), first=1)
    results[1] = replace(results[1], rows=(1,))
    numbers = gather_numbers(records([3.0, 1.0]), results)
    assert make_batch(numbers, results, make_estimator("raw"), REWARDS).advantages[:, 0].tolist() == [6.0, 1.0]
    white = make_batch(numbers, results, make_estimator("raw", normalize=True), REWARDS).advantages[:, 0]
    assert white.tolist() == pytest.approx([2 * 0.5**0.5, -(0.5**0.5)], rel=1e-5)


# -- the trainer ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collected(shared_rig):
    rig = shared_rig(slots=4, workers=1, success_distance=0.6, num_init_states=4)
    plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
    results, _ = rig.rollout().collect(plan, rig.job())
    return rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def trainer(env: EnvSpec, **algorithm) -> Trainer:
    policy = FakePolicy()
    policy.bind(env)
    actor = ActorConfig(optim=OptimConfig(lr=0.01), model=ModelConfig(_target_="embodied.testing.FakePolicy"))
    config = AlgorithmConfig(group_size=2, adv_type="start_value", **algorithm)
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=config, sampling=Sampling(), device=CPU, seed=0, max_steps=10,
        max_bad_updates=3, starts=StartMemory(env, config.start_value),
    )  # fmt: skip


def of_episodes(batch) -> list[float]:
    first = torch.cat([torch.tensor([True]), batch.sequence_ids.diff() > 0])
    return batch.advantages[first, 0].tolist()


def test_an_update_compares_with_what_was_remembered_before_it(collected):
    env, arrays, results = collected
    made, expected = trainer(env), StartMemory(env, StartValueConfig())
    values = returns(*[sum(float(arrays["rewards"][row].sum()) for row in result.rows) for result in results])
    for iteration in range(3):
        metrics, batch = made.update(arrays, results, iteration)
        wanted = (values - returns(*expected.baselines(results, values))).tolist()
        assert of_episodes(batch) == pytest.approx(wanted, abs=1e-6)
        assert metrics["train/start_memory_share"] == expected.metrics["train/start_memory_share"]
        expected.learn(results, values, iteration)
    assert metrics["train/start_memory_share"] > 0
    state = made.state_dict()["starts"]
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in state.items())


def test_groups_that_are_filtered_out_change_no_baseline_of_the_others(collected, monkeypatch):
    env, arrays, results = collected
    _, batch = trainer(env).update(arrays, results, 0)
    means = sorted(sum(r.episode_return for r in results if r.episode.group_id == g) / 2 for g in range(4))
    made = trainer(env, filter_rewards=True, rewards_lower_bound=means[1] - 1e-4, rewards_upper_bound=99.0)
    scored, score = [], Scorer.__call__

    def watched(*given):
        scored.append(score(*given))
        return scored[-1]

    monkeypatch.setattr(Scorer, "__call__", watched)
    made.update(arrays, results, 0)
    kept = [r.episode.episode_id for r in results if r in results and _mean(results, r) >= means[1] - 1e-4]
    assert len(kept) == 6
    everything = dict(zip([r.episode.episode_id for r in results], of_episodes(batch), strict=True))
    assert of_episodes(scored[0].trained) == [everything[number] for number in kept]


def _mean(results, one) -> float:
    return sum(r.episode_return for r in results if r.episode.group_id == one.episode.group_id) / 2


def test_a_trainer_that_is_loaded_goes_on_with_what_it_remembered(collected):
    env, arrays, results = collected
    one, other = trainer(env), trainer(env)
    one.update(arrays, results, 0)
    other.load_state_dict(one.state_dict())
    (_, first), (_, second) = (made.update(arrays, results, 1) for made in (one, other))
    assert torch.equal(first.advantages, second.advantages)
    _, anew = trainer(env).update(arrays, results, 1)
    assert not torch.equal(first.advantages, anew.advantages)
