"""Whole runs with simulator hosts: the numbers are those of a run with its own workers; and what hosts cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from logged import VARYING

from embodied import train
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.parallel.placement.table import SimulatorHost
from embodied.run.build.preflight import check
from embodied.run.placement import table
from embodied.runtime.remote.peer import Peer
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[2] / "config")
FAST = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=1", "runner.save_interval=1",
    "runner.val_check_interval=1", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=10",
    "env.train.total_num_envs=4", "env.eval.total_num_envs=3", "env.eval.max_episode_steps=6", "env.num_workers=2",
    "env.eval.video_cfg.max_videos=1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, *overrides: str) -> tuple[list[dict[str, float]], dict[str, bytes]]:
    """Metrics without times, and the files of weights and videos."""
    arguments = [*FAST, f"runner.experiment_name={name}", *overrides, "--config-dir", CONFIG]
    assert train.main(arguments, "train") == 0
    rows = [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    metrics = [{key: value for key, value in row.items() if not VARYING.match(key)} for row in rows]
    files = [*Path("runs", name, "checkpoints").rglob("*.safetensors"), *Path("videos", name).rglob("*.mp4")]
    return metrics, {path.name: path.read_bytes() for path in files}


def test_training_evaluation_and_videos_are_those_of_a_run_with_its_own_workers():
    metrics, files = run("own")
    assert len(metrics) == 1
    assert "eval/success_rate" in metrics[0]
    assert {Path(name).suffix for name in files} >= {".mp4"}
    found, same = run("hosts", "cluster.simulator_hosts=2", "env.enable_offload=true")
    assert found == metrics
    assert same == files
    assert {path.parent.name for path in Path("runs/hosts/logs").rglob("worker-*.log")} == {"host-00", "host-01"}
    assert not [*Path("runs/hosts/logs").rglob(".seen-by-hosts-*")]


def test_hosts_of_the_placement_have_its_slots(monkeypatch: pytest.MonkeyPatch):
    """Who starts them is no matter of theirs: here it is this process."""
    placed = (SimulatorHost("b", 0, 0, 3), SimulatorHost("c", 0, 3, 1))
    monkeypatch.setattr(table, "hosts_of", lambda config, processes: placed)
    given: list[list[int]] = []
    start = Peer.start
    monkeypatch.setattr(Peer, "start", lambda peer, *how: (given.append([*peer.slots]), start(peer, *how))[1])
    run("placed")
    assert given[:2] == [[0, 1, 2], [3]]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("cluster.simulator_hosts=5",), "there are 4 env slots"),
        (("cluster.simulator_hosts=1", *(f"env.{side}._target_=robot_envs.Robot" for side in ("train", "eval")),
          *(f"+env.{side}.folder=robot" for side in ("train", "eval"))),
         "has a robot"),
    ],
    ids=["too many", "a robot"],
)  # fmt: skip
def test_what_hosts_cannot_do_is_refused_before_a_worker_starts(overrides, told):
    with pytest.raises(ConfigError, match=told):
        check(compose([*FAST, *overrides], "train", [CONFIG]), Group())


def test_demonstrations_are_recorded_without_hosts():
    overrides = ("env=fake", "episodes=2", "demos.path=demos", "cluster.simulator_hosts=1")
    with pytest.raises(ConfigError, match="recorded by workers of the process itself"):
        check(compose([*overrides], "demos", [CONFIG]), Group())
