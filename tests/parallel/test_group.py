"""A group of processes: what it says of itself, and collectives of real processes."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from ranks import on_ranks

from embodied.errors import ConfigError, RankError
from embodied.parallel.group import Group, lost_rank

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


def test_torchrun_says_which_process_this_is():
    world = Group.from_environment(TORCHRUN)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (3, 4, 1, 2)
    assert not world.is_main
    assert world.name == "rank 3: "


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_is_a_world_of_its_own(environment):
    world = Group.from_environment(environment)
    with world.connected(on_gpu=False, timeout_s=1.0):
        assert not torch.distributed.is_initialized()
        assert (world.size, world.is_main, world.name) == (1, True, "")
        tensor = torch.ones(2)
        assert world.sum(tensor) is tensor
        assert (world.gather("a"), world.any(True), world.add(2.5)) == (["a"], True, 2.5)
        world.post("key", 1)


def test_an_incomplete_description_is_refused():
    with pytest.raises(ConfigError, match="WORLD_SIZE is 4 and LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"):
        Group.from_environment({"WORLD_SIZE": "4", "RANK": "0"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WORLD_SIZE", "abc"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "-4"), ("WORLD_SIZE", "4.0"), ("WORLD_SIZE", "²"),
        ("RANK", "4"), ("RANK", "-1"), ("RANK", ""), ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "5"),
    ],
)  # fmt: skip
def test_numbers_of_the_environment_that_are_none_or_out_of_range_are_refused(name, text):
    with pytest.raises(ConfigError, match=rf"the environment variable {name} is '{text}', expected a whole number"):
        Group.from_environment(TORCHRUN | {name: text})


def test_an_empty_variable_is_an_unset_one():
    assert Group.from_environment({"WORLD_SIZE": ""}).size == 1
    assert Group.from_environment(TORCHRUN | {"LOCAL_WORLD_SIZE": ""}).local_size == 4


def test_the_group_of_a_role_is_asked_for():
    group = Group(1, 2)
    assert group.of("rollout") is group.of("train") is group
    hosts = Group(1, 2, roles=frozenset({"rollout"}))
    assert hosts.of("rollout") is hosts
    with pytest.raises(ConfigError, match="no process of this run has the role 'train', its 2 processes have: rollout"):
        hosts.of("train")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_item_has_one_rank_and_groups_stay_together(size):
    groups = [7, 7, 7, 9, 9, 9, 8, 8, 8, 1, 1, 1]
    shares = [Group(rank, size).share(list(enumerate(groups)), together=lambda item: item[1]) for rank in range(size)]
    assert sorted(item for share in shares for item in share) == list(enumerate(groups))
    owners = [{group for _, group in share} for share in shares]
    assert sum(map(len, owners)) == 4
    assert [len(share) for share in (Group(rank, size).share(range(12)) for rank in range(size))] == [12 // size] * size


def exchange(world: Group):
    large = np.arange(3 * 2**20, dtype=np.uint8)
    if world.is_main:
        world.post("large", large)
        world.post("large", None)
    read = bool(world.is_main or np.array_equal(world.read("large"), large))  # before rank 0, who keeps it, may leave
    return {
        "read": read,
        "gather": world.gather({"rank": world.rank}),
        "any": (world.any(world.rank == 1), world.any(False)),
        "add": world.add(0.1 * (world.rank + 1)),
        "sum": world.sum(torch.full((3,), float(world.rank + 1))).tolist(),
    }


def test_ranks_exchange_values():
    results = on_ranks(exchange)
    assert results[0] == results[1]
    assert results[0] == {
        "gather": [{"rank": 0}, {"rank": 1}], "any": (True, False), "add": 0.1 + 0.2,
        "sum": [3.0, 3.0, 3.0], "read": True,
    }  # fmt: skip


def leave(world: Group) -> str:
    """Rank 1 goes without a word; what rank 0 is told."""
    if world.rank == 1:
        os._exit(0)
    with pytest.raises(RankError) as caught:
        world.gather("hello")
    return str(caught.value)


def test_a_rank_that_is_gone_is_an_error_that_says_so():
    told, nothing = on_ranks(leave, leaves=(1,))
    assert nothing is None
    assert "rank 0 waited for the other ranks in vain" in told


def test_which_errors_only_tell_of_another_rank():
    assert lost_rank(RankError("gone", "see"))
    assert lost_rank(RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"))
    assert not lost_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not lost_rank(ValueError("gloo"))
