"""Records in which a human overrode the policy are remembered with the chunk of what was executed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.head import HeadPolicy, around_base

from embodied.errors import ConfigError
from embodied.learn.actor_critic.interventions import check_interventions, take_interventions
from embodied.testing import FakeEnv
from embodied.types import Episode, EpisodeResult, Start

ENV = replace(FakeEnv(pictures=False, action_dim=2, num_tasks=1).spec, interventions=True)
CHUNK, RECORDS = 3, 4


def policy_of(kind: str) -> HeadPolicy:
    if kind == "scratch":
        policy = HeadPolicy(num_action_chunks=CHUNK, hidden=8)
    else:
        base = {"url": None, "_target_": "embodied.testing.FakePolicy", "num_action_chunks": CHUNK, "action_dim": 2}
        policy = around_base(base=base, residual_scale=0.5, hidden=8)
    policy.bind(ENV)
    return policy


def slab(policy: HeadPolicy, executed: np.ndarray) -> tuple[dict[str, np.ndarray], list[EpisodeResult]]:
    """An episode of three records, the second of which a human overrode, and its last observation."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"chunk": random.uniform(-1, 1, (RECORDS, policy.head.chunk_size)).astype("f4")}
    for name in policy.reads():
        size = policy.head.base_size if name == "base" else ENV.obs[name].shape[0]
        arrays[name] = random.uniform(-0.4, 0.4, (RECORDS, size)).astype("f4")
    arrays["actions"] = np.broadcast_to(executed, (RECORDS, CHUNK, 2)).astype("f4")
    arrays["num_steps"] = np.array([3, 2, 3, 0], np.int32)
    arrays["demonstrated"] = np.array([False, True, False, True])  # the last one is what an earlier record left
    result = EpisodeResult(Episode(0, 0, Start(0, 0, 0)), (0, 1, 2), 0.0, False, 8, False, True, final_row=3)
    return arrays, [result]


def taken(policy: HeadPolicy, arrays: dict[str, np.ndarray], results: list[EpisodeResult]) -> dict[str, np.ndarray]:
    entries = {name: array.copy() for name, array in arrays.items() if name != "actions"}
    assert take_interventions(policy, arrays, results, entries) == 1
    return entries


@pytest.mark.parametrize("kind", ["scratch", "residual"])
def test_the_chunk_is_the_one_that_gives_the_executed_actions(kind: str) -> None:
    policy = policy_of(kind)
    executed = np.random.default_rng(1).uniform(-0.1, 0.1, (CHUNK, 2)).astype("f4")
    arrays, results = slab(policy, executed)
    entries = taken(policy, arrays, results)
    seen = {name: torch.from_numpy(entries[name][1:2]) for name in policy.reads()}
    if kind == "residual":
        base = torch.from_numpy(arrays["base"][1:2]).unflatten(1, (CHUNK, 2))  # the env's range is from -1 to 1
        seen |= policy.head.given(base)
    got = policy.head.actions({}, torch.from_numpy(entries["chunk"][1:2]), seen)
    assert np.abs(got[0].numpy() - executed).max() < 1e-6
    assert entries["demonstrated"].tolist() == [False, True, False, False]
    for row in (0, 2, 3):
        assert (entries["chunk"][row] == arrays["chunk"][row]).all(), "of others not a bit changes"


def test_what_a_residual_cannot_reach_is_clipped() -> None:
    policy = policy_of("residual")
    arrays, results = slab(policy, np.array([[1.0, -1.0]] * CHUNK, np.float32))
    assert taken(policy, arrays, results)["chunk"][1].tolist() == [1.0, -1.0] * CHUNK


def test_nothing_changes_where_no_interventions_are_declared() -> None:
    policy = policy_of("scratch")
    arrays, results = slab(policy, np.zeros((CHUNK, 2)))
    del arrays["demonstrated"]
    entries = {name: array.copy() for name, array in arrays.items()}
    assert take_interventions(policy, arrays, results, entries) == 0
    assert all((entries[name] == array).all() for name, array in arrays.items())


def test_a_policy_whose_chunk_no_action_tells_is_refused() -> None:
    noise: Any = around_base(
        base={"url": None, "_target_": "embodied.testing.FlowPolicy"}, head="noise", hidden=8, noise_width=None
    )
    with pytest.raises(ConfigError, match="cannot tell with which chunk"):
        check_interventions(ENV, noise)
    check_interventions(replace(ENV, interventions=False), noise)
    check_interventions(ENV, policy_of("residual"))
