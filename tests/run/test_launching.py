"""Whether a command starts ranks or is one, and what it asks of the launcher. ``cluster.launcher=local`` for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_run import arguments, checkpoints, in_tmp_path, lasting, rows, run, wait_for  # noqa: F401 (a fixture)

from embodied import schema
from embodied.cluster import launch
from embodied.cluster.launch import Job
from embodied.errors import ConfigError
from embodied.run import launching
from embodied.run.launching import launches
from embodied.schema.compose.compose import compose

ROOT = Path(__file__).resolve().parents[2]
USUAL = ("env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.rollout_epoch=2")
RANK = {"WORLD_SIZE": "2", "RANK": "0"}
ENDS_S = 300.0


def config(*overrides: str) -> schema.Config:
    return compose(["env=fake", "model=fake", *overrides], "train", [str(ROOT / "tests" / "config")]).config


@pytest.mark.parametrize(
    ("overrides", "environment", "starts"),
    [
        ([], {}, False),
        ([], RANK, False),
        (["cluster.launcher=torchrun"], RANK, False),
        (["cluster.launcher=ray"], {}, True),
        (["cluster.launcher=ray"], {**RANK, "EMBODIED_LAUNCHER": "ray"}, False),
        (["cluster.launcher=ray", "runner.dry_run=true"], {}, False),
        (["cluster.launcher=local"], {}, False),
        (["cluster.launcher=local", "cluster.num_gpus_per_node=2"], {}, True),
        (["cluster.launcher=local", "cluster.num_gpus_per_node=2"], {**RANK, "EMBODIED_LAUNCHER": "local"}, False),
    ],
)
def test_a_process_that_nobody_has_launched_launches(overrides, environment, starts):
    assert launches(config(*overrides), environment) is starts


@pytest.mark.parametrize(
    ("launcher", "environment", "said"),
    [
        ("torchrun", {}, "cluster.launcher is torchrun, and no launcher has started this process"),
        ("ray", RANK, "start it with python -m embodied.train … cluster.launcher=ray"),
        ("torchrun", {**RANK, "EMBODIED_LAUNCHER": "ray"}, "torchrun --nnodes=1 --nproc-per-node=1"),
    ],
)
def test_another_launcher_than_the_key_says_is_refused(launcher, environment, said):
    with pytest.raises(ConfigError) as refused:
        launches(config(f"cluster.launcher={launcher}"), environment)
    assert said in str(refused.value)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Jobs that are to be launched, which nothing is."""
    jobs: list[Job] = []

    def take(job: Job) -> int:
        jobs.append(job)
        return 0

    monkeypatch.setattr(launch, "launch", take)
    return jobs


def test_a_job_has_what_the_keys_say(asked):
    keys = ("cluster.launcher=ray", "cluster.num_nodes=2", "cluster.num_gpus_per_node=1", "cluster.max_restarts=3")
    assert run(*USUAL, *keys, "runner.stop_timeout_s=7", "cluster.init_timeout_s=9") == 0
    (job,) = asked
    assert job.arguments == ["-m", "embodied.train", *arguments(*USUAL, *keys, "runner.stop_timeout_s=7",
                                                                "cluster.init_timeout_s=9")]  # fmt: skip
    assert (job.launcher, job.count, job.each, job.max_restarts) == ("ray", 2, 1, 3)
    assert (job.grace_s, job.init_timeout_s, job.address, job.resource) == (17.0, 9.0, "auto", "CPU")
    assert job.run == Path("runs/run")
    assert [size for size in range(1, 9) if job.divides(size)] == [1, 2]


