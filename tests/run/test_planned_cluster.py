"""A dry run plans a cluster that is not there; what cannot be run yet, or cannot be at all, is refused."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from embodied import train
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.parallel.links import links
from embodied.parallel.placement.table import NODES, Node, nodes_as_text
from embodied.run.build.given import Checked
from embodied.run.build.policy import sizes
from embodied.run.build.preflight import check
from embodied.run.build.shares import check as check_shares
from embodied.run.memory.say import plan
from embodied.run.placement.roles import placed
from embodied.run.placement.table import Planned, hosts_of, most_hosts, planned, rows, table_of
from embodied.run.placement.traffic import traffic
from embodied.schema.compose.compose import compose
from embodied.types import PolicySpec

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = ("env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "algorithm.group_size=2",
        "env.train.total_num_envs=16", "env.eval.total_num_envs=16")  # fmt: skip
APART = "cluster.component_placement={actor:0-3,rollout:4-7,env:4-7}"
HOSTED = (
    "cluster.component_placement={env:cpu}", "cluster.num_nodes=4", "cluster.num_gpus_per_node=2",
    "cluster.node_groups=[{label:cpu,node_ranks:1-3,ignore_hardware:true}]",
)  # fmt: skip


def said(words, tmp_path, monkeypatch, capsys, status=0, run=FAKE) -> str:
    monkeypatch.chdir(tmp_path)
    assert train.main([*run, *words, "--config-dir", CONFIG]) == status
    captured = capsys.readouterr()
    assert not list(tmp_path.iterdir()), "a plan leaves no file"
    return captured.out + captured.err


@pytest.fixture
def planned_run(tmp_path):
    def make(*keys: str) -> Checked:
        composed = compose([*FAKE, f"runner.output_dir={tmp_path}", "runner.dry_run=true", *keys], "train", [CONFIG])
        return check(composed, planned(composed.config, Group()))

    return make


def test_a_large_cluster_needs_no_launcher(tmp_path, monkeypatch, capsys):
    words = ["runner.dry_run=true", "cluster.num_nodes=64", "cluster.num_gpus_per_node=8", "cluster.network_gbps=100",
             "env.train.total_num_envs=1024", "env.eval.total_num_envs=512"]  # fmt: skip
    text = said(words, tmp_path, monkeypatch, capsys)
    assert "rollout, train  ranks 0-511 (512) on 64 nodes, node-0 … node-63, 8 on each\n" in text
    assert "to run it" not in text
    assert "memory of the process (each of 512)" in text
    assert "  proposal" not in text, "this machine's memory says nothing of a cluster"
    assert "s of an iteration at 100 Gb/s" in text
    assert "saturates first    " in text


def test_roles_apart_have_memory_of_their_own(tmp_path, monkeypatch, capsys):
    stale = ["algorithm.max_staleness=1", "actor.fsdp_config.strategy=replicate"]
    text = said(["runner.dry_run=true", APART, *stale], tmp_path, monkeypatch, capsys)
    assert "  train    ranks 0-3 (4) on node-0\n  rollout  ranks 4-7 (4) on node-0\n" in text
    learns, acts = (next(line for line in text.splitlines() if f"(each of 4: {role})  " in line and "process" in line)
                    for role in ("train", "rollout"))  # fmt: skip
    assert "optimizer" in learns
    assert "records of others" in learns
    assert "weights that go ahead" in learns
    assert "slab" not in learns
    assert "slab" in acts
    assert "weights that arrive" in acts
    assert "optimizer" not in acts
    assert text.count("memory of env workers") == 1
    assert "rollout → train" in text
    assert "saturates first    nothing: no byte leaves its node" in text


def test_simulator_hosts_are_planned(tmp_path, monkeypatch, capsys):
    text = said(["runner.dry_run=true", *HOSTED], tmp_path, monkeypatch, capsys)
    assert "  simulators      5 env slots on node-1, for rank 0\n" in text
    assert "memory of env workers (of each of 2, on its hosts)" in text
    assert "host → rollout (cluster.network_gbps=N says for how long)" in text


def test_slots_that_nobody_asked_for_follow_the_processes(tmp_path, monkeypatch, capsys):
    text = said(["runner.dry_run=true", "cluster.num_gpus_per_node=3"], tmp_path, monkeypatch, capsys, run=FAKE[:-2])
    added = re.search(r"to run it       add env.eval.total_num_envs=3 env.train.total_num_envs=(\d+), without", text)
    assert added
    assert f"env slots, workers             {int(added[1]) // 3}, " in text


def test_slots_that_were_asked_for_stay(tmp_path, monkeypatch, capsys):
    text = said(["runner.dry_run=true", "cluster.num_gpus_per_node=3"], tmp_path, monkeypatch, capsys, status=2)
    assert "env.eval.total_num_envs is 16, and the 3 processes of the run cannot share it equally" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((APART,), "gives actor 0-3, which is a place for 8 processes, and this command alone is one"),
        (("cluster.num_nodes=64", "cluster.num_gpus_per_node=8"), "torchrun --nnodes=64 --nproc-per-node=8"),
        (("runner.dry_run=true", "cluster.num_gpus_per_node=2", APART), "gives actor 0-3, and 2 devices are there"),
        (("runner.dry_run=true", *HOSTED[:1]), "gives env 'cpu', which is no label of cluster.node_groups"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_starts(words, text, tmp_path, monkeypatch, capsys):
    assert text in said(words, tmp_path, monkeypatch, capsys, status=2)


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        ("{env:[0,2],actor:0-7}", "gives env [0, 2], and the processes that act on node-1 have no simulators"),
        ("{actor:0-1,rollout:0-1}", "gives actor 0-1, which is a place for 2 processes, and 4 are started"),
        ("{env:{node_group:node,placement:1}}", "and node-1 has processes of its own"),
    ],
)
def test_a_run_starts_only_what_it_can_run(placement, text):
    own = compose([*FAKE, f"cluster.component_placement={placement}"], "train", [CONFIG]).config
    with pytest.raises(ConfigError) as failed:
        check_shares(own, Group(0, 4, 0, 2))
    assert text in str(failed.value)


def test_processes_that_no_component_is_for_are_refused():
    group = "cluster.node_groups=[{label:cpu,node_ranks:1,ignore_hardware:true}]"
    own = compose([*FAKE, group], "train", [CONFIG]).config
    with pytest.raises(ConfigError, match=r"cluster\.node_groups ignores the devices of some nodes, which is a place"):
        check_shares(own, Group(0, 4, 0, 2))


def test_nodes_are_those_that_a_launcher_describes():
    own = compose([*FAKE, *HOSTED[:1], HOSTED[-1]], "train", [CONFIG]).config
    nodes = [Node("gpu", 2, 8), Node("host-b", 0, 16), Node("host-c", 0, 32), Node("host-a", 0, 16)]
    table = table_of(own, Group(0, 2, 0, 2), {NODES: nodes_as_text(nodes)})
    assert [(host.node, host.rank, host.slots) for host in table.hosts] == [
        ("host-a", 0, 4), ("host-b", 0, 4), ("host-c", 1, 8),
    ]  # fmt: skip


def nodes_told(monkeypatch) -> None:
    nodes = [Node("gpu", 2, 8), Node("host-b", 0, 16), Node("host-c", 0, 32), Node("host-a", 0, 16)]
    monkeypatch.setenv(NODES, nodes_as_text(nodes))


def test_a_process_has_the_hosts_of_the_table(monkeypatch):
    own = compose([*FAKE, *HOSTED[:1], HOSTED[-1]], "train", [CONFIG]).config
    assert hosts_of(own, Group(1, 2, 1, 2, launcher="ray")) == (), "nobody has described nodes"
    nodes_told(monkeypatch)
    ranks = [Group(rank, 2, rank, 2, launcher="ray") for rank in range(2)]
    assert [[(host.node, host.slots) for host in hosts_of(own, rank)] for rank in ranks] == [
        [("host-a", 4), ("host-b", 4)], [("host-c", 8)],
    ]  # fmt: skip
    assert most_hosts(own, ranks[0]) == 2
    check_shares(own, ranks[0])
    usual = compose([*FAKE], "train", [CONFIG]).config
    assert (hosts_of(usual, ranks[0]), most_hosts(usual, ranks[0])) == ((), 0)


def test_hosts_are_refused_where_the_launcher_cannot_start_them(monkeypatch):
    own = compose([*FAKE, *HOSTED], "train", [CONFIG]).config
    for size in (1, 2):
        with pytest.raises(ConfigError, match=r"gives env cpu, nodes without processes[\s\S]*cluster\.launcher=ray"):
            check_shares(own, Group(0, size, 0, 1))
    nodes_told(monkeypatch)
    with pytest.raises(ConfigError, match=r"cluster\.launcher=ray"):
        check_shares(own, Group(0, 2, 0, 2, launcher="torchrun"))


def test_two_numbers_of_hosts_are_refused(monkeypatch):
    nodes_told(monkeypatch)
    for count, refused in ((2, False), (3, True)):
        words = [*FAKE, *HOSTED[:1], HOSTED[-1], f"cluster.simulator_hosts={count}"]
        with pytest.raises(ConfigError, match=r"is 3, and cluster\.component_placement") if refused else nullcontext():
            check(compose(words, "train", [CONFIG]), Group(0, 2, 0, 2, launcher="ray"))


def test_a_run_of_several_processes_says_where_they_are():
    own = compose(list(FAKE), "train", [CONFIG]).config
    assert rows(own, Group(0, 4, 0, 2)) == [["rollout, train", "ranks 0-3 (4) on node-0 and node-1, 2 on each"]]
    assert rows(own, Group()) == []


def test_a_dry_run_of_started_processes_is_one_of_these():
    own = compose([*FAKE, "runner.dry_run=true", APART], "train", [CONFIG]).config
    group = Group(0, 8, 0, 8)
    assert planned(own, group) is group
    assert placed(own, group).of("rollout").members == (4, 5, 6, 7)


def test_a_run_alone_plans_no_cluster():
    alone = Group()
    for words in ([], ["runner.dry_run=true"], ["runner.dry_run=true", "cluster.num_nodes=1"]):
        assert planned(compose([*FAKE, *words], "train", [CONFIG]).config, alone) is alone
    hosted = compose([*FAKE, "runner.dry_run=true", *HOSTED], "train", [CONFIG]).config
    assert isinstance(planned(hosted, alone), Planned)


def test_devices_follow_from_the_placement(planned_run):
    checked = planned_run(APART, "cluster.num_nodes=2")
    table = table_of(checked.config, checked.processes)
    assert [(node.name, node.devices) for node in table.nodes] == [("node-0", 4), ("node-1", 4)]
    assert table.ranks_of("rollout") == (4, 5, 6, 7)


def counted(checked: Checked):
    config, sides, processes = checked.config, checked.sides, checked.processes
    memory = plan(config, sides, processes, checked.demonstrations)
    spec: PolicySpec = memory.counted.policy.spec
    numbers = sizes(config, sides, processes, spec)
    return memory, numbers, traffic(config, sides, processes, numbers, spec, memory.counted)


def test_sizes_of_the_traffic_are_those_of_records(planned_run):
    checked = planned_run(APART, "actor.fsdp_config.strategy=replicate")
    _, numbers, found = counted(checked)
    assert (found.episodes, found.groups) == (numbers.episodes, numbers.episodes // 2)
    assert found.records == numbers.rows * 4, "four processes have a quarter of them each"
    observed = sum(field.nbytes for field in checked.train.spec.obs.values())
    assert observed < found.observation < found.record < sum(field.nbytes for field in numbers.fields.values())
    assert found.gathered == 0
    records = links(table_of(checked.config, checked.processes), found)[1]
    assert records.total == found.records * found.record


def test_sharded_traffic(planned_run):
    memory, _, found = counted(planned_run("cluster.num_gpus_per_node=4", "actor.fsdp_config.strategy=fsdp2"))
    assert found.gathered == memory.counted.gathered.act > 0
    assert found.shards == 4
    assert found.gathers > found.scatters > 0
