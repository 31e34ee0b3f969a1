"""Processes that were started, held against the placement: machines may have different numbers of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.run.build import shares
from embodied.run.command import repeat_command
from embodied.run.placement.table import local_table, table_of, table_of_size
from embodied.schema import Config
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[2] / "config")
THREE = "cluster.component_placement={actor: 0-2, rollout: 0-2}"
TWO_MACHINES = {"GROUP_WORLD_SIZE": "2"}


def config(*keys: str) -> Config:
    slots = ("env.train.total_num_envs=12", "env.eval.total_num_envs=12", "algorithm.group_size=2")
    return compose(["env=fake", "model=fake", "runner.device=cpu", *slots, *keys], "train", [CONFIG]).config


def test_torchrun_may_start_different_numbers_where_the_keys_say_them():
    own = config(THREE, "cluster.num_gpus_per_node=2")
    groups = [Group(0, 3, 0, 2), Group(1, 3, 1, 2), Group(2, 3, 0, 1)]
    tables = [table_of(own, group, TWO_MACHINES) for group in groups]
    assert tables[0] == tables[1] == tables[2]
    assert [(rank.node, rank.local_rank) for rank in tables[0].ranks] == [("node-0", 0), ("node-0", 1), ("node-1", 0)]
    for group in groups:
        group.with_table(tables[0])
        shares.check(own, group)
        assert group.num_nodes == 2


def test_the_command_that_repeats_a_run_has_a_line_for_each_machine(monkeypatch):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    even = repeat_command(["a b"], "train", Group(0, 4, 0, 2), config("cluster.component_placement=all"))
    assert even == "torchrun --nnodes=2 --nproc-per-node=2 -m embodied.train 'a b'"
    own = config(THREE, "cluster.num_gpus_per_node=2")
    assert repeat_command(["a b"], "train", Group(0, 3, 0, 2), own).splitlines() == [
        "torchrun --nnodes=2 --nproc-per-node=2 --node-rank=0 -m embodied.train 'a b'",
        "torchrun --nnodes=2 --nproc-per-node=1 --node-rank=1 -m embodied.train 'a b'",
    ]


def test_without_the_keys_different_numbers_are_refused():
    own = config()
    for group in (Group(0, 3, 0, 2), Group(2, 3, 0, 1)):
        with pytest.raises(ConfigError, match=r"of 3 processes on this machine, and another number on others") as found:
            table_of(own, group, TWO_MACHINES)
        assert "'cluster.component_placement={actor: 0-2, rollout: 0-2}'" in found.value.remedy
    with pytest.raises(ConfigError, match="torchrun has started 2 of 6 processes on this machine, and another number"):
        table_of(own, Group(1, 6, 0, 2), {"GROUP_WORLD_SIZE": "3"})  # 1 + 2 + 3


def test_a_placement_alone_does_not_say_which_machine_has_more():
    """All processes say the same, and what they say helps."""
    for where, counts in ((THREE, (2, 1)), ("cluster.component_placement={actor: 0-3, rollout: 0-3}", (3, 1))):
        own, size, first, told = config(where), sum(counts), 0, set()
        for count in counts:
            for local in range(count):
                with pytest.raises(ConfigError) as refused:
                    table_of(own, Group(first + local, size, local, count), TWO_MACHINES)
                told.add(str(refused.value))
            first += count
        (said,) = told
        assert "set cluster.num_gpus_per_node to the most processes of one machine" in said
        table_of(config(where, f"cluster.num_gpus_per_node={max(counts)}"), Group(0, size, 0, counts[0]), TWO_MACHINES)


@pytest.mark.parametrize(
    ("group", "nodes", "said"),
    [
        (Group(0, 3, 0, 1), "2", "process 0 on node-0 with 2 processes, and torchrun has started it as number 0 of 1"),
        (Group(1, 3, 0, 2), "2", "process 1 on node-0 with 2 processes, and torchrun has started it as number 0 of 2"),
        (Group(0, 3, 0, 3), "1", "gives actor 0-2, and 2 devices are there"),
    ],
)
def test_processes_on_other_machines_than_the_keys_say_are_refused(group, nodes, said):
    own = config(THREE, "cluster.num_gpus_per_node=2")
    with pytest.raises(ConfigError) as refused:
        table_of(own, group, {"GROUP_WORLD_SIZE": nodes})
    assert said in str(refused.value)


def test_devices_follow_from_the_keys_or_from_the_processes():
    apart = config("cluster.component_placement={actor: 0-1, rollout: 0-1, env: 2-3}")
    assert table_of(apart, Group(1, 2, 1, 2), {}).nodes[0].devices == 4
    share = config("cluster.component_placement={env: 0}")
    assert [rank.renders for rank in table_of(share, Group(1, 2, 1, 2), {}).ranks] == [(0,), (0,)]
    four = config("cluster.component_placement={actor: 0-1, rollout: 0-1}", "cluster.num_gpus_per_node=4")
    assert table_of(four, Group(1, 2, 1, 2), {}).rows()[1:] == [["idle", "2 devices on node-0"]]
    shares.check(four, Group(1, 2, 1, 2))


def test_a_local_launcher_starts_a_process_for_each_device_of_actor_and_rollout():
    table = local_table(config("cluster.component_placement={actor: 0, rollout: 2, env: 3}"))
    assert table is not None
    assert [(rank.device, rank.renders) for rank in table.ranks] == [(0, ()), (2, (3,))]
    assert local_table(config("cluster.num_gpus_per_node=2")) is None


def test_a_number_of_processes_is_placed_with_the_rest_on_the_last_machine():
    own = config("cluster.component_placement=all")
    assert [rank.node for rank in table_of_size(own, 3, 2).ranks] == ["node-0", "node-0", "node-1"]
    with pytest.raises(ConfigError, match="is a place for 3 processes"):
        table_of_size(config(THREE), 4, 2)


@pytest.mark.parametrize(
    ("launcher", "place", "number"),
    [
        ("local", "all", "(cluster.num_gpus_per_node)"),
        ("local", "{actor: 0-1, rollout: 0-1}", "(other devices for actor and rollout in cluster.component_placement)"),
        ("torchrun", "{actor: 0-1, rollout: 0-1}", "(torchrun --nproc-per-node, and other devices for actor and"),
    ],
)
def test_what_sets_the_number_of_processes_is_named(launcher, place, number):
    own = config(f"cluster.component_placement={place}", "env.train.total_num_envs=3", "env.eval.total_num_envs=3")
    with pytest.raises(ConfigError, match="the 2 processes of the run cannot share it equally") as refused:
        shares.check(own, Group(0, 2, 0, 2, launcher=launcher))  # type: ignore[arg-type]
    assert number in refused.value.remedy


def test_more_machines_than_a_placement_uses_are_not_to_be_started():
    place = "cluster.component_placement={actor: 0-1, rollout: 0-1}"
    keys = (place, "cluster.num_nodes=2", "cluster.num_gpus_per_node=4")
    with pytest.raises(ConfigError, match=r"cluster\.num_nodes is 2, and the run has 1 machine\n") as refused:
        shares.check(config(*keys), Group(0, 2, 0, 2))
    assert refused.value.remedy.startswith("leave cluster.num_nodes out, or give actor and rollout devices of 2")


@pytest.mark.parametrize(
    ("launcher", "place", "fix"),
    [
        ("local", None, "leave cluster.launcher out"),
        ("torchrun", None, "start it without torchrun"),
        ("local", "all", "leave cluster.component_placement out and leave cluster.launcher out"),
        ("torchrun", "all", "leave cluster.component_placement out and start it without torchrun"),
    ],
)
def test_demonstrations_are_made_by_one_process(launcher, place, fix):
    keys = [] if place is None else [f"cluster.component_placement={place}"]
    own = compose(["env=fake", *keys], "demos", [CONFIG]).config
    with pytest.raises(ConfigError, match="made by one process") as refused:
        shares.check(own, Group(0, 2, 0, 2, launcher=launcher))  # type: ignore[arg-type]
    assert refused.value.remedy == fix
    two = compose(["env=fake", "cluster.component_placement={actor: 0-1, rollout: 0-1}"], "demos", [CONFIG]).config
    with pytest.raises(ConfigError, match="a place for 2 processes") as refused:
        table_of(two, Group(), {})
    assert refused.value.remedy == "leave cluster.component_placement out"