def test_ranks_share_what_those_with_their_role_share(asked, monkeypatch, capsys):
    """Two of three collect, with four slots."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    three = ("cluster.launcher=local", "cluster.num_gpus_per_node=3")
    apart = ("cluster.component_placement={rollout: 0-1, actor: 2}", "actor.fsdp_config.strategy=replicate")
    assert run(*USUAL, *three, *apart) == 0
    assert len(asked) == 1
    assert run(*USUAL, *three, *apart, "cluster.component_placement={rollout: 0-2, actor: 2}") == 2
    assert "the 3 processes that collect episodes cannot share it equally" in capsys.readouterr().err
    assert len(asked) == 1


def test_devices_that_simulators_have_to_themselves_have_no_rank(asked, monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    local = (*USUAL, "cluster.launcher=local", "actor.fsdp_config.strategy=replicate")
    apart = "cluster.component_placement={actor: 0-1, rollout: 0-1, env: 2-3}"
    assert run(*local, apart) == 0
    assert run(*local, apart, "cluster.num_gpus_per_node=4") == 0
    assert [(job.each, job.count) for job in asked] == [(2, None), (2, None)]
    assert not launches(config(*local[2:], "cluster.component_placement={actor: 0, rollout: 0, env: 1-3}"))
    assert run(*local, "cluster.component_placement={actor: 0-3, rollout: 0-3}") == 2
    assert "is a place for 4 processes, and this machine has 2 CPU cores" in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2,GPU-3")
    assert run(*local, apart, "runner.device=auto") == 2
    assert "names the device 3 of node-0, and 3 GPUs can be seen there" in capsys.readouterr().err
    assert len(asked) == 2


def test_a_placed_job_goes_on_with_what_can_share_the_work(asked):
    """Three ranks on two nodes, then any number that divides the slots, however they stand."""
    more = ("env.train.total_num_envs=12", "env.eval.total_num_envs=12", "algorithm.group_size=2")
    keys = ("cluster.launcher=ray", "cluster.num_gpus_per_node=2", "cluster.component_placement=all")
    assert run(*more, *keys) == 0
    assert [size for size in range(1, 8) if asked[0].divides(size)] == [1, 2, 3, 4, 6]


def test_a_dry_run_refuses_for_roles_what_a_run_would(capsys):
    keys = ("cluster.num_nodes=1", "cluster.num_gpus_per_node=2", "cluster.component_placement={actor: 0, rollout: 1}")
    lag = ("algorithm.max_staleness=2", "runner.dry_run=true", "actor.fsdp_config.strategy=replicate")
    assert run(*USUAL, *keys, *lag) == 2
    assert "a process that only collects keeps one set of weights" in capsys.readouterr().err


def test_numbers_that_cannot_be_are_refused_before_anything_starts(asked, capsys, monkeypatch):
    def refused(*keys: str) -> str:
        assert run(*USUAL, *keys) == 2
        return capsys.readouterr().err

    assert "the 3 processes of the run cannot share it" in refused(
        "cluster.launcher=ray", "cluster.num_nodes=3", "cluster.num_gpus_per_node=1"
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    four = ("cluster.launcher=local", "cluster.num_gpus_per_node=4")
    assert "cluster.num_gpus_per_node is 4, and this machine has 2 CPU cores" in refused(*four)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "and this machine has 1 GPUs" in refused("cluster.launcher=local", "cluster.num_gpus_per_node=2",
                                                     "runner.device=auto")  # fmt: skip
    assert "cluster.num_nodes 2" in refused(*four[:1], "cluster.num_gpus_per_node=2", "cluster.num_nodes=2")
    assert asked == []


def test_the_texts_of_ranks_name_the_key_of_their_launcher(capsys, monkeypatch):
    for name, value in {**RANK, "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run("env.train.total_num_envs=3", "algorithm.group_size=3") == 2
    assert "(torchrun --nproc-per-node)" in capsys.readouterr().err
    monkeypatch.setenv("EMBODIED_LAUNCHER", "ray")
    keys = ("cluster.launcher=ray", "cluster.num_nodes=5")  # a restart has other numbers than the keys
    assert run(*keys, "env.train.total_num_envs=3", "algorithm.group_size=3") == 2
    assert capsys.readouterr().err == "", "the launcher says it"
    with pytest.raises(ConfigError, match=r"\(cluster.num_nodes, cluster.num_gpus_per_node\)"):
        launching_check(*keys, "env.train.total_num_envs=3", "algorithm.group_size=3")


def launching_check(*overrides: str) -> None:
    from embodied.parallel.group import Group
    from embodied.run.build import shares

    shares.check(config(*overrides), Group(0, 2, 0, 2, launcher="ray"))


LOCAL = (*USUAL, "cluster.launcher=local", "cluster.num_gpus_per_node=2", "actor.fsdp_config.strategy=replicate")


def started(*overrides: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "embodied.train", *arguments(*LOCAL, *overrides)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}"}
    with Path("out").open("wb") as out:
        return subprocess.Popen(words, stdout=out, stderr=out, env=environment)


@pytest.mark.slow
def test_local_ranks_make_the_run_of_torchrun_and_a_killed_one_goes_on():
    assert launching.launches(config(*LOCAL))
    options = ("env.train.step_s=0.02", "runner.max_epochs=8", "runner.save_interval=1")
    process = started(*options, "cluster.max_restarts=1")
    first = Path("runs/run/checkpoints/000001/meta.json")
    wait_for(lambda: first.exists() or process.poll() is not None, ENDS_S)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    assert process.wait(ENDS_S) == 0
    said = Path("out").read_text(encoding="utf-8")
    assert "rank 1 on node localhost was killed by SIGKILL" in said
    assert "restart 1 of 1" in said
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*torchrun, "-m", "embodied.train", *arguments(*USUAL, LOCAL[-1], *options, name="whole")]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=ENDS_S)
    assert lasting(rows()) == lasting(rows("whole"))


@pytest.mark.slow
def test_ctrl_c_at_a_local_launcher_leaves_a_checkpoint():
    process = started("env.train.step_s=0.02", "runner.max_epochs=500")
    wait_for(lambda: (Path("runs/run/metrics.jsonl").exists() and rows()) or process.poll() is not None, ENDS_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(ENDS_S) == 130
    assert int(checkpoints()[-1]) == rows()[-1]["step"]
