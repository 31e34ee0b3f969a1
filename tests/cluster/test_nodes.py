"""Which nodes a run takes, and what keeps a node from taking part."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from embodied.cluster import node_facts
from embodied.cluster.nodes import (
    CLOCKS_S,
    Node,
    Shape,
    check_clock,
    differences,
    fitting,
    not_ready,
    shapes_after_loss,
    too_few,
    without,
)
from embodied.errors import ClusterError

B = Node("id-b", "b", "198.18.0.2", 2, 1)
NODES = [Node("id-10", "n10", "198.18.0.10", 8, 8), Node("id-9", "n9", "198.18.0.9", 4, 0), B]
FACTS = {"project": "1.0, files abc", "Python": "3.11.7", "torch": "2.7.0", "folder": True, "nonce": "secret",
         "interpreter": True, "executable": ""}  # fmt: skip


def refused(**theirs: object) -> list[str]:
    return [str(error) for error in differences(FACTS, {**FACTS, **theirs}, B, "/work", Path("/work/runs/one"))]


def test_a_node_with_the_same_facts_takes_part():
    assert refused() == []


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"project": ""}, "node b (198.18.0.2) does not have this package in the Python with which Ray was started"),
        ({"project": "1.1, files abc"}, "has embodied 1.1, files abc, and the launcher's machine 1.0, files abc"),
        ({"Python": "3.12.1"}, "node b (198.18.0.2) has Python 3.12.1, and the launcher's machine 3.11.7"),
        ({"torch": ""}, "has torch (none), and the launcher's machine 2.7.0"),
        ({"folder": False, "nonce": ""}, "does not have the folder /work, in which the command was started"),
        (
            {"interpreter": False, "executable": "/opt/py", "project": ""},
            "node b (198.18.0.2) does not have the interpreter /opt/py",
        ),
        ({"nonce": ""}, "cannot see the run's folder /work/runs/one"),
        ({"nonce": "another run's"}, "set runner.output_dir to a folder that all nodes share"),
    ],
)
def test_what_differs_is_said_with_the_node_and_the_fix(theirs, said):
    (text,) = refused(**theirs)
    assert said in text
    assert "fix: " in text


def test_all_that_differs_is_said():
    assert len(refused(project="2.0, files d", torch="2.8.0", nonce="")) == 3


def test_a_machine_says_its_own_versions_and_what_it_sees(tmp_path):
    (tmp_path / "nonce").write_text("secret", encoding="utf-8")
    facts = node_facts.facts(str(tmp_path), str(tmp_path / "nonce"))
    assert facts["nonce"] == "secret"
    assert facts["folder"]
    assert facts["project"].startswith("0.")
    unseen = node_facts.facts(str(tmp_path / "no"), str(tmp_path / "no" / "nonce"))
    assert (unseen["nonce"], unseen["folder"]) == ("", False)
    assert unseen["project"] == facts["project"], "a checksum of the same files"


def test_versions_are_those_of_the_node_s_interpreter(tmp_path):
    """A script stands for another Python: it says versions of its own."""
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\necho \'{"project": "9", "Python": "4.0", "torch": ""}\'\n', encoding="utf-8")
    assert not node_facts.facts("/", "/no", str(other))["interpreter"], "it cannot be executed"
    other.chmod(0o755)
    found = node_facts.facts(str(tmp_path), "/no", str(other))
    assert (found["project"], found["Python"], found["torch"], found["folder"]) == ("9", "4.0", "", True)
    assert (found["interpreter"], found["executable"]) == (True, str(other))
    missing = node_facts.facts("/", "/no", str(tmp_path / "none"))
    assert (missing["interpreter"], missing["project"]) == (False, "")
    again = tmp_path / "again"
    again.symlink_to(sys.executable)
    assert node_facts.facts("/", "/no", str(again))["Python"] == node_facts.facts("/", "/no")["Python"]


def test_another_file_is_another_project(tmp_path, monkeypatch):
    package = tmp_path / "thing"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "3.2"\n', encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(node_facts, "PACKAGE", "thing")
    before = node_facts.facts("/", "/no")["project"]
    (package / "more.py").write_text("X = 1\n", encoding="utf-8")
    assert before.startswith("3.2, files ")
    assert node_facts.facts("/", "/no")["project"] not in (before, "")
    monkeypatch.setattr(node_facts, "PACKAGE", "not_installed_anywhere")
    assert node_facts.facts("/", "/no")["project"] == ""


def test_clocks_may_differ_by_what_the_call_took_and_two_seconds():
    check_clock(B, 100.0, 100.0 - CLOCKS_S + 0.1, 101.0)
    check_clock(B, 100.0, 101.0 + CLOCKS_S - 0.1, 101.0)
    with pytest.raises(ClusterError, match=r"node b \(198.18.0.2\) is 3.0 s behind"):
        check_clock(B, 100.0, 97.0, 101.0)
    with pytest.raises(ClusterError, match="ahead of"):
        check_clock(B, 100.0, 104.5, 101.0)


def test_nodes_stand_in_the_order_of_their_names_without_those_that_were_lost():
    assert [node.name for node in without(NODES, ["id-9"])] == ["b", "n10"]
    assert [node.name for node in without(NODES, [])] == ["b", "n9", "n10"]


@pytest.mark.parametrize(("there", "goes_on"), [(3, Shape.of(3, 2)), (2, Shape.of(2, 3)), (1, Shape.of(1, 6))])
def test_as_many_ranks_go_on_if_the_nodes_that_are_left_have_room(there, goes_on):
    nodes = [Node(str(i), str(i), "", 6, 6) for i in range(there)]
    assert fitting(shapes_after_loss(Shape.of(3, 2), lambda size: True), nodes) == goes_on


def test_after_different_numbers_any_that_divides_goes_on():
    """The placement says where they stand, so that their number counts alone."""
    found = shapes_after_loss(Shape((2, 1, 2)), lambda size: size != 4)
    assert [shape.counts for shape in found] == [(2, 1, 2), (5,), (3,), (2,), (1,)]
    text = str(not_ready(Shape((2, 1)), NODES, "GPU", 60.0))
    assert text.startswith("the run waited 60 s for 2 + 1 GPU on 2 nodes: b")


def test_fewer_ranks_go_on_if_they_can_share_the_work():
    nodes = [Node(str(i), str(i), "", 8, 8) for i in range(3)]
    assert fitting(shapes_after_loss(Shape.of(4, 8), lambda size: size in (32, 16)), nodes) == Shape.of(2, 8)
    assert fitting(shapes_after_loss(Shape.of(4, 8), lambda size: size == 32), nodes) is None


def test_a_shape_that_cannot_be_is_refused_with_what_is_there():
    text = str(too_few(Shape.of(2, 8), NODES, "GPU"))
    assert "the run wants 8 GPU on each of 2 nodes, and one node of the cluster has as many" in text
    assert "b (198.18.0.2) 1 of 2 GPU free; n9 (198.18.0.9) 0 of 4 GPU free; n10" in text
    assert "set cluster.num_nodes to 1 or less" in text
    assert "set cluster.num_gpus_per_node to 8 or less" in str(too_few(Shape.of(1, 16), NODES, "GPU"))
    text = str(too_few(Shape.of(1, 1), [Node("id-a", "a", "a", 0, 0)], "GPU"))
    assert "fix: add a node that has it" in text, "no number of devices would do"
    text = str(too_few(Shape((2, 1)), NODES, "GPU", placed=True))
    assert "fix: give other devices to actor and rollout in cluster.component_placement" in text


def test_a_shape_that_others_have_says_who_has_what_and_what_to_raise():
    text = str(not_ready(Shape.of(2, 4), NODES, "GPU", 60.0))
    assert text.startswith("the run waited 60 s for 4 GPU on each of 2 nodes: b")
    assert "n9 (198.18.0.9) 0 of 4 GPU free" in text
    assert "cluster.init_timeout_s" in text
