"""RLinf's grammar of placements and node groups: what it means, and what is refused with which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from embodied.errors import ConfigError, UnknownNameError
from embodied.lib.spans import as_spans
from embodied.schema import ClusterConfig
from embodied.schema.compose.compose import compose
from embodied.schema.keys.placement import COMPONENTS, Ranks, parse_groups, parse_placement, parse_ranks, placed


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        ("all", None), (" ALL ", None), (0, (0,)), ("7", (7,)), ("0-3", (0, 1, 2, 3)), ("0 - 1, 5", (0, 1, 5)),
        ("0-1,8-9,", (0, 1, 8, 9)), ([0, 1, 2], (0, 1, 2)), (["0-1", 4], (0, 1, 4)), (["0-1", "4-5"], (0, 1, 4, 5)),
        ("0-3:0-3", (0, 1, 2, 3)), ("4-7:0-3", (4, 5, 6, 7)), ("0-1:0-1,3-5,7:5", (0, 1, 3, 4, 5, 7)),
    ],
)  # fmt: skip
def test_ranks_are_read(value, numbers):
    assert parse_ranks(value, "") == Ranks(numbers)


def test_all_may_say_its_processes():
    assert parse_ranks("all:0-7", "") == Ranks(None, 8)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "names nothing"), (" , ", "names nothing"), ([], "names nothing"), ("3-0", "write 0-3"),
        ("-1", "write all, a number"), ("0-1-2", "write all, a number"), ("1.5", "write all, a number"),
        ("list(range(8))", "write all, a number"), ("0..3", "write all, a number"), ("all,0", "write all, a number"),
        ([0, [1]], "write all, a number"), ([True], "write all, a number"), ("٣", "write all, a number"),
        ("0-3,2", "names 2 twice"), ([1, 1], "write 1"), ("4-7,0-3", "write 0-7"), ("0-3:0-7", "8 processes for 4"),
        ("0-3:0-1", "2 processes for 4"), ("0-3:4-7", "these begin with 4"), ("0:all", "write all, a number"),
        ("all:1-8", "begin with 1"), ("all:x", "leave out what follows the colon"), ("0-99999", "numbers end at 65535"),
        ("0:", "write all, a number"), ("0-3:0-3:0-3", "write all, a number"),
    ],
)  # fmt: skip
def test_other_ranks_are_refused_with_the_value(value, said):
    with pytest.raises(ConfigError) as failed:
        parse_ranks(value, "the key gives actor")
    assert said in str(failed.value)
    assert failed.value.message.startswith(f"the key gives actor {value!r}")


@given(st.sets(st.integers(0, 40), min_size=1))
def test_spans_are_read_back(numbers):
    assert parse_ranks(as_spans(sorted(numbers)), "").numbers == tuple(sorted(numbers))
    assert parse_ranks(sorted(numbers), "").numbers == tuple(sorted(numbers))


@given(st.text(alphabet="0123456789-,:al []()x", max_size=12))
def test_any_text_is_read_or_refused(text):
    try:
        found = parse_ranks(text, "what").numbers
    except ConfigError:
        return
    assert found is None or list(found) == sorted(set(found))


def test_a_key_may_name_several_components():
    found = parse_placement({"actor,inference": "0-3", "rollout , env": "4-7"})
    assert {name: place.ranks.numbers for name, place in found.items()} == {
        "actor": (0, 1, 2, 3), "inference": (0, 1, 2, 3), "rollout": (4, 5, 6, 7), "env": (4, 5, 6, 7),
    }  # fmt: skip


def test_a_placement_without_components_is_that_of_each():
    assert parse_placement(None) == {}
    assert {place.ranks.numbers for place in parse_placement("0-1").values()} == {(0, 1)}
    assert set(parse_placement("all")) == set(COMPONENTS)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ({}, "places nothing"),
        ({"": "all"}, "unknown component ''"),
        ({"actor,,env": "all"}, "unknown component ''"),
        ({"actr": "all"}, "Did you mean 'actor'?"),
        ({"actor": "0-3", "rollout,actor": "4-7"}, "places actor twice: 0-3 and 4-7"),
        ({"actor": "cpus"}, "gives actor 'cpus', which is no label of cluster.node_groups. Did you mean 'cpu'?"),
        ("cpus", "gives each component 'cpus', which is no label"),
        ({"env": {"node_group": "gpus", "placement": 0}}, "the node group 'gpus', which is no label"),
        ({"env": {"node_group": "", "placement": 0}}, "a node_group without a label"),
        ({"env": {"node_group": "cpu,cpu"}}, "gives env a node group twice: cpu, cpu"),
        ({"env": {"node_group": "cpu", "placement": "3-1"}}, "write 1-3"),
        ({"env": {"node_groups": "cpu"}}, "gives env the key 'node_groups'. Did you mean 'node_group'?"),
    ],
)
def test_placements_that_say_no_place_are_refused(placement, said):
    cluster = ClusterConfig(component_placement=placement, node_groups=[{"label": "cpu", "node_ranks": "0"}])
    with pytest.raises(ConfigError) as failed:
        placed(cluster)
    assert said in str(failed.value)


@pytest.mark.parametrize(
    "wrong", [{"actor": True}, {"actor": 1.5}, {"env": None}, {"env": {"placement": True}}, {"env": {"placement": {}}}]
)
def test_values_of_another_type_are_refused(wrong):
    with pytest.raises(ValidationError):
        ClusterConfig(component_placement=wrong)


def test_groups_are_read_with_interpreter_and_variables():
    envs = [{"node_ranks": 1, "python_interpreter_path": "/opt/python", "env_vars": [{"A": 1}, {"B": "two"}]}]
    cluster = ClusterConfig(node_groups=[{"label": 4090, "node_ranks": "0-1", "env_configs": envs}])
    (group,) = parse_groups(cluster.node_groups or ())
    assert (group.label, group.nodes.numbers, group.ignore_hardware) == ("4090", (0, 1), False)
    assert group.envs[0].nodes.numbers == (1,)
    assert (group.envs[0].python, group.envs[0].variables) == ("/opt/python", {"A": "1", "B": "two"})


def test_a_label_is_a_place_and_so_are_several():
    groups = [{"label": "cpu", "node_ranks": 0}, {"label": "4090", "node_ranks": 1}]
    several = {"env": "cpu", "actor": {"node_group": "cpu,4090", "placement": "0-8"}, "rollout": {"node_group": 4090}}
    found = placed(ClusterConfig(component_placement=several, node_groups=groups))[1]
    assert [found[name].groups for name in ("env", "actor", "rollout")] == [("cpu",), ("cpu", "4090"), ("4090",)]
    for env in ("4090", 4090):
        assert placed(ClusterConfig(component_placement={"env": env}, node_groups=groups))[1]["env"].groups == ("4090",)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"label": "node", "node_ranks": 0}], "the label 'node', which has a meaning of its own"),
        ([{"label": " ", "node_ranks": 0}], "the label '', which"),
        ([{"label": "a,b", "node_ranks": 0}], "the label 'a,b', which"),
        ([{"label": "all", "node_ranks": 0}], "the label 'all', which"),
        ([{"label": "a", "node_ranks": 0}, {"label": "a", "node_ranks": 1}], "the label 'a' twice"),
        ([{"label": "a", "node_ranks": "0,0"}], "gives a node_ranks '0,0', which names 0 twice"),
        ([{"label": "a", "node_ranks": ""}], "gives a node_ranks '', which names nothing"),
        ([{"label": "a", "node_ranks": "0:0"}], "nodes have no process numbers"),
        ([{"label": "a", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "env_vars": [{"A=": 1}]}]}], "'A='"),
        (
            [{"label": "a", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "env_vars": [{"A": 1}, {"A": 2}]}]}],
            "the environment variable A twice",
        ),
    ],
)
def test_groups_that_say_no_nodes_are_refused(groups, said):
    with pytest.raises(ConfigError) as failed:
        placed(ClusterConfig(node_groups=groups))
    assert said in str(failed.value)


def test_a_placement_is_checked_with_the_other_keys():
    words = ["env=libero_10", "cluster.component_placement={actor:0-3,rollout:3-0}"]
    with pytest.raises(ConfigError, match="a range that ends before it begins"):
        compose(words)
    with pytest.raises(UnknownNameError, match="unknown component 'actr'"):
        compose(["env=libero_10", "cluster.component_placement={actr:0-3}"])


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("{label:a,node_ranks:0,lable:b}", "unknown key 'cluster.node_groups.0.lable'. Did you mean 'label'?"),
        ("{label:a,node_ranks:0,hardware:{type:Franka}}", "unknown key 'cluster.node_groups.0.hardware'"),
        ("{label:a}", "cluster.node_groups.0.node_ranks is missing"),
        ("{label:a,node_ranks:0,env_configs:[{node_ranks:0,python:x}]}", "node_groups.0.env_configs.0.python'"),
        ("{label:a,node_ranks:0,env_configs:[{node_ranks:0,env_vars:[A]}]}", "node_groups.0.env_configs.0.env_vars"),
    ],
)
def test_keys_of_groups_are_checked_as_others_are(group, said):
    with pytest.raises(ConfigError) as failed:
        compose(["env=libero_10", f"cluster.node_groups=[{group}]"])
    assert said in str(failed.value)
