"""Files that ask for several GPUs: the command that starts as many processes, of each system."""

from __future__ import annotations

import pytest
from test_translate import FAKE, note, verl

from embodied.migrate import machine, migrate
from embodied.migrate.report import command


@pytest.mark.parametrize(("devices", "here"), [(8, True), (9, True), (7, False), (0, False)])
def test_a_file_that_asks_for_several_gpus_gets_the_command_of_torchrun(devices, here):
    words = (
        "trainer.n_gpus_per_node=8",
        "trainer.nnodes=1",
        "algorithm.adv_estimator=rloo",
        "actor_rollout_ref.rollout.n=4",
    )
    found = migrate(verl(*words), "verl", devices=devices)
    line = "torchrun --standalone --nproc-per-node=8 -m embodied.train --config-dir mine experiment=theirs"
    alone = "python -m embodied.train --config-dir mine experiment=theirs"
    several = f"run it on a machine with 8 GPUs: {line}\nor in one process, the same sizes and slower: {alone}"
    assert command(found, "mine", "theirs") == (f"run it: {line}" if here else several)
    assert found.settings.get("cluster.num_gpus_per_node") == (8 if here else None), "it runs in one process, too"
    assert note(found, "trainer.n_gpus_per_node").how == ("renamed" if here else "nothing")
    assert [one.key for one in found.notes if one.how == "refused"] == []


HETERO = {
    "num_nodes": 4,
    "component_placement": {
        "actor,rollout": {"node_group": "4090", "placement": "0-15"}, "env": {"node_group": "node", "placement": "2-3"},
    },
    "node_groups": [{"label": "4090", "node_ranks": "0-1"}, {"label": "robot", "node_ranks": "2-3"}],
}  # fmt: skip
ROLL = {"rollout_batch_size": 64, "actor_train": {"device_mapping": "list(range(0,16))"}}
COSMOS = {"policy": {"parallelism": {"n_init_replicas": 2, "dp_shard_size": 4}}}


@pytest.mark.parametrize(
    ("system", "theirs", "nodes", "each"),
    [
        ("verl", {"trainer": {"nnodes": 2, "n_gpus_per_node": 4}}, 2, 4),
        ("verl", {"data": {"task_suite_name": "libero_10"}, "trainer": {"n_gpus_per_node": 8}}, 1, 8),
        ("rlinf", {"cluster": {"num_nodes": 1, "component_placement": {"actor,rollout": "0-7"}}}, 1, 8),
        ("rlinf", {"cluster": {"num_nodes": 2, "component_placement": {"rollout": "0-7", "actor": "8-15"}}}, 2, 8),
        ("rlinf", {"cluster": {"num_nodes": 1, "component_placement": {"actor,rollout": "all"}}}, 1, 1),
        ("rlinf", {"cluster": {"num_nodes": 1, "component_placement": {"actor,rollout": "0-1", "env": "2-3"}}}, 1, 2),
        ("rlinf", {"cluster": HETERO}, 4, 8),
        ("rlinf", {"cluster": {"num_nodes": 1, "component_placement": {"actor": "0-3:0-7"}}}, 1, 4),
        ("roll", ROLL, 2, 8),
        ("roll", {**ROLL, "num_gpus_per_node": 4}, 4, 4),
        ("cosmos-rl", COSMOS, 1, 8),
        ("cosmos-rl", {"policy": {"parallelism": {"n_init_replicas": 1, "dp_shard_size": -1}}}, 1, 1),
        ("trl", {"num_processes": 16, "num_machines": 2, "per_device_train_batch_size": 8}, 2, 8),
    ],
)
def test_each_system_s_gpus_are_processes_here(system, theirs, nodes, each):
    found = migrate(theirs, system, devices=0)
    assert found.launch == (nodes, each)
    assert nodes * each == 1 or not [key for key in found.settings if key.startswith("cluster.num_")]
    line = command(found, "mine", "x")
    assert ("torchrun" in line) == (nodes * each > 1)
    if nodes > 1:
        assert f"run it on each of {nodes} machines with {each} GPUs (HOST = the name of one of them)" in line
        assert f"--nnodes={nodes} --nproc-per-node={each} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500" in line
    if nodes * each > 8 and "data.rollout_batch_size" in found.settings:
        assert found.settings["env.train.total_num_envs"] % (nodes * each) == 0, "slots are shared out equally"


def test_gpus_are_counted_only_where_several_are_asked_for(monkeypatch):
    asked: list[int] = []

    def none() -> int:
        asked.append(1)
        return 0

    monkeypatch.setattr("embodied.migrate.processes.gpus", none)
    migrate({"runner": {"max_epochs": 1}}, "rlinf", FAKE)
    assert asked == []
    migrate({"cluster": {"num_gpus_per_node": 2}}, "rlinf", FAKE)
    assert asked == [1]
    assert machine.gpus() >= 0


def test_processes_that_cannot_share_a_batch_take_nothing_out_of_the_result():
    theirs = {"num_processes": 8, "num_generations": 16, "model_name_or_path": "m", "dataset_name": "owner/x"}
    found = migrate(theirs, "trl", devices=0)
    assert found.settings["data.rollout_batch_size"] == 4, "as their file says, for 8 processes"
    assert found.launch == (1, 1)
    assert "the 8 processes of the run cannot share it equally" in note(found, "(processes for their GPUs)").why
