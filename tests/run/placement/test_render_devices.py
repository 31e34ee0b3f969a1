"""Which devices simulators are told to render on, and what is refused before a worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from logged import rows_of
from seeded_runs import tensors

from embodied import train
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.parallel.placement.launcher import VARIABLE
from embodied.parallel.placement.table import NODES, Node, nodes_as_text
from embodied.run.build import policy, shares
from embodied.run.placement.roles import placed
from embodied.run.placement.table import Planned, planned, rows
from embodied.runtime.pool import placement
from embodied.schema import Config
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[2] / "config")
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "runner.save_interval=-1",
    "runner.val_check_interval=-1", "env.train.max_episode_steps=10", "env.train.reward_mode=dense",
    "env.eval.video_cfg.save_video=false", "env.train.total_num_envs=12", "env.eval.total_num_envs=12",
    "algorithm.group_size=2",
)  # fmt: skip
APART = "cluster.component_placement={actor: 0-1, rollout: 0-1, env: 2-3}"
GPUS = "4,GPU-8a,6,GPU-7b"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "MUJOCO_EGL_DEVICE_ID", "EMBODIED_RENDER_GPU", NODES, VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def config(*keys: str) -> Config:
    return compose([*FAKE, *keys], "train", [CONFIG]).config


def ranks(own: Config, *counts: int, launcher: str = "torchrun") -> list[Group]:
    """Processes of machines with so many each, in their places."""
    where = [(local, count) for count in counts for local in range(count)]
    return [
        placed(own, Group(rank, len(where), *place, launcher=launcher))  # type: ignore[arg-type]
        for rank, place in enumerate(where)
    ]


def told(own: Config, *groups: Group) -> list[tuple[int | str, ...]]:
    """GPUs that the workers of each process are told; what cannot run is refused first."""
    for group in groups:
        shares.check(own, group)
    return [shares.render_gpus_of(own, group) for group in groups]


@pytest.mark.parametrize(
    ("where", "gpus"),
    [
        ("{actor: 0-1, rollout: 0-1, env: 2-3}", [(6,), ("GPU-7b",)]),
        ("{actor: 0-1, rollout: 0-1, env: 1-3}", [("GPU-8a", "GPU-7b"), (6,)]),
        ("{actor: 0-1, rollout: 0-1, env: 3}", [("GPU-7b",), ("GPU-7b",)]),
        ("{actor: 2-3, rollout: 2-3, env: 0-1}", [(4,), ("GPU-8a",)]),
        ("{actor: 0, rollout: 2, env: 0}", [(), (4,)]),
        ("{actor: 1-2, rollout: 1-2}", [("GPU-8a",), (6,)]),
    ],
)
def test_devices_of_the_placement_are_places_in_what_cuda_shows(where, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPUS)
    own = config(f"cluster.component_placement={where}", "runner.device=auto")
    assert told(own, *ranks(own, 2)) == gpus


@pytest.mark.parametrize("keys", [(), ("cluster.component_placement=all",)])
def test_without_numbers_the_processes_share_all_gpus(keys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    own = config(*keys)
    assert told(own, *ranks(own, 2)) == [(4, 6), (5, 7)]


def test_processes_on_cpus_have_no_device_that_their_simulators_could_share(monkeypatch):
    """They share the GPUs, as without a placement, unless env has numbers of its own."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    own = config("cluster.component_placement={actor: 0-1, rollout: 0-1}")
    assert told(own, *ranks(own, 2)) == [(4,), (4,)]


