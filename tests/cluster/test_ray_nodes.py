"""Runs on two Ray nodes, for real: the numbers of one machine, and what happens when ranks, nodes, the launcher or the
head are gone. Each node has a network, a PID and a mount namespace of its own (lab.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lab
import numpy as np
import pytest
from logged import VARYING, lasting_meta
from seeded_runs import tensors

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[1] / "config"
RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.save_interval=1", "runner.max_epochs=3",
    "runner.val_check_interval=-1", "runner.logger.report=false", "algorithm.rollout_epoch=2", "env.num_workers=1",
    "env.train.max_episode_steps=10", "env.train.total_num_envs=4", "env.train.reward_mode=dense",
    "env.eval.total_num_envs=4", "env.eval.video_cfg.save_video=false", "actor.fsdp_config.strategy=replicate",
)  # fmt: skip
LASTS = (*RUN, "env.train.step_s=0.05", "runner.max_epochs=500")
MANY = ("env.train.total_num_envs=12", "env.eval.total_num_envs=12")  # for 3 and for 6 ranks
BY_RAY = ("cluster.launcher=ray", "cluster.num_nodes=2", "cluster.num_gpus_per_node=1")
ENDS_S = 300.0  # on a busy machine; Ray alone gives up a lost head after 60 s


@pytest.fixture
def nodes(cluster: lab.Lab) -> lab.Lab:
    """Two nodes, a (the head) and b, whatever became of them before."""
    cluster.keep("a", 1)
    cluster.keep("b", 2)
    return cluster


def command(python: str, *overrides: str, name: str) -> list[str]:
    words = [*overrides, f"runner.experiment_name={name}", "--config-dir", str(CONFIG)]
    return [python, "-m", "embodied.train", *words]


@contextmanager
def started(
    nodes: lab.Lab, node: str, *overrides: str, name: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """A run that a node launches; what it prints goes to ``out(nodes, name)``. Ended with the block."""
    with out(nodes, name).open("wb") as file:
        words = command(nodes.python, *overrides, name=name)
        process = nodes.popen(node, words, stdout=file, stderr=file, env=variables)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        print(printed(nodes, name))


def out(nodes: lab.Lab, name: str) -> Path:
    return nodes.folder / f"{name}.out"


def printed(nodes: lab.Lab, name: str) -> str:
    return out(nodes, name).read_text(encoding="utf-8")


def run_folder(nodes: lab.Lab, name: str) -> Path:
    return nodes.folder / "runs" / name


def has_checkpoint(nodes: lab.Lab, name: str, process: subprocess.Popen[bytes]) -> None:
    first = run_folder(nodes, name) / "checkpoints" / "000001" / "meta.json"
    lab.wait_for(lambda: first.exists() or process.poll() is not None, ENDS_S)
    assert process.poll() is None, printed(nodes, name)


def results(nodes: lab.Lab, name: str) -> tuple[list[Any], dict[str, bytes]]:
    """Metrics that do not depend on time, and the bytes of the last checkpoint's tensors."""
    lines = (run_folder(nodes, name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{key: value for key, value in json.loads(line).items() if not VARYING.match(key)} for line in lines]
    last = sorted((run_folder(nodes, name) / "checkpoints").glob("0*"))[-1]
    assert lasting_meta(last)["iteration"] == len(rows)
    return rows, {file.name: file.read_bytes() for file in last.glob("*.distcp")}


def of_this_run(nodes: lab.Lab, name: str) -> list[int]:
    """Pids of all processes of a run on both nodes."""
    return [pid for node in nodes.running() for pid in nodes.pids(node, f"runner.experiment_name={name}\0")]


def test_two_nodes_make_the_run_that_torchrun_makes_on_one_machine(nodes):
    with started(nodes, "a", *RUN, *BY_RAY, name="ray") as process:
        assert process.wait(ENDS_S) == 0
    assert re.match(r"ranks: a \(198\.18\.0\.1\): rank 0, b \(198\.18\.0\.2\): rank 1\n", printed(nodes, "ray"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = command(nodes.python, *RUN, name="torchrun")[1:]
    done = subprocess.run([*torchrun, *words], cwd=nodes.folder, env=nodes.environment(), timeout=ENDS_S, check=False)
    assert done.returncode == 0
    assert results(nodes, "ray") == results(nodes, "torchrun")


def test_a_killed_rank_ends_all_and_is_named_with_its_node(nodes):
    with started(nodes, "a", *LASTS, *BY_RAY, name="killed", OMP_NUM_THREADS="3") as process:
        has_checkpoint(nodes, "killed", process)
        (rank,) = [pid for pid in nodes.pids("b", "embodied.train") if b"RANK=1" in environment_of(pid)]
        assert b"OMP_NUM_THREADS=3" in environment_of(rank), "as at the launcher"
        os.kill(rank, signal.SIGKILL)
        assert process.wait(ENDS_S) == 2
        lab.wait_for(lambda: not of_this_run(nodes, "killed"), ENDS_S)
    error = printed(nodes, "killed").partition("error: ")[2]
    assert error.startswith("rank 1 on node b (198.18.0.2) was killed by SIGKILL, and the end of its log is:\n")
    assert "goes on from the newest checkpoint" in error
    assert "ray" not in error.replace("kind: RankError", "").casefold(), "nothing of Ray's own"


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_an_error_of_a_rank_is_said_once_with_its_node_and_its_fix(nodes):
    faults = ("env.train.fault=exception", "env.train.fault_task=1", "cluster.max_restarts=3")
    with started(nodes, "a", *RUN, *BY_RAY, *faults, name="fault") as process:
        assert process.wait(ENDS_S) == 2
    said = printed(nodes, "fault")
    assert re.search(r"error: rank \d on node [ab] \(198\.18\.0\.[12]\) ended with status 2:\nworker 0 has fail", said)
    assert said.count("  fix: ") == 1
    assert "restart 1" not in said, "it would come again"


def test_a_run_whose_node_is_gone_goes_on_to_the_same_bits(nodes):
    """As many ranks, on the node that is left: it has two CPUs."""
    options = (*RUN, *BY_RAY, "env.train.step_s=0.03", "runner.max_epochs=12")
    with started(nodes, "a", *options, "cluster.max_restarts=1", name="lost") as process:
        has_checkpoint(nodes, "lost", process)
        nodes.cut_power("b")
        assert process.wait(ENDS_S) == 0
    said = printed(nodes, "lost")
    assert "node b (198.18.0.2) with rank 1 is lost: it has not answered for 5 s" in said
    assert said.count("iteration 12/12  ") == 1
    assert "restart 1 of 1: the run goes on from its newest checkpoint\n" in said
    assert "ranks: a (198.18.0.1): rank 0-1\n" in said
    nodes.keep("b", 2)
    with started(nodes, "a", *options, name="whole") as process:
        assert process.wait(ENDS_S) == 0
    assert results(nodes, "lost") == results(nodes, "whole")


def test_a_run_whose_node_is_gone_goes_on_with_fewer_ranks_if_there_is_no_room_for_all(nodes):
    """Four ranks, of which the node that is left can have two."""
    four = ("cluster.launcher=ray", "cluster.num_nodes=2", "cluster.num_gpus_per_node=2", "algorithm.group_size=2")
    more = ("env.train.step_s=0.03", "runner.max_epochs=8", "cluster.max_restarts=1")
    with started(nodes, "a", *RUN, *four, *more, name="fewer") as process:
        has_checkpoint(nodes, "fewer", process)
        nodes.cut_power("b")
        assert process.wait(ENDS_S) == 0
    said = printed(nodes, "fewer")
    assert "node b (198.18.0.2) with ranks 2 to 3 is lost" in said
    assert "ranks: a (198.18.0.1): rank 0-1\n" in said
    assert "processes that train: 4 so far, 2 from here on" in said
    assert len(results(nodes, "fewer")[0]) == 8


def test_no_process_outlives_a_killed_launcher(nodes):
    with started(nodes, "a", *LASTS, *BY_RAY, name="orphans") as process:
        has_checkpoint(nodes, "orphans", process)
        assert len(of_this_run(nodes, "orphans")) >= 3, "the launcher and two ranks"
        launcher = next(pid for pid in nodes.pids("a", "cluster.launcher=ray") if b"RANK=0" not in environment_of(pid))
        os.kill(launcher, signal.SIGKILL)
        lab.wait_for(lambda: not of_this_run(nodes, "orphans"), ENDS_S)
        lab.wait_for(lambda: not [pid for node in "ab" for pid in nodes.pids(node, "embodied")], ENDS_S)


def test_ctrl_c_at_the_launcher_leaves_a_checkpoint(nodes):
    with started(nodes, "a", *LASTS, *BY_RAY, name="stopped") as process:
        has_checkpoint(nodes, "stopped", process)
        launcher = next(pid for pid in nodes.pids("a", "cluster.launcher=ray") if b"RANK=0" not in environment_of(pid))
        os.kill(launcher, signal.SIGINT)
        assert process.wait(ENDS_S) == 130
    rows, _ = results(nodes, "stopped")
    assert 1 <= len(rows) < 500


def test_a_node_with_another_version_or_without_the_folder_is_refused(nodes):
    other = nodes.folder / "other.py"
    package = lab.ROOT / "embodied" / "__init__.py"
    other.write_text(package.read_text(encoding="utf-8").replace('__version__ = "', '__version__ = "9.'), "utf-8")
    (nodes.folder / "runs").mkdir(exist_ok=True)
    nodes.keep("c", 3, before=f"mount --bind {other} {package}; mount -t tmpfs none {nodes.folder}/runs")
    try:
        with started(nodes, "a", *RUN, *MANY, *BY_RAY, "cluster.num_nodes=3", name="refused") as process:
            assert process.wait(ENDS_S) == 2
    finally:
        nodes.cut_power("c")
    said = printed(nodes, "refused")
    assert re.search(
        r"error: node c \(198\.18\.0\.3\) has embodied 9\.\S+, files \w+, and the launcher's machine", said
    )
    assert re.search(r"error: node c \(198\.18\.0\.3\) cannot see the run's folder \S+/runs/refused", said)
    assert not run_folder(nodes, "refused").joinpath("metrics.jsonl").exists()


def test_more_than_the_cluster_has_is_refused_with_what_it_has(nodes):
    with started(nodes, "a", *RUN, *MANY, *BY_RAY, "cluster.num_gpus_per_node=3", name="more") as process:
        assert process.wait(ENDS_S) == 2
    said = printed(nodes, "more")
    assert (
        "the run wants 3 CPU on each of 2 nodes, and no node of the cluster has as many: a (198.18.0.1) 2 of 2" in said
    )


def test_simulators_on_another_node_change_no_bit_also_when_it_is_gone(nodes):
    """The node that is lost is not taken again: the one with the rank is left."""
    one = ("cluster.launcher=ray", "cluster.num_nodes=1", "cluster.num_gpus_per_node=1", "env.train.step_s=0.03")
    with started(nodes, "a", *RUN, *one, "runner.max_epochs=8", name="beside") as process:
        assert process.wait(ENDS_S) == 0
    hosts = (*one, "runner.max_epochs=8", "cluster.simulator_hosts=1", "cluster.node_timeout_s=10")
    with started(nodes, "a", *RUN, *hosts, name="hosts") as process:
        has_checkpoint(nodes, "hosts", process)
        with_rank, other = ("a", "b") if "ranks: a (" in printed(nodes, "hosts") else ("b", "a")
        assert nodes.pids(other, "embodied.runtime.remote.serve"), f"the rank is on {with_rank}"
        if other == "b":
            nodes.cut_power("b")
        assert process.wait(ENDS_S) == 0
    rows, expected = results(nodes, "hosts")[0], results(nodes, "beside")[0]
    for row in (*rows, *expected):
        row.pop("rollout/worker_restarts", None)
    assert rows == expected
    found, same = (tensors(run_folder(nodes, name)) for name in ("hosts", "beside"))
    differ = {name for name, tensor in same.items() if not np.array_equal(found[name], tensor)}
    assert differ <= {"rng/0/others"}, "Ray draws from Python's global generator, which no number of ours is from"


def placed_on_b(nodes: lab.Lab, python: str) -> tuple[str, ...]:
    """Keys that give node b the simulators, with an interpreter and a variable of its own."""
    software = f"{{node_ranks:1,python_interpreter_path:{python},env_vars:[{{COLOUR:red}}]}}"
    group = f"{{label:cpu,node_ranks:1,ignore_hardware:true,env_configs:[{software}]}}"
    keys = ("cluster.component_placement={env:cpu}", f"cluster.node_groups=[{group}]")
    return ("cluster.launcher=ray", "cluster.num_nodes=2", "cluster.num_gpus_per_node=2", *keys)


def test_a_placement_puts_ranks_on_one_node_and_simulators_on_the_other(nodes):
    seen = nodes.folder / "seen"
    python = nodes.folder / "python-of-b"
    words = f"echo $COLOUR $(hostname -I) >> {seen}; exec {nodes.python}"
    python.write_text(f'#!/bin/sh\n{words} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    with started(nodes, "a", *RUN, *placed_on_b(nodes, str(python)), name="placed") as process:
        assert process.wait(ENDS_S) == 0
    said = printed(nodes, "placed")
    assert said.startswith("ranks: a (198.18.0.1): rank 0-1\n")
    assert re.search(r"simulators +4 env slots on b, for ranks 0-1", said)
    assert "198.18.0.2" in seen.read_text(encoding="utf-8"), "by the interpreter of the node"
    assert all(line.startswith("red") for line in seen.read_text(encoding="utf-8").splitlines()[1:])
    local = ("cluster.launcher=local", "cluster.num_gpus_per_node=2")
    done = subprocess.run(
        command(nodes.python, *RUN, *local, name="local"), cwd=nodes.folder, env=nodes.environment(), timeout=ENDS_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert results(nodes, "placed")[0] == results(nodes, "local")[0]


def test_an_interpreter_that_a_node_lacks_is_refused_by_its_name(nodes):
    with started(nodes, "a", *RUN, *placed_on_b(nodes, "/no/python"), name="no-python") as process:
        assert process.wait(ENDS_S) == 2
    assert "node b (198.18.0.2) does not have the interpreter /no/python" in printed(nodes, "no-python")


def test_ranks_save_and_end_when_the_head_is_gone(nodes):
    """The last test: it takes the cluster with it."""
    with started(nodes, "b", *LASTS, *BY_RAY, name="headless") as process:
        has_checkpoint(nodes, "headless", process)
        (gcs,) = nodes.pids("a", "gcs/gcs_server")
        os.kill(gcs, signal.SIGKILL)
        assert process.wait(ENDS_S) == 143
    said = printed(nodes, "headless")
    assert "the head (198.18.0.1:6379) is gone" in said
    assert "error:" not in said
    rows, _ = results(nodes, "headless")
    assert 1 < len(rows) < 500
