"""Several sets of weights that act at the same time: which there are, which acts, and what a checkpoint keeps."""

from __future__ import annotations

import pytest
import torch

from embodied.learn.lagged import Lagged, acting_of
from embodied.testing import FakePolicy, FakeTextPolicy


def trained_to(policy: FakePolicy, value: float) -> None:
    with torch.no_grad():
        policy.head.bias.fill_(value)


def acts(acting: Lagged, version: int) -> float:
    acting.use(version)
    assert isinstance(acting.policy, FakePolicy)
    return acting.policy.head.bias[0].item()


def after(iterations: int, lag: int) -> tuple[FakePolicy, Lagged]:
    """Policy and acting sets after so many iterations, each of one optimizer step, which writes its number."""
    policy = FakePolicy()
    trained_to(policy, 0.0)
    acting = Lagged(policy, lag)
    for iteration in range(iterations):
        acting.present = iteration
        acting.begin(iteration + lag, iteration)
        trained_to(policy, iteration + 1.0)
    acting.present = iterations
    return policy, acting


@pytest.mark.parametrize("lag", [2, 3])
@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_each_rollout_has_the_weights_of_so_many_iterations_before(lag, iterations):
    policy, acting = after(iterations, lag)
    for rollout in range(iterations, iterations + lag):
        assert acting.version_of(rollout) == max(0, rollout - lag)
        assert acts(acting, acting.version_of(rollout)) == max(0, rollout - lag)
    assert acts(acting, iterations) == iterations, "the present weights act in the latest one"
    assert acting.policy is not policy


def test_the_present_weights_act_no_more_once_an_update_changes_them():
    policy, acting = after(5, 2)
    acting.use(5)
    acting.begin(7, 5)
    trained_to(policy, 6.0)
    assert (acts(acting, 5), acts(acting, 4)) == (5, 4)
    for version in (3, 6):
        with pytest.raises(LookupError, match=f"version {version} are not kept"):
            acting.use(version)


def test_an_evaluation_has_the_learners_weights_whatever_the_version():
    policy, acting = after(3, 2)
    acting.use(1)
    with acting.evaluated():
        trained_to(policy, 9.0)
        assert [acts(acting, version) for version in (1, 2)] == [9, 9]
    assert [acts(acting, version) for version in (1, 2)] == [1, 2]


def test_a_checkpoint_keeps_the_sets_that_still_act():
    _, acting = after(5, 3)
    state = {name: value.clone() if torch.is_tensor(value) else value for name, value in acting.state_dict().items()}
    assert state["acting_versions"] == [3, 4, 2]
    policy = FakePolicy()
    trained_to(policy, 5.0)
    resumed = Lagged(policy, 3)
    resumed.load_state_dict(state, 5)
    assert [acts(resumed, version) for version in (2, 3, 4, 5)] == [2, 3, 4, 5]
    assert [resumed.version_of(rollout) for rollout in (5, 6, 7)] == [2, 3, 4]


def test_a_checkpoint_of_another_lag_gives_all_sets_its_present_weights():
    _, acting = after(5, 3)
    for state in ({}, acting.state_dict()):
        policy = FakePolicy()
        trained_to(policy, 5.0)
        resumed = Lagged(policy, 2)
        trained_to(policy, 6.0)
        resumed.load_state_dict(state, 6)
        assert [acts(resumed, resumed.version_of(rollout)) for rollout in (6, 7)] == [6, 6]


def test_what_acts_is_of_one_kind_for_robots_and_texts():
    for policy in (FakePolicy(), FakeTextPolicy()):
        assert [type(acting_of(policy, lag, 1)).__name__ for lag in range(4)] == ["Acting", "Apart", "Lagged", "Lagged"]
