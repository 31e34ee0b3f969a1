"""The small network of numbers, ``model=mlp``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from embodied.models.mlp import MLPPolicy

from embodied.errors import ConfigError, SpecMismatchError
from embodied.testing import FakeEnv, check_policy
from embodied.types import DiscreteAction, Sampling, TextAction

SPEC = FakeEnv(pictures=False).spec


@pytest.mark.parametrize("action", [SPEC.action, DiscreteAction(5)], ids=["continuous", "discrete"])
@pytest.mark.parametrize(
    "values", [{}, {"value_head": True}, {"value_head": True, "value_type": "action_level"}], ids=str
)
def test_it_keeps_the_promises_of_a_policy(action, values):
    policy = MLPPolicy(num_action_chunks=3, hidden=16, **values)
    check_policy(policy, replace(SPEC, action=action))
    assert "value" in policy.spec.decision if values else "value" not in policy.spec.decision


def test_its_weights_are_those_of_its_seed_whatever_was_drawn_before():
    made = []
    for seed in (0, 0, 1):
        torch.rand(3)
        policy = MLPPolicy(hidden=8, seed=seed)
        policy.bind(SPEC)
        made.append(torch.cat([weights.flatten() for weights in policy.parameters()]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_it_refuses_what_it_cannot_see_or_do():
    with pytest.raises(SpecMismatchError, match="has no state"):
        MLPPolicy().bind(replace(SPEC, obs={}))
    with pytest.raises(SpecMismatchError, match="takes text"):
        MLPPolicy().bind(replace(SPEC, action=TextAction(8)))
    with pytest.raises(ConfigError, match=r"actor\.model\.layers is 0"):
        MLPPolicy(layers=0)
    policy = MLPPolicy()
    with pytest.raises(SpecMismatchError, match="no sizes yet"):
        _ = policy.spec
    policy.bind(SPEC)
    with pytest.raises(SpecMismatchError, match="a state of 3 numbers"):
        policy.bind(FakeEnv(pictures=False, state_dim=3).spec)


def test_demonstrations_give_the_ranges_and_a_checkpoint_keeps_them():
    policy, other = MLPPolicy(hidden=8, bins=3), MLPPolicy(hidden=8, bins=3)
    dims, state = SPEC.action_dim, SPEC.obs["state"].shape[0]
    values = {
        "action": {"q01": [-0.5] * dims, "q99": [0.25] * dims},
        "proprio": {"q01": [0.0] * state, "q99": [2.0] * (state - 1) + [0.0]},
    }
    for one in (policy, other):
        one.bind(SPEC)
    policy.use_statistics("some", values)
    other.load_extra_state(policy.extra_state())
    other.bind(SPEC)  # the ranges stay
    for one in (policy, other):
        actions = torch.full((1, 4, dims), 0.25)
        assert one.encode_actions(actions)["action_tokens"].unique().tolist() == [2]
        assert one.low.tolist() == [-0.5] * dims
        assert one.centre.tolist() == [1.0] * (state - 1) + [0.0]
        assert one.width.tolist() == [1.0] * state, "a number that never changed is not divided by nothing"
    obs = {"state": torch.zeros(1, state), **policy.encode_instructions(SPEC.tasks[:1])}
    drawn = policy.act(obs, torch.rand(1, 4 * dims), Sampling()).fields["actions"]
    assert float(drawn.min()) >= -0.5
    assert float(drawn.max()) <= 0.25


def test_a_state_that_goes_further_than_at_random_is_not_cut_off():
    """A checkpoint without a scale, or with one of demonstrations, reads what it read."""
    state = SPEC.obs["state"].shape[0]
    far = torch.tensor([[-200.0], [-30.0], [-3.0], [0.5], [3.0], [30.0], [200.0]]).expand(-1, state)
    obs = {"state": far, **MLPPolicy(hidden=8).encode_instructions(["x"] * len(far))}
    policy = MLPPolicy(hidden=8)
    policy.bind(SPEC)
    assert policy.needs_scale
    assert policy._read(obs)[:, 0].tolist() == [-10, -10, -3, 0.5, 3, 10, 10]
    policy.use_statistics("first", {"proprio": {"mean": [0.0] * state, "std": [1.0] * state}})
    assert not policy.needs_scale
    read = policy._read(obs)[:, 0]
    assert read[2:5].tolist() == [-3, 0.5, 3]
    assert (read.diff() > 0).all()
    assert read.abs().max() < 16
    policy.use_statistics("shown", {"proprio": {"q01": [-1.0] * state, "q99": [1.0] * state}})
    assert policy._read(obs)[:, 0].tolist() == [-10, -10, -3, 0.5, 3, 10, 10]
    assert not MLPPolicy(hidden=8, normalize_state=False).needs_scale


def test_a_task_is_told_by_its_sentence():
    policy = MLPPolicy(hidden=8)
    policy.bind(SPEC)
    rows = policy.encode_instructions([*SPEC.tasks, "another", "another"])["task"].tolist()
    assert rows[:2] == [0, 1]
    assert rows[2] == rows[3]
