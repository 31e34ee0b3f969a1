"""Bytes between the parts of a run, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.parallel.links import RESULT, Link, Traffic, busiest, links
from embodied.parallel.placement.place import place
from embodied.parallel.placement.table import Node, PlacementTable
from embodied.schema import ClusterConfig
from embodied.schema.keys.placement import placed

SIZES = Traffic(
    groups=8, episodes=16, records=160, observations=160, observation=1000, record=1100, trained=600, steps=5
)  # fmt: skip


def table(placement: object, nodes: int = 2, devices: int = 2, slots: int = 16, hosts: int = 0) -> PlacementTable:
    groups = [{"label": "cpu", "node_ranks": f"{nodes}-{nodes + hosts - 1}"}] if hosts else None
    found, places = placed(ClusterConfig(component_placement=placement, node_groups=groups))  # type: ignore[arg-type]
    described = [Node(f"node-{number}", devices if number < nodes else 0) for number in range(nodes + hosts)]
    return place(places, found, described, slots)


def counted(made: PlacementTable, sizes: Traffic = SIZES) -> dict[str, Link]:
    return {link.name: link for link in links(made, sizes)}


def test_collocated_ranks_send_gradients_and_results():
    found = counted(table(None))
    assert [name for name, link in found.items() if link.total] == ["among train ranks", "everything small"]
    ring = found["among train ranks"]  # 4 ranks, each sends 2 · 3/4 · 600 bytes a step to the next
    assert (ring.total, ring.between, ring.most) == (4 * 5 * 900, 2 * 5 * 900, 5 * 900)
    small = found["everything small"]  # each of 4 ranks sends 3/4 of all results on
    assert (small.total, small.most) == (3 * 16 * RESULT, 12 * RESULT)
    assert busiest(list(found.values())) == small


def test_one_process_sends_nothing():
    assert not any(link.total for link in counted(table(None, 1, 1)).values())
    assert busiest(links(table(None, 1, 4), SIZES)) is None, "nothing leaves the node"


def test_disaggregated_ranks_send_records_once_and_weights_once_a_node():
    found = counted(table({"actor": "0-1", "rollout": "2-5"}, nodes=3))
    records, weights = found["rollout → train"], found["train → rollout"]
    assert (records.total, records.between) == (160 * 1100, 160 * 1100)
    assert (records.node, records.most) == ("node-0", 160 * 1100)
    assert (weights.total, weights.between, weights.most) == (4 * 600, 2 * 600, 600)
    assert found["among train ranks"].between == 0


def test_hybrid_ranks_keep_the_records_of_groups_that_they_train_on():
    found = counted(table({"actor": "0-3", "rollout": "2-3"}))  # group g: rank 2 + g mod 2 → rank g mod 4
    assert found["rollout → train"].total == 160 * 1100 // 2, "groups 2 and 3 of each four stay"
    assert found["rollout → train"].between == 160 * 1100 // 2
    assert found["train → rollout"].total == 0, "each process that acts trains, too"


def test_observations_come_from_hosts_in_proportion_to_their_slots():
    found = counted(table({"env": "cpu"}, nodes=1, devices=2, slots=8, hosts=3))["host → rollout"]
    assert (found.total, found.node, found.most) == (160 * 1000, "node-0", 160 * 1000)
    assert not counted(table({"env": "all"}))["host → rollout"].total


def test_sharded_weights_are_gathered_and_their_gradients_scattered():
    sizes = replace(SIZES, gathered=1000, gathers=7, scatters=6, shards=4)
    ring = counted(table(None), sizes)["among train ranks"]
    assert ring.total == 3 * (7 * 1000 + 6 * 600)
    within = counted(table(None), replace(sizes, shards=2))["among train ranks"]
    of_shards = 2 * (7 * 1000 + 6 * 600)  # on each of two nodes: 2 ranks, each sends half
    of_copies = 4 * (2 * 5 * 300 // 2)  # 4 ranks in two rings of two: 2 · 1/2 of half the gradients, 5 steps
    assert (within.total, within.between) == (of_shards + of_copies, of_copies)


def test_a_network_is_busy_as_long_as_its_fuller_direction():
    assert Link("a", 0, 0, "n", 10**9).seconds(2) == 4


PLACED = st.sampled_from(
    [None, {"actor": "0-1", "rollout": "2-5"}, {"actor": "0-5", "rollout": "3-5"}, {"actor": "0-2", "rollout": "0-5"}]
)


@given(PLACED, st.integers(1, 40))
def test_links_are_consistent(placement, groups):
    """What leaves nodes is a part of what leaves processes, and at least what the fullest node takes."""
    sizes = replace(SIZES, groups=groups)
    for link in links(table(placement, nodes=3), sizes):
        assert link.most <= link.between <= link.total
    doubled = links(table(placement, nodes=3), replace(sizes, record=2200, trained=1200))
    for one, other in zip(links(table(placement, nodes=3), sizes), doubled, strict=True):
        same = one.name in ("everything small", "host → rollout")
        assert other.total == pytest.approx(one.total * (1 if same else 2), abs=1)
