"""Tables of ranks and simulator hosts: equal descriptions give equal tables, and what cannot be is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import ConfigError
from embodied.parallel.placement.place import place
from embodied.parallel.placement.table import EVERY_ROLE, NODES, Node, PlacementTable, by_name, nodes_of
from embodied.schema import ClusterConfig
from embodied.schema.keys.placement import placed

CPU = {"label": "cpu", "node_ranks": "1-3", "ignore_hardware": True}


def table(
    placement: Any = None, nodes: int | list[Node] = 1, devices: int = 8, slots: int = 64, groups: Any = None
) -> PlacementTable:  # fmt: skip
    found, places = placed(ClusterConfig(component_placement=placement, node_groups=groups))
    made = nodes if isinstance(nodes, list) else [Node(f"node-{number}", devices) for number in range(nodes)]
    return place(places, found, made, slots)


def told(found: PlacementTable) -> list[tuple[int, str, int, str]]:
    return [(rank.rank, rank.node, rank.device, "+".join(sorted(rank.roles))) for rank in found.ranks]


def test_without_a_placement_each_device_does_everything():
    found = table(nodes=2, devices=2)
    assert told(found) == [(0, "node-0", 0, "rollout+train"), (1, "node-0", 1, "rollout+train"),
                           (2, "node-1", 0, "rollout+train"), (3, "node-1", 1, "rollout+train")]  # fmt: skip
    assert found.collocated
    assert found == table("all", 2, 2) == table({"actor,rollout,env,reward,critic": "0-3"}, 2, 2)


def test_disaggregated():
    found = table({"actor": "0-3", "rollout": "4-7", "env": "4-7"})
    assert (found.ranks_of("train"), found.ranks_of("rollout")) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [rank.renders for rank in found.ranks] == [(), (), (), (), (4,), (5,), (6,), (7,)]
    assert not found.collocated
    assert found == table({"actor": "0-3", "rollout": "4-7"}), "simulators stand beside the processes that act"
    assert found == table({"actor": "0-3", "rollout,env,reward": [4, "5-7"], "inference": "0-3"})
    assert found.rows() == [["train", "ranks 0-3 (4) on node-0"], ["rollout", "ranks 4-7 (4) on node-0"]]


def test_hybrid():
    found = table({"actor": "0-7", "rollout": "4-7", "env": "0-3"})
    assert [rank.roles == EVERY_ROLE for rank in found.ranks] == 4 * [False] + 4 * [True]
    assert [rank.renders for rank in found.ranks[4:]] == [(0,), (1,), (2,), (3,)]
    assert found.rows()[2:] == [
        ["simulators", f"of rank {rank}: on device {rank - 4} of node-0"] for rank in range(4, 8)
    ]


def test_devices_of_simulators_are_dealt_in_turn():
    assert [rank.renders for rank in table({"rollout": "0-1", "actor": "0-1", "env": "2-7"}).ranks] == [
        (2, 4, 6), (3, 5, 7),
    ]  # fmt: skip
    one = table({"env": 3}, devices=4)
    assert [rank.renders for rank in one.ranks] == [(3,), (3,), (3,), (3,)]
    assert one.rows()[1:] == [["simulators", "of ranks 0-2 (3): on device 3 of node-0"]], "rank 3 is there already"


def test_simulators_on_other_devices_of_their_nodes():
    found = table({"actor,rollout": "2-3,6-7", "env": "0-1,4"}, 2, 4)
    assert [(rank.node, rank.device, rank.local_rank, rank.renders) for rank in found.ranks] == [
        ("node-0", 2, 0, (0,)), ("node-0", 3, 1, (1,)), ("node-1", 2, 0, (0,)), ("node-1", 3, 1, (0,)),
    ]  # fmt: skip
    assert (found.devices_of("node-0"), found.devices_of("node-1")) == ((0, 1, 2, 3), (0, 2, 3))
    assert found.rows() == [
        ["rollout, train", "ranks 0-3 (4) on node-0 and node-1, 2 on each, devices 2-3"],
        ["simulators", "of ranks 0,2-3 (3): on device 0 of node-0 and node-1"],
        ["simulators", "of rank 1: on device 1 of node-0"],
        ["idle", "1 devices on node-1"],
    ]
    assert found.renders_elsewhere
    assert not found.collocated


def test_many_devices_of_simulators_are_one_line():
    found = table({"actor,rollout": "0-9", "env": "10-19"}, devices=20)
    assert found.rows()[1:] == [["simulators", "of ranks 0-9 (10): on devices 10-19 of node-0"]]


def test_hosts_have_the_slots_in_proportion_to_their_cores():
    nodes = [Node("gpu", 2, 8), Node("cpu-10", 0, 32), Node("cpu-2", 0, 96)]
    found = table({"env": "cpu"}, nodes, groups=[{"label": "cpu", "node_ranks": "0-1"}])
    assert [node.name for node in found.nodes] == ["cpu-2", "cpu-10", "gpu"]
    assert [(host.node, host.rank, host.first, host.slots) for host in found.hosts] == [
        ("cpu-2", 0, 0, 32), ("cpu-2", 1, 0, 16), ("cpu-10", 1, 16, 16),
    ]  # fmt: skip
    assert [rank.renders for rank in found.ranks] == [(), ()]
    assert found.hosts_of(1) == found.hosts[1:]
    assert found.rows()[1:] == [["simulators", "48 env slots on cpu-2, for ranks 0-1 (2)"],
                                ["simulators", "16 env slots on cpu-10, for rank 1"]]  # fmt: skip


@pytest.mark.parametrize(
    "env", ["cpu", {"node_group": "cpu", "placement": "0-2"}, {"node_group": "node", "placement": "1-3"}]
)
def test_a_group_hosts_simulators_however_it_is_named(env):
    found = table({"actor,rollout": "0-7", "env": env}, 4, groups=[CPU])
    assert [host.node for host in found.hosts if host.rank == 7] == ["node-3"]
    assert sum(host.slots for host in found.hosts) == 64
    assert found.rows()[0] == ["rollout, train", "ranks 0-7 (8) on node-0"]


def test_nodes_with_devices_that_nobody_uses_host_simulators_too():
    found = table({"actor,rollout": "0-7", "env": "8-15"}, 2)
    assert {host.node for host in found.hosts} == {"node-1"}
    assert [host.slots for host in found.hosts] == 8 * [8]


def test_groups_count_their_devices_in_the_order_in_which_they_are_named():
    groups = [{"label": "new", "node_ranks": 1}, {"label": "old", "node_ranks": 0}]
    found = table({"actor": {"node_group": "new,old", "placement": "0-2"}, "rollout": "all"}, 2, 2, groups=groups)
    assert found.ranks_of("train") == (0, 2, 3), "both devices of node-1 and the first of node-0"


def test_software_of_nodes():
    envs = [{"node_ranks": 2, "python_interpreter_path": "/opt/python"}, {"node_ranks": "1-2", "env_vars": [{"A": 1}]}]
    found = table({"env": "cpu"}, 4, groups=[{**CPU, "env_configs": envs}])
    assert (found.software_of("node-2").python, dict(found.software_of("node-2").variables)) == (
        "/opt/python", {"A": "1"},
    )  # fmt: skip
    assert (found.software_of("node-1").python, found.software_of("node-0").variables) == (None, {})


def test_many_nodes_are_a_few_lines():
    found = table({"actor": "0-255", "rollout": "256-511"}, 64)
    assert found.rows() == [["train", "ranks 0-255 (256) on 32 nodes, node-0 … node-31, 8 on each"],
                            ["rollout", "ranks 256-511 (256) on 32 nodes, node-32 … node-63, 8 on each"]]  # fmt: skip
    nodes = [Node("node-0", 16), *(Node(f"node-{number}", 0) for number in range(1, 65))]
    hosted = table({"env": "cpu"}, nodes, slots=1024, groups=[{**CPU, "node_ranks": "1-64"}])
    assert hosted.rows()[1:] == [["simulators", "16 env slots on 64 nodes, node-1 … node-64, for ranks 0-15 (16)"]]
    assert table({"actor,rollout": "0-3"}, 2).rows()[1:] == [["idle", "4 to 8 devices on node-0 and node-1"]]


@pytest.mark.parametrize(
    ("placement", "more", "said"),
    [
        ({"actor": "0-8"}, {}, "gives actor 0-8, and 8 devices are there, the last on node-0: 8 is not"),
        ({"actor": 1}, {"devices": 1}, "gives actor 1, and 1 device is there"),
        ("8", {}, "gives each component 8, and 8 devices are there"),
        ({"rollout": "all:0-3"}, {}, "gives rollout all:0-3: 4 processes for 8 devices"),
        ({"actor": "0-3", "rollout": "4-7", "env": "0-3"}, {"nodes": [Node("a", 4), Node("b", 4)]},
         "gives env 0-3, and no process on a acts: rollout is on b"),
        ({"env": "0-7"}, {"nodes": 2}, "gives env 0-7, and the processes that act on node-1 have no simulators"),
        ({"env": {"node_group": "node"}}, {"nodes": 2}, "gives env all of node, and node-0 has processes of its own"),
        ({"env": "cpu"}, {"groups": [{"label": "cpu", "node_ranks": 0}]}, ""),
        ({"env": "cpu"}, {"nodes": 2, "groups": [CPU]}, "gives cpu the node 2, and 2 nodes are there: 0 is node-0"),
        ({"env": "cpu"}, {"nodes": 4, "slots": 2, "groups": [CPU]}, "of 2 env slots none is left for node-1"),
        ({"actor": "cpu"}, {"nodes": 4, "groups": [CPU]}, "and node-1, node-2, node-3 have no device for a process"),
        ({"actor": {"node_group": "node", "placement": 0}}, {}, "gives actor 0 of node, and node-0 has no device"),
        ({"actor": {"node_group": "node,cpu"}}, {"nodes": 4, "groups": [CPU]}, "the group node has every node already"),
        ({"actor": {"node_group": "a,b"}},
         {"nodes": 2, "groups": [{"label": "a", "node_ranks": "0-1"}, {"label": "b", "node_ranks": 1}]},
         "and node-1 is in more than one of the groups"),
        ({"env": {"node_group": "cpu", "placement": "0-3"}}, {"nodes": 4, "groups": [CPU]}, "gives env the node 3"),
        ({"actor": "0-3", "inference": "4-7"}, {}, "gives inference 4-7 and actor 0-3, and inference has no processes"),
        ({"rollout": "0-3", "reward": "all"}, {}, "gives reward all and rollout 0-3, and reward has no processes"),
        ({"critic": "0-3"}, {}, "gives critic 0-3 and actor all"),
        (None, {"nodes": []}, "no node is there"),
        (None, {"nodes": [Node("a"), Node("b"), Node("a")]}, "two nodes have the name a"),
        (None, {"nodes": [Node("a", 0)]}, "no node has a device for actor: a"),
        (None, {"groups": [{**CPU, "node_ranks": "all"}]}, "no node has a device for actor: node-0"),
        (None, {"nodes": 4, "groups": [{**CPU, "env_configs": [{"node_ranks": "0-1"}]}]},
         "gives env_configs of cpu the node 0 (node-0), which is not in that group"),
        (None, {"nodes": 4, "groups": [{**CPU, "env_configs": [
            {"node_ranks": 1, "python_interpreter_path": "/a"}, {"node_ranks": "all", "python_interpreter_path": "/b"},
        ]}]}, "gives node-1 two interpreters: /a and /b"),
        (None, {"nodes": 4, "groups": [{**CPU, "env_configs": [
            {"node_ranks": 1, "env_vars": [{"A": 1}]}, {"node_ranks": "1-2", "env_vars": [{"A": 2}]},
        ]}]}, "gives node-1 two values of A: 1 and 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_key_and_node(placement, more, said):
    if not said:
        assert table(placement, **more).collocated, "a group of nodes with ranks: simulators stand beside them"
        return
    with pytest.raises(ConfigError) as failed:
        table(placement, **more)
    assert said in str(failed.value)
    assert failed.value.remedy


@pytest.mark.parametrize("text", ["nodes", "[1]", '[{"name": "a", "gpus": 1}]', "{"])
def test_a_description_of_nodes_is_read_or_refused(text):
    assert nodes_of({}) == nodes_of({NODES: ""}) == []
    with pytest.raises(ConfigError, match=NODES):
        nodes_of({NODES: text})


def test_nodes_are_in_order_of_their_names():
    assert sorted(["b", "a-10", "a-9", "10.0.0.11", "10.0.0.9", "a"], key=by_name) == [
        "10.0.0.9", "10.0.0.11", "a", "a-9", "a-10", "b",
    ]  # fmt: skip
    assert sorted(["a-1", "a-01", "a-001"], key=by_name) == sorted(["a-001", "a-1", "a-01"], key=by_name)


DESCRIBED = st.lists(
    st.builds(Node, st.sampled_from("abcdefgh"), st.integers(0, 4), st.sampled_from([8, 16, 64])),
    min_size=1, max_size=6, unique_by=lambda node: node.name,
)  # fmt: skip


@given(DESCRIBED, st.randoms(use_true_random=False), st.integers(1, 5))
def test_the_table_depends_on_the_nodes_alone(nodes, shuffling: random.Random, each):
    """However they are listed; and all ranks and slots are placed once."""
    devices = sum(node.devices for node in nodes)
    free = [number for number, node in enumerate(sorted(nodes, key=lambda one: one.name)) if not node.devices]
    groups = [{"label": "cpu", "node_ranks": free}] if free else None
    placement, slots = {"env": "cpu"} if free else None, devices * each * max(len(free), 1) * 8
    if not devices:
        return
    found = table(placement, nodes, slots=slots, groups=groups)
    other = list(nodes)
    shuffling.shuffle(other)
    assert table(placement, other, slots=slots, groups=groups) == found
    assert [rank.rank for rank in found.ranks] == list(range(devices))
    assert [(rank.node, rank.device) for rank in found.ranks] == sorted((r.node, r.device) for r in found.ranks)
    assert all([rank.local_rank for rank in found.on(node.name)] == list(range(node.devices)) for node in nodes)
    for rank in found.ranks if free else ():
        own = [slot for host in found.hosts_of(rank.rank) for slot in range(host.first, host.first + host.slots)]
        assert own == list(range(slots // devices)), "each slot of a rank is on one host"
