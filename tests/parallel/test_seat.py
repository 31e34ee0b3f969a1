"""Where a process stands in the table of a run whose machines have different numbers of processes."""

from __future__ import annotations

import pytest

from embodied.parallel.group import Group
from embodied.parallel.placement.table import Node, PlacementTable, Rank

ROLLOUT, TRAIN, BOTH = frozenset({"rollout"}), frozenset({"train"}), frozenset({"rollout", "train"})
TABLE = PlacementTable(
    (Node("a", 1), Node("b", 4), Node("c", 4)),
    (Rank(0, "a", 0, 0, TRAIN), Rank(1, "b", 1, 0, BOTH, (3,)), Rank(2, "b", 2, 1, ROLLOUT, (3,)),
     Rank(3, "c", 3, 0, ROLLOUT, (0, 3)), Rank(4, "c", 0, 1, ROLLOUT, (0,))),
)  # fmt: skip
LOCAL = [(0, 1), (0, 2), (1, 2), (0, 2), (1, 2)]


def seats(launcher: str = "torchrun") -> list[Group]:
    return [Group(rank, 5, *local, launcher=launcher).with_table(TABLE) for rank, local in enumerate(LOCAL)]  # type: ignore[arg-type]


def test_processes_of_a_role_are_counted_on_their_own_machines():
    rollout = [group.of("rollout") for group in seats()]
    assert [(group.local_rank, group.local_size) for group in rollout[1:]] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert not rollout[0].here
    train = [group.of("train") for group in seats()]
    assert [(group.local_rank, group.local_size) for group in train[:2]] == [(0, 1), (0, 1)]
    assert [group.members for group in (rollout[0], train[0])] == [(1, 2, 3, 4), (0, 1)]


def test_machines_are_those_with_processes():
    assert {group.num_nodes for group in seats()} == {3}
    assert (Group().num_nodes, Group(0, 4, 0, 2).num_nodes, Group(0, 3, 0, 2).num_nodes) == (1, 2, 2)


def test_a_process_has_the_device_of_the_table():
    assert [group.device for group in seats()] == [0, 1, 2, 3, 0]
    assert [group.seen(TABLE.ranks[group.rank].renders) for group in seats()[1:]] == [(3,), (3,), (0, 3), (0,)]
    assert Group(3, 4, 1, 2).device == 1, "of its number, where there is no table"


def test_ray_shows_the_devices_that_the_run_has_on_a_node_alone():
    assert [group.device for group in seats("ray")] == [0, 0, 1, 1, 0]
    assert [group.seen(TABLE.ranks[group.rank].renders) for group in seats("ray")[1:]] == [(2,), (2,), (0, 1), (0,)]


@pytest.mark.parametrize("role", ["rollout", "train"])
def test_the_group_of_a_role_knows_its_place_as_well(role):
    for group in seats():
        own = group.of(role)
        assert own.placed == (TABLE.ranks[group.rank] if own.here else None)
