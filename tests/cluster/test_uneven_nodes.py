"""Runs on two Ray nodes with different numbers of ranks, for real, whose simulators have devices of their own (lab.py).

Node a is said to have four GPUs, node b two: Ray shows them to processes, and nothing computes on them.
"""

from __future__ import annotations

import subprocess
import sys

import lab
import pytest
from test_ray_nodes import ENDS_S, RUN, command, has_checkpoint, printed, results, run_folder, started

pytestmark = pytest.mark.slow

THREE = (*RUN, "env.train.total_num_envs=12", "env.eval.total_num_envs=12", "algorithm.group_size=2")
TELLS = ("env.train._target_=hosted_env.WritesItsDevice", "env.eval._target_=hosted_env.WritesItsDevice")
BY_RAY = ("cluster.launcher=ray", "cluster.num_nodes=2")


@pytest.fixture
def nodes(cluster: lab.Lab) -> lab.Lab:
    seen = {"SEEN": str(cluster.folder / "seen")}
    cluster.keep("a", 1, cpus=2, gpus=4, env=seen)
    cluster.keep("b", 2, cpus=1, gpus=2, env=seen)
    return cluster


def by_torchrun(nodes: lab.Lab, name: str) -> None:
    """Three ranks on one machine, whose simulators are beside them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    words = command(nodes.python, *THREE, name=name)[1:]
    done = subprocess.run([*torchrun, *words], cwd=nodes.folder, env=nodes.environment(), timeout=ENDS_S, check=False)
    assert done.returncode == 0


def test_two_ranks_here_and_one_there_make_the_run_of_three_on_one_machine(nodes):
    """On a ranks have GPUs 0 and 1 and simulators 2 and 3; on b GPU 0 and 1."""
    seen = nodes.folder / "seen"
    seen.mkdir()
    where = "cluster.component_placement={actor:[0,1,4],rollout:[0,1,4],env:[2,3,5]}"
    with started(nodes, "a", *THREE, *TELLS, *BY_RAY, where, "runner.device=auto", name="uneven") as process:
        assert process.wait(ENDS_S) == 0
    said = printed(nodes, "uneven")
    assert said.startswith("ranks: a (198.18.0.1): rank 0-1, b (198.18.0.2): rank 2\n")
    assert (
        "  rollout, train  ranks 0-2 (3) on a (2) and b (1)\n"
        "  simulators      of rank 0: on device 2 of a\n"
        "  simulators      of rank 1: on device 3 of a\n"
        "  simulators      of rank 2: on device 1 of b\n"
    ) in said
    told = {file.read_text(encoding="utf-8") for file in seen.iterdir()}
    assert told == {"0 2 0,1,2,3", "1 3 0,1,2,3", "2 1 0,1"}
    by_torchrun(nodes, "even")
    assert results(nodes, "uneven") == results(nodes, "even")


def test_a_run_goes_on_with_the_node_that_is_left_if_its_ranks_can_share_the_work(nodes):
    keys = (*BY_RAY[:1], "cluster.num_gpus_per_node=2", "cluster.component_placement=all", "cluster.max_restarts=1")
    longer = ("env.train.step_s=0.03", "runner.max_epochs=8")
    with started(nodes, "a", *THREE, *keys, *longer, name="left") as process:
        has_checkpoint(nodes, "left", process)
        nodes.cut_power("b")
        assert process.wait(ENDS_S) == 0
    said = printed(nodes, "left")
    assert said.startswith("ranks: a (198.18.0.1): rank 0-1, b (198.18.0.2): rank 2\n")
    assert "node b (198.18.0.2) with rank 2 is lost" in said
    assert "ranks: a (198.18.0.1): rank 0-1\n" in said
    assert "processes that train: 3 so far, 2 from here on" in said
    assert len(results(nodes, "left")[0]) == 8


def test_devices_that_a_node_does_not_have_are_refused_with_its_name(nodes):
    where = "cluster.component_placement={actor:[0,1],rollout:[0,1],env:[2,6]}"
    with started(nodes, "a", *THREE, *BY_RAY, where, "runner.device=auto", name="beyond") as process:
        assert process.wait(ENDS_S) == 2
    assert "gives env [2, 6], and 6 devices are there, the last on b: 6 is not" in printed(nodes, "beyond")
    assert not run_folder(nodes, "beyond").exists()
