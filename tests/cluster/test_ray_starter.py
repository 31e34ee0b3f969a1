"""How simulator hosts are started by Ray: a stand-in has the nodes, the hosts are real processes of this machine."""

from __future__ import annotations

import errno
import pickle
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from lab import wait_for
from stand_in_ray import StandInRay

from embodied.cluster import sim_host
from embodied.cluster.sim_host import RayStarter, SimHost
from embodied.errors import ClusterError, WorkerDiedError
from embodied.parallel.placement.table import NodeSoftware
from embodied.runtime.pool.pool import Deadlines, PoolConfig
from embodied.runtime.remote import folders as rooms
from embodied.runtime.remote.folders import PREFIX, UNLOCKED, temporary_folder
from embodied.runtime.remote.starter import KEY_BYTES, HostJob
from embodied.runtime.worker.reward import ShapedReward

ENDS_S = 60.0
NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostJob:
    """Of a node that lacks the folder of the run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = Deadlines(init=60.0, reset=60.0, step=60.0)
    pool = PoolConfig(2, 1, "embodied.testing.FakeEnv", {}, ShapedReward("dense"), limits, tmp_path / "not-there")
    return HostJob(pool, {}, (), (), False, 60.0, "proof", ())


def folders(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.glob(f"{PREFIX}*")]


def start(starter: RayStarter, job: HostJob) -> sim_host.RayHost:
    return starter.start(3, job, bytes(KEY_BYTES), NOBODY)


def test_a_host_that_is_stopped_leaves_neither_process_nor_folder(job, tmp_path, monkeypatch):
    ray = StandInRay({"b": 8}).install(monkeypatch)
    host = start(RayStarter("head", "198.18.0.9"), job)
    (actor,) = ray.actors
    pid = actor.made._host.pid
    assert (host.node, actor.cpus, len(folders(tmp_path))) == ("b", 2, 1)
    host.stop()
    wait_for(lambda: actor.killed, ENDS_S)
    assert folders(tmp_path) == []
    assert not Path(f"/proc/{pid}").exists()


def test_what_the_host_said_is_the_cause_with_its_node_and_its_own_fix(job, tmp_path, monkeypatch):
    """It would be lost among the lines that Ray prints for an error of an actor."""
    StandInRay({"b": 8}).install(monkeypatch)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named embodied\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(WorkerDiedError) as failed:
        start(RayStarter("head", "198.18.0.9", software={"b": NodeSoftware(str(python))}), job)
    assert failed.value.message.startswith("on node b: simulator host 3 ended with status 1 before it served")
    assert failed.value.remedy.startswith("see ")
    assert failed.value.detail == "No module named embodied\n"


def test_a_node_that_lets_an_actor_wait_is_full_and_another_is_taken(job, monkeypatch):
    ray = StandInRay({"b": 8, "c": 4}, full=("b",)).install(monkeypatch)
    starter = RayStarter("head", "198.18.0.9")
    host = start(starter, job)
    assert [(actor.node_id, actor.killed) for actor in ray.actors] == [("id-b", True), ("id-c", False)]
    assert host.node == "c"
    host.stop()
    wait_for(lambda: ray.actors[1].killed, ENDS_S)


def test_without_a_free_cpu_the_fix_names_what_a_host_takes(job, monkeypatch):
    StandInRay({"b": 0.0}).install(monkeypatch)
    with pytest.raises(ClusterError, match="simulator host 3 finds no node with a free CPU") as failed:
        start(RayStarter("head", "198.18.0.9"), job)
    assert "lower env.train.total_num_envs" in failed.value.remedy


def test_a_folder_that_a_killed_process_has_left_is_removed_by_the_next_and_no_other(tmp_path, job):
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / "host.log").touch()
    other = tmp_path / f"{PREFIX}link"
    other.symlink_to(tmp_path, target_is_directory=True)
    with temporary_folder() as lives, temporary_folder() as second:
        assert sorted(folders(tmp_path)) == sorted([lives.name, second.name, other.name])
    assert folders(tmp_path) == [other.name]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EBADF])
def test_where_folders_cannot_be_locked_none_is_removed(tmp_path, job, monkeypatch, number):
    """As on some network file systems."""
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()

    def flock(*arguments: int) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(rooms.fcntl, "flock", flock)
    with temporary_folder() as lives:
        assert lives.name.startswith(UNLOCKED)
        with temporary_folder() as second:
            assert lives.is_dir()
        assert not second.exists()
    assert [*tmp_path.iterdir()] == [left]


def test_folders_of_other_machines_and_of_older_releases_stay(tmp_path, job):
    others = {tmp_path / "embodied-host-abcd1234", tmp_path / "embodied-host@another@abcd1234"}
    for other in others:
        other.mkdir()
    with temporary_folder() as lives:
        assert socket.gethostname() in lives.name
        assert not lives.name.startswith("embodied-host-"), "an older release removes these"
    assert {*tmp_path.iterdir()} == others


def test_a_stopped_host_has_given_back_its_cpus_before_another_is_placed(job, monkeypatch):
    monkeypatch.setattr(sim_host, "END_S", ENDS_S)
    ray = StandInRay({"b": 8}).install(monkeypatch)
    starter = RayStarter("head", "198.18.0.9")
    host = start(starter, job)
    host.stop()
    killed = []
    monkeypatch.setattr(starter, "_placed", lambda *_: killed.append(ray.actors[0].killed) or _nowhere())
    with pytest.raises(ClusterError):
        start(starter, job)
    assert killed == [True]


def _nowhere() -> None:
    raise ClusterError("no node", "add one")


def test_a_host_that_sees_the_runs_folder_has_no_other(job, tmp_path):
    seen = tmp_path / "logs"
    seen.mkdir()
    host = SimHost("127.0.0.1", ENDS_S)
    host.start(0, pickle.dumps(replace(job, pool=replace(job.pool, log_dir=seen))), bytes(KEY_BYTES))
    assert folders(tmp_path) == []
    assert (seen / "host.log").exists()
    host.close()
