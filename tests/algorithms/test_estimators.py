"""Advantages by name: every estimator on the same small iteration, against numbers worked out by hand."""

import pytest
import torch

from embodied.algorithms.advantages.estimators import Experience, make_estimator
from embodied.errors import UnknownNameError

# Episodes 0 and 1 of group 5: returns 3 and 1. Episode 2 of group 8: return 4.
SEEN = Experience(
    rewards=torch.tensor([1.0, 2.0, 1.0, 0.0, 4.0]),
    episode_ids=torch.tensor([0, 0, 1, 2, 2]),
    group_ids=torch.tensor([5, 5, 8]),
    values=torch.tensor([1.0, 1.0, 0.0, 2.0, 3.0]),
    bootstrap=torch.tensor([0.0, 2.0, 0.0]),
    baselines=torch.tensor([2.0, 2.0, 4.0]),
)


def values(name: str, **options) -> list[float]:
    return make_estimator(name, **options)(SEEN).values.tolist()


def whitened(numbers: list[float]) -> list[float]:
    mean = sum(numbers) / len(numbers)
    deviation = (sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)) ** 0.5
    return [(x - mean) / (deviation + 1e-6) for x in numbers]


def test_estimators_of_groups_give_each_element_what_its_episode_has():
    assert values("dr_grpo") == [1.0, 1.0, -1.0, 0.0, 0.0]
    assert values("rloo") == [2.0, 2.0, -2.0, 0.0, 0.0]
    assert values("raw") == [3.0, 3.0, 1.0, 4.0, 4.0]
    # Deviations ±1: std √2 of the sample, 1 of the population.
    assert values("grpo") == pytest.approx([0.5**0.5, 0.5**0.5, -(0.5**0.5), 0, 0], abs=1e-6)
    assert values("grpo", std_ddof=0) == pytest.approx([1, 1, -1, 0, 0], abs=2e-6)


def test_remax_takes_the_greedy_return_off():
    assert values("remax") == [1.0, 1.0, -1.0, 0.0, 0.0]  # 3 − 2, 1 − 2, 4 − 4
    groups = make_estimator("remax")(SEEN).groups
    assert (groups.groups, groups.zero_groups) == (2, 1)


def test_remax_takes_the_whole_return_at_each_step_also_with_dense_rewards():
    """Rewards 1, 2, 3, greedy return 4: 6 − 4 three times. With rewards to go (verl) it would be 2, 5 − 4 and 3 − 4."""
    for rewards, wanted in (([1.0, 2.0, 3.0], [2.0] * 3), ([0.0, 0.0, 6.0], [2.0] * 3)):
        one = torch.zeros(3, dtype=torch.long)
        seen = Experience(torch.tensor(rewards), one, torch.tensor([7]), baselines=torch.tensor([4.0]))
        assert make_estimator("remax", gamma=0.5)(seen).values.tolist() == wanted


def test_reinforce_plus_plus_is_the_discounted_return_whitened_over_all():
    # γ = ½: 1 + ½·2 = 2, 2, 1, ½·4 = 2, 4. Mean 2.2; deviations −.2, −.2, −1.2, −.2, 1.8; Σ² = 4.8, std 1.095445.
    got = values("reinforce_plus_plus", gamma=0.5)
    assert got == pytest.approx([-0.182574, -0.182574, -1.095444, -0.182574, 1.643166], abs=2e-6)


def test_reinforce_plus_plus_baseline_whitens_what_dr_grpo_gives():
    # 1, 1, −1, 0, 0: mean .2, deviations .8, .8, −1.2, −.2, −.2; Σ² = 2.8, std √.7 = .836660.
    got = values("reinforce_plus_plus_baseline", gamma=0.5)
    assert got == pytest.approx([0.956182, 0.956182, -1.434273, -0.239046, -0.239046], abs=3e-6)


def test_gae_and_what_the_value_head_should_have_said():
    # γ = λ = ½. Episode 0: δ₁ = 2 − 1 = 1; δ₀ = 1 + ½ − 1 = ½, A₀ = ½ + ¼ = ¾. Episode 1, truncated: 1 + ½·2 − 0 = 2.
    # Episode 2: δ₁ = 4 − 3 = 1; δ₀ = 0 + ½·3 − 2 = −½, A₀ = −½ + ¼ = −¼.
    found = make_estimator("gae", gamma=0.5, gae_lambda=0.5)(SEEN)
    assert found.values.tolist() == [0.75, 1.0, 2.0, -0.25, 1.0]
    assert found.value_targets.tolist() == [1.75, 2.0, 2.0, 1.75, 4.0]
    # Whitening changes the advantages, not the targets.
    white = make_estimator("gae", gamma=0.5, gae_lambda=0.5, normalize=True)(SEEN)
    assert white.values.tolist() == pytest.approx(whitened([0.75, 1.0, 2.0, -0.25, 1.0]), abs=1e-6)
    assert torch.equal(white.value_targets, found.value_targets)


def test_groups_are_counted_by_the_advantages_that_came_out():
    groups = make_estimator("grpo")(SEEN).groups
    assert (groups.groups, groups.single_groups, groups.zero_groups) == (2, 1, 1)
    assert make_estimator("gae", gamma=0.5, gae_lambda=0.5)(SEEN).groups.zero_groups == 0
    equal = Experience(torch.ones(4), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1]))
    for name in ("grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        found = make_estimator(name)(equal)
        assert found.values.tolist() == [0.0] * 4
        assert found.groups.zero_share == 1.0


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match=r"Did you mean 'grpo'(.|\n)*algorithm.adv_type"):
        make_estimator("gpro")


def test_returns_are_summed_in_float64():
    """2²⁴ + 1 is no float32, and so many rewards of one would be lost."""
    rewards = torch.tensor([2.0**24] + [1.0] * 16)
    experience = Experience(rewards, torch.zeros(17, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    assert experience.returns.tolist() == [2.0**24 + 16]


def test_a_group_whose_advantages_are_all_negative_has_a_gradient():
    """All rewards are less than the value head had promised; one episode of the second group is as it had said."""
    experience = Experience(
        torch.tensor([0.0, -1.0, 0.0, 0.5]), torch.tensor([0, 1, 2, 3]), torch.tensor([7, 7, 8, 8]),
        values=torch.tensor([1.0, 1.0, 0.0, 0.5]), bootstrap=torch.zeros(4),
    )  # fmt: skip
    found = make_estimator("gae")(experience)
    assert found.values.tolist() == [-1.0, -2.0, 0.0, 0.0]
    assert (found.groups.groups, found.groups.zero_groups) == (2, 1)
    assert found.groups.values.tolist() == [1.0, 2.0, 0.0, 0.0], "the largest of each episode, without its sign"
