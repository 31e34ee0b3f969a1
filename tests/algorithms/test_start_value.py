"""Values of starts against numbers worked out by hand, and what they must not depend on."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied.algorithms.advantages.start_value import Level, Seen, StartValues


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def seen(returns, starts, tasks=None, mates=None) -> Seen:
    tasks = [0] * len(returns) if tasks is None else tasks
    mates = starts if mates is None else mates
    return Seen(numbers(*returns), torch.tensor(tasks), torch.tensor(starts), torch.tensor(mates))


def remembering(starts: Level, tasks: Level, overall: Level) -> StartValues:
    return StartValues(overall, tasks, starts, torch.zeros(4, dtype=torch.float64), numbers(0.0, 1.0))


def test_memory_group_and_task_count_by_how_much_each_knows():
    """One task, worth 1/2 in 2 remembered episodes; start 0 has 3 of sum 2, start 1 has none. κ = 2."""
    memory = remembering(Level(numbers(3.0, 0.0), numbers(2.0, 0.0)), Level(numbers(2.0), numbers(1.0)),
                         Level(numbers(2.0), numbers(1.0)))  # fmt: skip
    found = memory.baselines(seen([1.0, 0.0, 1.0], [0, 0, 1]), prior=2.0, follows=False)
    # All: (1 + others) / (2 + 2): others 1, 2, 1 → 1/2, 3/4, 1/2.
    # The task, with one episode of that beside its own 2 and the others: (all + 1 + others) / (1 + 2 + 2) =
    # 2.5/5, 3.75/5, 2.5/5 = 1/2, 3/4, 1/2.
    assert found.of_tasks.tolist() == pytest.approx([0.5, 0.75, 0.5])
    # Start 0: (2 · task + 2 + other) / (2 + 3 + 1) = 3/6 with the other's 0, 4.5/6 with its 1. Start 1: its task's.
    assert found.values.tolist() == pytest.approx([0.5, 0.75, 0.5])
    assert found.remembered.tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert found.of_mates[:2].tolist() == [0.0, 1.0]
    assert math.isnan(found.of_mates[2])


def test_a_new_start_begins_with_the_value_of_its_task():
    memory = remembering(Level(numbers(4.0, 0.0), numbers(3.0, 0.0)), Level(numbers(4.0, 4.0), numbers(3.0, 1.0)),
                         Level(numbers(8.0), numbers(4.0)))  # fmt: skip
    found = memory.baselines(seen([1.0], [1], tasks=[1]), prior=2.0, follows=False)
    # All are worth 4/8; the task (1/2 + 1) / (1 + 4) = 0.3, and so is the start, of which nothing is remembered.
    assert found.values.tolist() == pytest.approx([0.3])


def test_the_first_episode_of_all_is_compared_with_nothing():
    assert StartValues.empty(1, 1).baselines(seen([3.0], [0]), prior=1.0, follows=True).values.tolist() == [0.0]


@pytest.mark.parametrize("prior", [0.0, 2.5])
def test_with_one_start_and_infinite_memory_it_is_the_running_mean(prior):
    returns, memory = [1.0, 0.0, 0.0, 1.0, 1.0, 0.25], StartValues.empty(1, 1)
    for number, value in enumerate(returns):
        one = seen([value], [0])
        if number:
            mean = sum(returns[:number]) / number
            # The task's value begins with one episode of the value of all, which is the running mean, too.
            assert memory.baselines(one, prior, follows=False).values.item() == pytest.approx(mean)
        memory = memory.after(one, half_life=None)


def test_of_several_starts_each_has_its_own_running_mean_without_a_prior():
    memory = StartValues.empty(1, 3)
    for first, second in ((1.0, 0.0), (0.0, 0.0), (1.0, 1.0)):
        memory = memory.after(seen([first, second], [0, 2]), half_life=None)
    found = memory.baselines(seen([0.0, 0.0], [0, 2]), prior=0.0, follows=False)
    assert found.values.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_of_returns_0_and_1_it_is_the_mean_of_a_beta_posterior():
    """κ = 4 and a task worth 1/4: Beta(1, 3). After 3 successes and 1 failure: Beta(4, 4), of mean 1/2."""
    memory = remembering(Level(numbers(4.0), numbers(3.0)), Level(numbers(400.0), numbers(100.0)),
                         Level(numbers(400.0), numbers(100.0)))  # fmt: skip
    assert memory.expected(torch.tensor([0]), prior=4.0, follows=False).item() == pytest.approx(0.5)


def test_after_a_half_life_an_episode_counts_half():
    memory = StartValues.empty(1, 2).after(seen([1.0], [0]), half_life=2.0)
    for _ in range(2):
        memory = memory.after(seen([0.0], [1]), half_life=2.0)
    assert memory.starts.weight[0].item() == pytest.approx(0.5)
    # Start 1 came two and one iterations ago: 1/√2 + 1.
    assert memory.starts.weight[1].item() == pytest.approx(0.5**0.5 + 1)
    # With one episode an iteration the task and all episodes lose one part of 64, not what 4 or 16 times as fast is.
    assert memory.tasks.weight.item() == pytest.approx(1 + 63 / 64 + (63 / 64) ** 2)
    assert memory.overall.weight.item() == pytest.approx(1 + 63 / 64 + (63 / 64) ** 2)


def test_of_many_episodes_a_task_forgets_4_times_as_fast_and_all_16_times():
    many = seen([1.0] * 64, [0] * 64)
    memory = StartValues.empty(2, 2).after(many, half_life=2.0)
    memory = memory.after(seen([0.0] * 64, [1] * 64, [1] * 64), half_life=2.0)
    assert memory.tasks.weight.tolist() == [64, 64], "a task without episodes forgets nothing"
    assert memory.overall.weight.item() == pytest.approx(64 + 64 / 256)
    assert memory.after(many, half_life=2.0).tasks.weight[0].item() == pytest.approx(64 + 64 / 4)


def test_what_all_starts_gain_together_needs_no_learning_anew():
    """Two starts, worth 0 and 1; then all are 10 higher. Start 0 does not come again, and moves all the same."""
    memory = StartValues.empty(1, 2)
    for _ in range(20):
        memory = memory.after(seen([0.0, 1.0] * 32, [0, 1] * 32), half_life=4.0)
    before = memory.expected(torch.tensor([0, 0]), memory.prior, follows=True)
    assert before.tolist() == pytest.approx([0.0, 1.0], abs=0.3)
    for _ in range(6):
        memory = memory.after(seen([11.0] * 64, [1] * 64), half_life=4.0)
    expected = memory.expected(torch.tensor([0, 0]), memory.prior, follows=True)
    assert expected.tolist() == pytest.approx([10.0, 11.0], abs=1.0), "not the 0 that was seen of start 0"


@given(st.lists(st.integers(-4, 4), min_size=6, max_size=6), st.integers(0, 5), st.booleans())
def test_the_own_return_is_in_no_baseline(returns, which, follows):
    starts, tasks, mates = [0, 0, 1, 1, 2, -1], [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 9]
    half_life = 4.0 if follows else None
    memory = StartValues.empty(2, 3).after(seen([1.0, 0.0, 0.5], [0, 1, 2], [0, 0, 1]), half_life)

    def baseline(values):
        return memory.baselines(seen(values, starts, tasks, mates), memory.prior, follows).values[which].item()

    other = [value + 1000 * (number == which) for number, value in enumerate(returns)]
    assert baseline(other) == pytest.approx(baseline(returns), abs=1e-9)


def gradient_of(logit: float, baseline) -> float:
    """The expected gradient of the mean return of two episodes of one start, each 0 or 1 with the chances of a logit,
    by all four outcomes: ``E[½ Σ (R − b) d log p(R) / d logit]``."""
    p = 1 / (1 + math.exp(-logit))
    total = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=2):
        chance = math.prod(p if value else 1 - p for value in outcome)
        scores = [value - p for value in outcome]
        total += chance * sum(
            (value - b) * score for value, b, score in zip(outcome, baseline(outcome), scores, strict=True)
        )
    return total / 2


def test_the_gradient_is_unbiased_and_would_not_be_with_the_own_return():
    memory = StartValues.empty(1, 2).after(seen([1.0, 1.0, 0.0], [0, 0, 1]), half_life=8.0)
    p = 1 / (1 + math.exp(-0.7))

    def of_memory(outcome):
        return memory.baselines(seen(outcome, [0, 0]), memory.prior, follows=True).values.tolist()

    def with_own(outcome):
        later = memory.after(seen(outcome, [0, 0]), half_life=8.0)
        return later.baselines(seen(outcome, [0, 0]), later.prior, follows=True).values.tolist()

    assert gradient_of(0.7, of_memory) == pytest.approx(p * (1 - p), rel=1e-9), "d p / d logit"
    assert gradient_of(0.7, with_own) != pytest.approx(p * (1 - p), rel=0.05)


def test_how_much_starts_differ_is_estimated_from_pairs_of_one_start():
    one = StartValues.empty(1, 2).after(seen([2.0, 2.0, 0.0, 0.0], [0, 0, 1, 1]), half_life=None)
    # Nothing is remembered: the mean of the three others is 2/3 or 4/3, and so is the task's value. Distances 4/3, 4/3,
    # −4/3, −4/3. Others of the start: 2 − 2/3 = 4/3 of 2's, −4/3 of 0's: four products of 16/9, and four squares.
    assert one.pairs.tolist() == pytest.approx([64 / 9, 4, 64 / 9, 4])
    # Share between starts: (4 + 4) / (8 + 4) = 2/3, so κ = 1/2.
    assert one.prior == pytest.approx(0.5)
    assert StartValues.empty(1, 2).prior == pytest.approx(1.0), "half of the variance, before anything is known"
    # 2 and 0 in both starts: the other of a 2 is 0 − 2/3, that of a 0 is 2 − 4/3. Four products of −8/9, in squares
    # −2: (4 − 2) / (8 + 4) = 1/6, so κ = 5.
    alike = StartValues.empty(1, 2).after(seen([2.0, 0.0, 2.0, 0.0], [0, 0, 1, 1]), half_life=None)
    assert alike.prior == pytest.approx(5.0)
    for _ in range(20):
        alike = alike.after(seen([2.0, 0.0, 2.0, 0.0], [0, 0, 1, 1]), half_life=None)
    assert alike.prior == pytest.approx(49.0), "at most"


def test_remembered_episodes_are_pairs_as_well():
    memory = StartValues.empty(1, 2).after(seen([1.0, 0.0], [0, 1]), half_life=None)
    later = memory.after(seen([1.0, 0.0], [0, 1]), half_life=None)
    # Of the first return: all others 1, 0, 0 have mean 1/3; the task (1/3 + 1) / (1 + 3) = 1/3. Distance 2/3; what is
    # remembered of its start lies 1 − 1/3 = 2/3 away. Of the second the same with −2/3: two products of 4/9.
    assert (later.pairs - memory.pairs).tolist() == pytest.approx([8 / 9, 2, 8 / 9, 2])


def test_returns_of_a_start_at_half_success_may_differ_most():
    memory = StartValues.empty(1, 3)
    assert memory.spread(torch.zeros(3, dtype=torch.long), 1.0, False).tolist() == [1.0, 1.0, 1.0]
    for first, second, third in ((1.0, 0.0, 1.0), (1.0, 0.0, 0.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)):
        memory = memory.after(seen([first, second, third], [0, 1, 2]), half_life=None)
    # Without a prior their values are 1, 1/4 and 1/2: √(v(1 − v)).
    spread = memory.spread(torch.zeros(3, dtype=torch.long), 0.0, False)
    assert spread.tolist() == pytest.approx([0.0, (3 / 16) ** 0.5, 0.5])
    assert memory.bounds.tolist() == [0.0, 1.0]


def test_bounds_are_those_of_all_returns_so_far():
    memory = StartValues.empty(1, 1).after(seen([3.0], [0]), half_life=None)
    assert memory.bounds.tolist() == [3.0, 3.0]
    assert memory.after(seen([-1.0], [0]), half_life=None).bounds.tolist() == [-1.0, 3.0]


def test_bounds_come_nearer_to_the_value_of_all_by_half_in_a_half_life():
    memory = StartValues.empty(1, 1).after(seen([4.0] * 64, [0] * 64), half_life=1.0)
    later = memory.after(seen([0.0] * 64, [0] * 64), half_life=1.0)
    level = 4 / 2**16 / (1 + 1 / 2**16)
    assert later.bounds.tolist() == pytest.approx([0.0, level + (4 - level) / 2])


def test_one_outlier_prefers_hopeless_starts_for_a_time_only():
    """Start 0 fails always, start 1 half the time."""
    memory, tasks = StartValues.empty(1, 2).after(seen([-1000.0], [0]), half_life=2.0), torch.zeros(2, dtype=torch.long)
    for _ in range(60):
        memory = memory.after(seen([0.0, 0.0, 0.0, 1.0] * 4, [0, 0, 1, 1] * 4), half_life=2.0)
    hopeless, even = memory.spread(tasks, memory.prior, True).tolist()
    assert hopeless < even / 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_return_that_is_not_finite_is_nobodys_other_and_is_not_remembered(value):
    memory = StartValues.empty(1, 2).after(seen([1.0, 0.0], [0, 1]), half_life=8.0)
    without, with_it = seen([1.0, 0.0, 1.0], [0, 0, 1]), seen([1.0, value, 0.0, 1.0], [0, 0, 0, 1])
    found, expected = (memory.baselines(each, 1.0, follows=True) for each in (with_it, without))
    assert found.values[[0, 2, 3]].tolist() == pytest.approx(expected.values.tolist())
    assert math.isfinite(found.values[1]), "the episode itself is compared, and its advantage is not finite"
    later, wanted = (memory.after(each, half_life=8.0).tensors() for each in (with_it, without))
    assert all(torch.equal(later[name], wanted[name]) for name in wanted)
    assert memory.after(seen([value], [0]), half_life=8.0) is memory


def test_small_returns_of_others_are_not_lost_beside_a_large_one():
    memory = StartValues.empty(1, 1)
    found = memory.baselines(seen([1e17, 1.0, 0.0, 1.0], [0] * 4), prior=0.0, follows=True)
    assert found.of_mates[0].item() == pytest.approx(2 / 3)
    mixed = memory.baselines(seen([5.0, 1.0, 7.0, 2.0, 3.0], [0, -1, 0, -1, -1], mates=[8, 3, 8, 3, 3]), 0.0, True)
    assert mixed.of_mates.tolist() == [7.0, 2.5, 5.0, 2.0, 1.5]


def test_what_is_all_but_forgotten_still_has_its_mean():
    memory = remembering(Level(numbers(2.0**-1005), numbers(2.0**-1005 * 0.75)), Level.empty(1), Level.empty(1))
    assert memory.expected(torch.tensor([0]), prior=0.0, follows=False).item() == pytest.approx(0.75)


def mean_squares(starts: int, episodes: int, drift: float, seed: int) -> list[float]:
    """Of ``(R − baseline)²`` with the memory, with the start's discounted mean and one episode of 1/2 (the mean of all
    starts, and how much they differ, which the memory is not told), and with the mean of all starts' chances."""
    random, half_life, iterations = np.random.default_rng(seed), 8.0, 100
    logits = np.log(1 / random.beta(0.5, 0.5, starts).clip(0.02, 0.98) - 1)
    memory, total, weight = StartValues.empty(1, starts), np.zeros(starts), np.zeros(starts)
    order, squares = list[int](), []
    for iteration in range(iterations):
        while len(order) < episodes:
            order += random.permutation(starts).tolist()
        drawn, order = np.array(order[:episodes]), order[episodes:]
        chance = 1 / (1 + np.exp(logits - drift * (iteration / iterations - 0.5)))
        returns = (random.random(episodes) < chance[drawn]).astype(float)
        now = seen(returns, drawn.tolist())
        values = memory.baselines(now, memory.prior, follows=True).values.numpy()
        plain = (total[drawn] + 0.5) / (weight[drawn] + 1)
        if iteration >= 20:
            squares.append([np.mean((returns - b) ** 2) for b in (values, plain, chance.mean())])
        total, weight = total * 0.5 ** (1 / half_life), weight * 0.5 ** (1 / half_life)
        np.add.at(total, drawn, returns)
        np.add.at(weight, drawn, 1)
        memory = memory.after(now, half_life)
    return np.mean(squares, axis=0).tolist()