def test_the_group_of_a_role_knows_the_devices_too(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    own = config("cluster.component_placement={actor: 0, rollout: 1-3, env: [0,2]}")
    groups = [rank.of("rollout") for rank in ranks(own, 4)]
    assert [shares.render_gpus_of(own, group) for group in groups[1:]] == [(4,), (6,), (4,)]


def test_ray_shows_a_node_s_processes_the_devices_of_the_run_alone(monkeypatch):
    """Devices 1 and 3 of node a are the first and second that are seen there, device 0 of b the only one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv(VARIABLE, "ray")
    monkeypatch.setenv(NODES, nodes_as_text([Node("a", 4), Node("b", 2)]))
    own = config("cluster.component_placement={actor: [3,4], rollout: [3,4], env: [1,4]}", "runner.device=auto")
    groups = ranks(own, 1, 1, launcher="ray")
    assert [group.device for group in groups] == [1, 0]
    assert told(own, groups[0]) == [(0,)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert told(own, groups[1]) == [(1,)]


def test_where_cuda_shows_nothing_workers_are_told_nothing():
    own = config(APART)
    assert told(own, *ranks(own, 2)) == [(), ()]


@pytest.mark.parametrize(
    ("gpus", "keys", "said"),
    [
        ("4,5,6", (APART,), "names the device 3 of node-0, and 3 GPUs can be seen there"),
        ("4", (APART,), "names the devices 2-3 of node-0, and 1 GPU can be seen there"),
        ("4", (APART, "runner.device=auto"), "names the devices 1-3 of node-0, and 1 GPU can be seen there"),
        ("4,-1,5,6,7", (APART,), "names the devices 2-3 of node-0, and 1 GPU can be seen there"),
        ("4,5,MIG-7,MIG-8", (APART,), "names the device 2 of node-0, which is MIG-7, and CUDA shows"),
        ("MIG-7,MIG-8,4,5", (APART, "runner.device=auto"), "names the device 1 of node-0, which is MIG-8, and CUDA"),
        (GPUS, (APART, "env.render_gpus=[0]"), "env.render_gpus is [0]: both say where simulators render"),
        (GPUS, (APART, "env.render_gpus=[]"), "env.render_gpus is []: both say where simulators render"),
    ],
)
def test_what_cannot_be_is_refused_by_name(gpus, keys, said, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    own = config(*keys)
    with pytest.raises(ConfigError) as refused:
        shares.check(own, ranks(own, 2)[0])
    assert said in str(refused.value)


def test_a_part_of_a_gpu_can_be_the_first_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7,MIG-8")
    own = config("cluster.component_placement={env: 0}", "runner.device=auto")
    assert told(own, Group()) == [()], "without a table"
    assert told(own, *ranks(own, 1)) == [("MIG-7",)]


def test_gpus_that_nothing_lists_are_refused_as_devices_of_simulators(monkeypatch):
    monkeypatch.setattr(placement, "NVIDIA", Path("none"))
    for keys, available in (((APART, "runner.device=auto"), False), ((APART,), True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        own = config(*keys)
        assert told(own, *ranks(own, 2)) == [(), ()]
    own = config(APART, "runner.device=auto")
    with pytest.raises(ConfigError, match=r"gives env 2-3, and neither CUDA_VISIBLE_DEVICES nor the driver") as refused:
        shares.check(own, ranks(own, 2)[0])
    assert refused.value.remedy.startswith("export CUDA_VISIBLE_DEVICES=0,1,2,3, with")
    beside = config("cluster.component_placement={actor: 0-1, rollout: 0-1}", "runner.device=auto")
    shares.check(beside, ranks(beside, 2)[0])


@pytest.mark.parametrize(
    ("shown", "device", "fix"),
    [("2,3", "auto", None), ("0,1,2,3", "auto", "NOSET"), ("2", "auto", "NOSET"), ("0,1,2,3", "cpu", None)],
)
def test_ray_shows_a_process_the_devices_of_the_run_or_it_is_refused(shown, device, fix, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setenv(VARIABLE, "ray")
    monkeypatch.setenv(NODES, nodes_as_text([Node("a", 4)]))
    own = config("cluster.component_placement={actor: 2-3, rollout: 2-3}", f"runner.device={device}")
    group = ranks(own, 2, launcher="ray")[1]
    if fix is None:
        shares.check(own, group)
        return
    with pytest.raises(ConfigError, match=f"has 2 GPUs of a, and its processes see {len(shown[::2])}") as found:
        shares.check(own, group)
    assert fix in found.value.remedy


def test_ray_lends_no_gpu_to_a_run_on_cpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(VARIABLE, "ray")
    monkeypatch.setenv(NODES, nodes_as_text([Node("a", 4)]))
    own = config(APART)
    with pytest.raises(ConfigError, match="the run has 4 GPUs of a, and its processes see 1") as refused:
        shares.check(own, ranks(own, 2, launcher="ray")[0])
    assert "runner.device=auto" in refused.value.remedy


@pytest.mark.parametrize("name", ["EMBODIED_RENDER_GPU", "MUJOCO_EGL_DEVICE_ID"])
def test_a_variable_that_every_worker_would_follow_is_refused(name, monkeypatch):
    monkeypatch.setenv(name, "0")
    own = config(APART)
    with pytest.raises(ConfigError, match=rf"gives env 2-3, and the variable {name} is 0"):
        shares.check(own, ranks(own, 2)[0])
    usual = config("cluster.component_placement={actor: 0-1, rollout: 0-1}")
    shares.check(usual, ranks(usual, 2)[0])


def test_hosts_on_other_nodes_and_devices_beside_the_processes_are_two_places(monkeypatch):
    monkeypatch.setenv(NODES, nodes_as_text([Node("a", 4)]))
    own = config(APART, "cluster.simulator_hosts=2")
    with pytest.raises(ConfigError, match=r"cluster\.simulator_hosts is 2, which puts simulators on other nodes"):
        shares.check(own, ranks(own, 2, launcher="ray")[0])
    monkeypatch.delenv(NODES)
    shares.check(own, ranks(own, 2)[0])  # hosts of this machine


def test_the_launcher_of_a_cluster_asks_its_own_machine_for_no_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "0")
    own = config(APART, "cluster.launcher=ray")
    group = ranks(own, 2, launcher="ray")[0]
    shares.check(own, group)
    monkeypatch.setenv(VARIABLE, "ray")
    with pytest.raises(ConfigError):
        shares.check(own, group)


def test_a_dry_run_of_another_machine_shows_the_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    one = config("cluster.component_placement={actor: 0, rollout: 0, env: 1}", "runner.dry_run=true")
    two = config(APART, "runner.dry_run=true")
    for own, first in ((one, ["simulators", "of rank 0: on device 1 of node-0"]),
                       (two, ["simulators", "of rank 0: on device 2 of node-0"])):  # fmt: skip
        group = planned(own, Group())
        assert isinstance(group, Planned), "whose devices are not those of this machine"
        shares.check(own, group)
        assert rows(own, group)[1] == first


@pytest.mark.parametrize(
    ("where", "counts", "devices"),
    [
        ("{actor: 2-3, rollout: 2-3, env: 0-1}", (2,), ["cuda:2", "cuda:3"]),
        ("{actor: [0,2,5], rollout: [0,2,5]}", (2, 1), ["cuda:0", "cuda:2", "cuda:1"]),
        ("{actor: 1, rollout: 1, env: 0}", (1,), ["cuda:1"]),
        ("{actor: 0, rollout: 0, env: 1}", (1,), ["cuda"]),
        ("{actor: 0-1, rollout: 0-1}", (2,), ["cuda:0", "cuda:1"]),
    ],
)
def test_a_process_computes_on_the_device_of_the_table(where, counts, devices, monkeypatch):
    chosen: list[str] = []
    monkeypatch.setattr(policy, "device_named", lambda name, key: torch.device(name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(str(device)))
    monkeypatch.setenv("GROUP_WORLD_SIZE", str(len(counts)))
    own = config(f"cluster.component_placement={where}", "cluster.num_gpus_per_node=4", "runner.device=cuda")
    groups = ranks(own, *counts)
    assert [str(policy.device_of(own.runner, group)) for group in groups] == devices
    assert chosen == [device for device in devices if ":" in device]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Planned(ranks(own, *counts)[0].table).device == 0, "a plan is counted on any GPU"
    if devices[-1] not in ("cuda", "cuda:0"):
        with pytest.raises(ConfigError, match=r"of 1 GPUs need one each, this one number [123]"):
            policy.device_of(own.runner, groups[-1])


TELLS = ("env.train._target_=hosted_env.WritesItsDevice", "env.eval._target_=hosted_env.WritesItsDevice")


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_are_told_and_no_number_depends_on_it(start, tmp_path, monkeypatch):
    """One process on device 0, whose two workers take devices 1 and 2 in turn."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPUS)
    (tmp_path / "seen").mkdir()
    keys = (*FAKE, *TELLS, "env.num_workers=2", f"env.start_method={start}")
    apart = "cluster.component_placement={actor: 0, rollout: 0, env: 1-2}"
    assert train.main([*keys, apart, "runner.experiment_name=apart", "--config-dir", CONFIG]) == 0
    seen = sorted(file.read_text(encoding="utf-8").split()[0] for file in (tmp_path / "seen").iterdir())
    assert seen == ["6", "GPU-8a"]
    if start == "spawn":
        return
    assert train.main([*keys, "runner.experiment_name=beside", "--config-dir", CONFIG]) == 0
    assert rows_of(Path("runs/apart")) == rows_of(Path("runs/beside"))
    found, same = (tensors(Path("runs", name)) for name in ("apart", "beside"))
    assert found.keys() == same.keys()
    assert all(bool((found[name] == same[name]).all()) for name in same)


def test_one_process_sends_nothing_that_its_dry_run_could_tell(capsys):
    apart = "cluster.component_placement={actor: 0, rollout: 0, env: 1}"
    assert train.main([*FAKE, apart, "runner.dry_run=true", "--config-dir", CONFIG]) == 0
    told = capsys.readouterr().out
    assert "of rank 0: on device 1 of node-0" in told
    assert "bytes between processes" not in told
