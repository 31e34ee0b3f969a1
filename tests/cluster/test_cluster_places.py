"""Where the keys put ranks and simulator hosts on the nodes that a cluster has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embodied.cluster.nodes import Node, Shape
from embodied.cluster.places import Places, places_on
from embodied.cluster.plan import Placing
from embodied.errors import ClusterError, ConfigError
from embodied.parallel.placement.table import NODES, NodeSoftware, nodes_of
from embodied.parallel.placement.table import Node as Described

NODES_THERE = [
    Node("id-cpu", "c-cpu", "198.18.0.3", 0, 0, 32), Node("id-b", "b", "198.18.0.2", 2, 2, 8),
    Node("id-a", "a", "198.18.0.1", 2, 2, 8),
]  # fmt: skip
CPU = {"label": "cpu", "node_ranks": 2}


def placing(placement: object = None, *groups: dict, slots: int = 8) -> Placing:
    return {"component_placement": placement, "node_groups": [*groups], "slots": slots}


def put(wanted: Placing, nodes: list[Node] = NODES_THERE, count: int | None = None, each: int | None = None) -> Places:
    return places_on(nodes, wanted, count, each)


def names(nodes: list[Node]) -> list[str]:
    return [node.name for node in nodes]


def test_ranks_and_hosts_stand_where_the_table_says():
    found = put(placing({"env": "cpu"}, CPU))
    assert (names(found.ranks), names(found.hosts), found.shape) == (["a", "b"], ["c-cpu"], Shape.of(2, 2))
    assert [(host.node, host.rank, host.slots) for host in found.table.hosts] == [("c-cpu", r, 2) for r in range(4)]
    assert nodes_of({NODES: found.described}) == [
        Described("a", 2, 8), Described("b", 2, 8), Described("c-cpu", 0, 32),
    ], "with which the ranks make the same table"  # fmt: skip


def test_a_node_without_a_component_has_no_rank():
    found = put(placing({"actor": 0, "rollout": 1}))
    assert (names(found.ranks), found.hosts, found.shape) == (["a"], [], Shape.of(1, 2))


def test_the_first_nodes_by_name_and_as_many_of_their_devices_as_are_asked_for_are_taken():
    found = put(placing("all"), count=1, each=1)
    assert (names(found.ranks), found.shape) == (["a"], Shape.of(1, 1))


def test_a_node_of_cpus_is_left_to_simulators_if_its_hardware_is_ignored():
    nodes = [replace(node, total=node.cores) for node in NODES_THERE]
    group = {**CPU, "ignore_hardware": True}
    found = put(placing({"env": "cpu"}, group), nodes, each=1)
    assert (names(found.ranks), names(found.hosts), found.shape) == (["a", "b"], ["c-cpu"], Shape.of(2, 1))
    with pytest.raises(ConfigError, match="the processes that act on a have no simulators"):
        put(placing({"env": "cpu"}, CPU), nodes, each=1)


def test_interpreter_and_variables_are_those_of_the_node():
    env = {"node_ranks": 2, "python_interpreter_path": "/opt/py", "env_vars": [{"MUJOCO_GL": "egl"}]}
    found = put(placing({"env": "cpu"}, {**CPU, "env_configs": [env]})).table
    assert found.software_of("c-cpu") == NodeSoftware("/opt/py", {"MUJOCO_GL": "egl"})
    assert found.software_of("a") == NodeSoftware()


def test_nodes_may_have_different_numbers_of_ranks():
    assert put(placing("0-2")).shape == Shape((2, 1))
    nodes = [NODES_THERE[1], replace(NODES_THERE[2], total=4)]
    found = put(placing("all"), nodes)
    assert (names(found.ranks), found.shape, found.devices) == (["a", "b"], Shape((4, 2)), Shape((4, 2)))
    assert put(placing("all"), nodes, each=2).shape == Shape.of(2, 2)


def test_devices_of_simulators_are_taken_beside_those_of_ranks():
    nodes = [replace(node, total=4) for node in NODES_THERE[1:]]
    found = put(placing({"actor,rollout": "0-1,4", "env": "2-3,6"}), nodes)
    assert (found.shape, found.devices) == (Shape((2, 1)), Shape((4, 2)))
    assert [rank.renders for rank in found.table.ranks] == [(2,), (3,), (2,)]
    with pytest.raises(ConfigError, match="8 devices are there, the last on b: 8 is not"):
        put(placing({"actor,rollout": "0-1", "env": "2-3,8"}), nodes)


def test_fewer_nodes_than_the_run_takes_are_named():
    with pytest.raises(ClusterError, match=r"num_nodes is 3, and the cluster has 2: b \(198.18.0.2\), c-cpu"):
        put(placing({"env": "cpu"}, CPU), NODES_THERE[:2], count=3)