@pytest.mark.parametrize("drift", [0.0, 6.0])
@pytest.mark.parametrize(("starts", "episodes"), [(8, 1), (8, 2), (8, 4), (8, 8), (64, 8), (64, 64)])
def test_however_few_episodes_an_update_has_the_memory_is_no_worse_than_simpler_means(starts, episodes, drift):
    memory, plain, mean = np.mean([mean_squares(starts, episodes, drift, seed) for seed in range(2)], axis=0)
    assert memory <= 1.08 * plain, "which is told how the starts were drawn: to learn that costs some"
    assert memory <= mean


def test_a_start_that_never_repeats_is_remembered_as_its_task_alone():
    memory = StartValues.empty(1, 1).after(seen([1.0, 1.0, 0.0, 1.0], [-1, -1, -1, 0], mates=[5, 5, 6, 7]), None)
    assert memory.starts.weight.tolist() == [1.0], "of the start that does"
    assert memory.tasks.weight.tolist() == [4.0]
    found = memory.baselines(seen([0.0, 0.0, 1.0], [-1, -1, -1], mates=[7, 7, 8]), prior=1.0, follows=False)
    assert found.remembered.tolist() == [0.0, 0.0, 0.0]
    assert found.of_mates[:2].tolist() == [0.0, 0.0], "episodes of one seed are compared"


def test_tensors_hold_all_of_it():
    memory = StartValues.empty(2, 3).after(seen([1.0, 0.0], [0, 2], [0, 1]), half_life=3.0)
    again = StartValues.of(memory.tensors())
    assert all(torch.equal(value, again.tensors()[name]) for name, value in memory.tensors().items())
    after = [one.after(seen([0.5], [1], [0]), half_life=3.0).tensors() for one in (memory, again)]
    assert all(torch.equal(value, after[1][name]) for name, value in after[0].items())
