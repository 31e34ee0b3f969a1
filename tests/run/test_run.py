"""Whole runs, as a user starts them: what is on disk afterwards, and how they end, resume and refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warm
import yaml
from logged import VARYING, lasting_meta
from seeded_runs import tensors

from embodied import train
from embodied.errors import CheckpointError, WorkerDiedError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.trainer import Trainer
from embodied.observe.video.grid import MOST_BYTES
from embodied.run.evaluation import videos
from embodied.run.folder.folder import RunFolder, differences
from embodied.run.folder.reporter import Reporter
from embodied.run.folder.saves import Saves
from embodied.run.training.collector import Collector
from embodied.runtime.pool import pool
from embodied.types import EpisodeResult

HERE = Path(__file__).parents[1]
FAST = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "runner.save_interval=-1",
    "runner.val_check_interval=-1", "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10",
    "env.eval.max_episode_steps=6", "env.eval.video_cfg.save_video=false", "env.num_workers=1",
)  # fmt: skip
TWO = "env.num_workers=2"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(*overrides: str, name: str = "run") -> list[str]:
    return [*FAST, f"runner.experiment_name={name}", *overrides, "--config-dir", str(HERE / "config")]


def run(*overrides: str, name: str = "run", entry: str = "train") -> int:
    return train.main(arguments(*overrides, name=name), entry)


def rows(name: str = "run") -> list[dict[str, float]]:
    return [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def lasting(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if not VARYING.match(key)} for row in metrics]


def checkpoints(name: str = "run") -> list[str]:
    return sorted(path.name for path in Path("runs", name, "checkpoints").iterdir())


def checkpoint_bytes(iteration: int, name: str = "run") -> dict[str, bytes]:
    folder = Path("runs", name, "checkpoints", f"{iteration:06d}")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".metadata"}
    meta = lasting_meta(folder)
    del meta["origin"]["simulator"]  # another one may give the same numbers
    return files | {"meta.json": json.dumps(meta).encode()}


def children() -> set[str]:
    """Process ids."""
    found: set[str] = set()
    for listed in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found.update(listed.read_text(encoding="utf-8").split())
    return found


def everything(folder: Path = Path()) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a worker is started."""

    def start(*args: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(pool.Pool, "_start", start)


def test_a_run_leaves_metrics_configuration_checkpoint_and_no_process(capsys):
    own, before = children(), set(os.listdir("/proc/self/fd"))
    assert run("runner.save_interval=1", "runner.val_check_interval=2", "runner.checkpoint.max_keep=1", TWO) == 0
    assert [row["step"] for row in rows()] == [1, 2]
    first, last = rows()
    assert first["rollout/episodes"] == last["rollout/episodes"] == 8
    assert 8 <= first["rollout/records"] <= 24
    assert first["train/optimizer_steps"] == 1
    assert last["train/weight_version"] == 2
    assert "eval/success_rate" not in first
    assert last["eval/episodes"] == 2
    assert {"eval/task/0/success_rate", "eval/task/1/success_rate", "time/save_s", "time/eval_s"} <= set(last)
    assert checkpoints() == ["000002"]
    saved = yaml.safe_load(Path("runs/run/config.yaml").read_text(encoding="utf-8"))
    assert saved["env"]["train"]["_target_"] == "embodied.testing.FakeEnv"
    assert saved["algorithm"]["rollout_epoch"] == 4
    assert json.loads(Path("runs/run/eval/000002.json").read_text(encoding="utf-8"))["iteration"] == 2
    out = capsys.readouterr().out
    assert "2 iterations done" in out
    assert "iteration 2/2" in out
    assert children() <= own, "workers outlive the run"
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1


def test_the_same_seed_is_the_same_run_whatever_the_workers_and_the_schedule():
    assert run(TWO, name="a") == 0
    assert run("rollout.schedule=lockstep", name="b") == 0
    assert lasting(rows("a")) == lasting(rows("b"))
    assert checkpoint_bytes(2, "a") == checkpoint_bytes(2, "b")
    assert run("runner.seed=5", name="c") == 0
    assert checkpoint_bytes(2, "a") != checkpoint_bytes(2, "c")


def test_another_seed_trains_from_other_scenes(monkeypatch):
    seen = []
    plan = Collector.plan
    monkeypatch.setattr(Collector, "plan", lambda *args: seen.append(plan(*args)) or seen[-1])
    assert run("runner.max_epochs=1", name="a") == 0
    assert run("runner.max_epochs=1", "runner.seed=1235", name="b") == 0
    assert [episodes[0].start.seed for episodes in seen] == [0, 1_000_003]


def test_a_resumed_run_equals_one_that_went_through(capsys):
    assert run("runner.max_epochs=4", name="whole") == 0
    assert run("runner.max_epochs=2", name="parts") == 0
    assert "2 iterations done" in capsys.readouterr().out
    assert run("runner.max_epochs=4", name="parts") == 0
    assert "going on after iteration 2" in capsys.readouterr().out
    assert [row["step"] for row in rows("parts")] == [1, 2, 3, 4]
    assert lasting(rows("parts")) == lasting(rows("whole"))
    assert checkpoint_bytes(4, "parts") == checkpoint_bytes(4, "whole")


def test_a_run_that_is_done_stays_done(no_worker):
    assert run("runner.max_epochs=0") == 0
    assert not Path("runs/run/checkpoints").exists()


def test_torn_metrics_and_a_damaged_checkpoint_are_survived(capsys):
    assert run("runner.save_interval=1", "runner.max_epochs=2") == 0
    whole = rows()
    file = Path("runs/run/checkpoints/000002/__0_0.distcp")
    file.write_bytes(file.read_bytes()[:100])
    with Path("runs/run/metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write('{"step": 3, "train/lo')
    capsys.readouterr()
    assert run("runner.save_interval=1", "runner.max_epochs=2") == 0
    out = capsys.readouterr().out
    assert "000002 is damaged: __0_0.distcp has 100 bytes" in out
    assert "going on after iteration 1" in out
    assert lasting(rows()) == lasting(whole)
    assert len(file.read_bytes()) > 100


def test_training_can_start_from_the_weights_of_another_run(capsys):
    assert run("actor.optim.lr=0.1", name="first") == 0
    assert "starts from" not in capsys.readouterr().out
    assert run("actor.optim.lr=0.1", "runner.ckpt_path=runs/first/checkpoints/000002", name="second") == 0
    assert re.search("starts from the weights of +runs/first/checkpoints/000002", capsys.readouterr().out)
    assert rows("second")[0]["rollout/return_mean"] != rows("first")[0]["rollout/return_mean"]
    assert rows("second")[0]["train/weight_version"] == 1


def test_explicit_and_refused_resume(capsys):
    assert run("runner.save_interval=1") == 0
    assert run("runner.resume_dir=null") == 2
    assert "runner.resume_dir is null and runs/run has checkpoints (newest 000002)" in capsys.readouterr().err
    assert run("runner.resume_dir=runs/run/checkpoints/000001") == 0
    assert [row["step"] for row in rows()] == [1, 2]


def codec(video: Path) -> str:
    import imageio_ffmpeg

    probe = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(video)], capture_output=True, text=True, encoding="utf-8"
    )
    return re.search(r"Video: (\w+).*?(yuv\w+).*?(\d+) fps", probe.stderr, re.S).group(1, 2, 3)


def test_evaluation_leaves_videos_as_named_in_its_report():
    options = ("env.eval.video_cfg.save_video=true", "env.eval.episodes_per_task=2", "env.eval.video_cfg.max_videos=3")
    assert run(*options, entry="eval") == 0
    report = json.loads(Path("runs/run/eval/000000.json").read_text(encoding="utf-8"))
    assert [task["episodes"] for task in report["tasks"]] == [2, 2, 4]
    assert report["tasks"][-1]["successes"] == sum(episode["success"] for episode in report["episodes"])
    named = [episode["video"] for episode in report["episodes"] if episode["video"]]
    assert len(report["episodes"]) == 4
    grid = Path("videos/run/eval/000000/grid.mp4")
    assert sorted([*named, str(grid)]) == sorted(str(path) for path in Path("videos").rglob("*.mp4"))
    assert len(named) == 3
    assert codec(grid) == ("h264", "yuv420p", "20")
    assert grid.stat().st_size <= MOST_BYTES
    assert {codec(Path(video)) for video in named} == {("h264", "yuv420p", "20")}
    assert not Path("runs/run/metrics.jsonl").exists()
    assert list(Path("videos").rglob(".*")) == [], "nothing half written stays"


def test_videos_are_bounded_and_change_no_number(monkeypatch, capsys):
    """In one run each iteration is recorded, in one every second, in one none; a grid that fails is said."""

    def fails(*_: object) -> bool:
        raise RuntimeError("no encoder")

    monkeypatch.setattr(videos, "write_grid", fails)
    kept = ("runner.save_interval=2", "actor.model.value_head=true")
    recorded = ("env.train.video_cfg.save_video=true", "env.train.video_cfg.max_videos=2",
                "env.train.video_cfg.video_interval=1")  # fmt: skip
    evaluated = ("runner.val_before_train=true", "env.eval.video_cfg.save_video=true")
    assert run(*kept, *recorded, *evaluated, name="every") == 0
    assert capsys.readouterr().out.count("no grid of the videos: no encoder") == 1
    assert run(*kept, *recorded, "env.train.video_cfg.video_interval=2", name="second") == 0
    assert run(*kept, "env.train.video_cfg.save_video=true", "env.train.video_cfg.max_videos=0", name="none") == 0
    assert "videos (train)" not in capsys.readouterr().out.rpartition("where things are")[2]
    counts = {str(folder): len(list(folder.glob("*.mp4"))) for folder in sorted(Path("videos").glob("*/train/*"))}
    place = "videos/{}/train/{:06d}".format
    assert counts == {place("every", 1): 2, place("every", 2): 2, place("second", 2): 2}
    assert checkpoint_tensors("every") == checkpoint_tensors("second") == checkpoint_tensors("none")
    own = [[{k: v for k, v in row.items() if not k.startswith("eval/")} for row in lasting(rows(name))]
           for name in ("every", "second", "none")]  # fmt: skip
    assert own[0][-2:] == own[1] == own[2]


def checkpoint_tensors(name: str) -> dict[str, bytes]:
    return {file: data for file, data in checkpoint_bytes(2, name).items() if file != "meta.json"}


def test_evaluation_with_other_settings_has_workers_of_its_own():
    options = ("env.eval.success_distance=99", "runner.val_check_interval=1", "runner.max_epochs=1")
    assert run(*options) == 0
    assert rows()[0]["eval/success_rate"] == 1
    assert rows()[0]["rollout/success_rate"] < 1


def test_a_dry_run_prints_the_numbers_and_writes_nothing(no_worker, capsys):
    assert run("runner.dry_run=true") == 0
    out = capsys.readouterr().out
    assert "8 = 2 starts × 4" in out
    assert "at most 10 control steps = 3 chunks of 4" in out
    assert "24 records" in out
    assert everything() == {}
    assert list(Path().iterdir()) == []


def test_another_configuration_in_the_same_folder_is_refused_and_nothing_changes(no_worker, capsys, monkeypatch):
    folder = Path("runs/run")
    (folder / "checkpoints").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", [])
    assert run("--cfg") == 0
    (folder / "config.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    before = everything(folder)
    assert run("algorithm.clip_ratio_low=0.1", "runner.seed=8", "runner.save_interval=7") == 2
    error = capsys.readouterr().err
    assert "algorithm.clip_ratio_low: 0.2 there, 0.1 now" in error
    assert "runner.seed: 1234 there, 8 now" in error
    assert "save_interval" not in error, "that may change"
    assert {path: data for path, data in everything(folder).items() if not path.endswith(".lock")} == before


def test_a_folder_that_is_no_run_folder_is_refused(no_worker, capsys):
    Path("runs/run").mkdir(parents=True)
    Path("runs/run/thesis.tex").write_text("important", encoding="utf-8")
    assert run() == 2
    assert "not empty and is no run folder (it holds thesis.tex)" in capsys.readouterr().err
    assert Path("runs/run/thesis.tex").read_text(encoding="utf-8") == "important"


def test_a_folder_is_one_run_at_a_time(no_worker, capsys):
    folder = RunFolder.open(Path("runs/run"), {})
    try:
        assert run() == 2
        assert f"another process (pid {os.getpid()}) is running in runs/run" in capsys.readouterr().err
    finally:
        folder.close()
    RunFolder.open(Path("runs/run"), {}).close()


@pytest.mark.parametrize(
    ("key", "folder", "text"),
    [
        ("runner.output_dir", "file/below", "is a file"),
        ("runner.output_dir", "/proc/no", "cannot write to /proc, for the run's folder"),
        ("runner.output_dir", "/dev/null/x", "is a file"),
        ("env.eval.video_cfg.video_base_dir", "/proc/no", "cannot write to /proc, for the folder of videos /proc/no"),
    ],
)
def test_an_output_folder_that_cannot_be(no_worker, capsys, key, folder, text):
    Path("file").write_text("mine", encoding="utf-8")
    assert run(f"{key}={folder}", "env.eval.video_cfg.max_videos=1", "env.eval.video_cfg.save_video=true") == 2
    said = capsys.readouterr().err
    assert text in said
    assert f"fix: set {key} " in said
    assert Path("file").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["runner.max_epoch=3"], "Did you mean 'max_epochs'?"),
        (["env.train.num_taks=3"], "unknown key 'env.train.num_taks'. Did you mean 'num_tasks'?"),
        (["env.train.num_tasks=many"], "env.train.num_tasks = 'many'"),
        (["env.train.fault=boom"], "fault 'boom' is not one of"),
        (["actor.model.action_dim=3"], "set actor.model.action_dim=7"),
        (["actor.model.bins=x"], "actor.model.bins = 'x'"),
        (["env.eval._target_=embodied.testing.Nothing"], "env.eval._target_: cannot import"),
        (["env.eval.size=8"], "different observations"),
        (["env.eval.action_dim=3"], "env.train and env.eval"),
        (["algorithm.group_size=3"], "group_size 3 does not divide 8 episodes"),
        (["runner.ckpt_path=nowhere"], "no checkpoint at nowhere"),
        (["runner.resume_dir=nowhere"], "no checkpoint at nowhere"),
        (["runner.device=cuda:99"], "cuda:99"),
        (["runner.seed"], "not of the form KEY=VALUE"),
        (["--nope"], "unknown option '--nope'"),
        (["env.num_workers=1", "rollout.channel.queue_size=1"], "rollout.channel.queue_size 1"),
        (["env.train.num_init_states=0"], "num_init_states"),
        (["env.train.num_tasks=0"], "task"),
        (["actor.model.freeze_pattern=hed"], "'hed' matches none of the policy's 5 parameters. Did you mean 'head'?"),
        (["actor.model.freeze_pattern='('"], "is no regular expression"),
        (["reward.overlong_penalty.enable=true", "reward.overlong_penalty.buffer_length=11"], "11 is more than the 10"),
    ],
)
def test_a_wrong_command_exits_2_before_any_worker(no_worker, capsys, overrides, text):
    assert run(*overrides) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert text in error
    assert "fix: " in error
    assert "Traceback" not in error


def test_a_worker_that_fails_ends_the_run_with_its_traceback(capsys):
    assert run("env.train.fault=exception") == 2
    error = capsys.readouterr().err
    assert "the fake env was told to fail in step" in error
    assert "fix: " in error


@pytest.mark.parametrize(("fault", "start_method"), [("exception", "spawn"), ("kill", "spawn"), ("kill", "forkserver")])
def test_a_worker_that_fails_once_changes_no_number(capsys, fault, start_method):
    assert run("rollout.trace=true", name="calm") == 0
    options = ("env.train._target_=broken_envs.FailsOnce", "env.train.marker=failed", f"env.train.fault={fault}", TWO)
    before = children()
    assert run(*options, f"env.start_method={start_method}", name="wild") == 0
    assert children() == before
    assert Path("runs/wild/logs/fork-server.log").exists() == (start_method == "forkserver")
    calm, wild = lasting(rows("calm")), lasting(rows("wild"))
    assert [row.pop("rollout/worker_restarts") for row in calm] == [0, 0]
    assert sum(row.pop("rollout/worker_restarts") for row in wild) == 1
    assert calm == wild
    assert checkpoint_bytes(2, "calm") == checkpoint_bytes(2, "wild")
    out = capsys.readouterr().out
    assert out.count("a new worker takes its place (1 of env.max_worker_restarts 3 in a row)") == 1
    assert "worker restarts 1" in out
    assert "idle slots" in out
    traces = [json.loads(path.read_text(encoding="utf-8"))["traceEvents"] for path in Path("runs/calm/trace").iterdir()]
    assert len(traces) == 2
    assert all(len(trace) > 50 for trace in traces)


def test_an_update_that_is_never_finite_ends_the_run(capsys):
    assert run("actor.model._target_=broken_policies.NotFinite", "runner.max_epochs=20") == 2
    assert "not finite for 3 updates in a row; last finite: none yet" in capsys.readouterr().err
    assert [row["train/bad_updates"] for row in rows()] == [1, 1]


def test_what_the_configuration_prints_as_different():
    old, new = {"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1, "c": 3}, "e": None}
    assert list(differences(old, new)) == [
        ("a.c", 2, 3), ("d", [1], "(not set)"), ("e", "(not set)", None),
    ]  # fmt: skip


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


@pytest.mark.parametrize("whole_group", [False, True])
def test_sigterm_leaves_a_checkpoint_from_which_the_same_command_goes_on(whole_group):
    """``whole_group``: as service managers and schedulers do, which also reaches the workers."""
    slow = ("env.train.step_s=0.002", "runner.val_check_interval=1", "env.eval.step_s=0.002", TWO)
    command = ["-m", "embodied.train", *arguments(*slow, "runner.max_epochs=200")]
    metrics = Path("runs/run/metrics.jsonl")
    with warm.Program(command, new_session=True) as process:
        wait_for(lambda: lines(metrics) >= 2 or process.poll() is not None, 60)
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGTERM)
        out, error = process.communicate(timeout=30)
    assert process.returncode == 143, "so that train && eval stops"
    assert re.fullmatch(r"SIGTERM: stopping within 20 s, .*\n", error)
    done = int(re.search(r"(\d+) iterations? done", out).group(1))
    assert 2 <= done < 200
    assert checkpoints() == [f"{done:06d}"]
    assert [row["step"] for row in rows()] == list(range(1, done + 1))
    assert run(*slow, f"runner.max_epochs={done + 1}") == 0
    assert [row["step"] for row in rows()] == list(range(1, done + 2))
    assert rows()[-1]["train/weight_version"] == done + 1


def test_demonstrations_are_made_by_their_own_command(capsys):
    assert run("runner.task_type=demos") == 2
    assert "runner.task_type is demos, which this command does not do" in capsys.readouterr().err
    assert not Path("demos").exists()
    assert run("runner.task_type=sft", entry="demos") == 2
    assert "python -m embodied.tools.demos" in capsys.readouterr().err


def test_sigkill_leaves_the_last_checkpoint_whole():
    slow = ("env.train.step_s=0.002", "runner.save_interval=1")
    with warm.Program(["-m", "embodied.train", *arguments(*slow, "runner.max_epochs=200")]) as process:
        wait_for(lambda: Path("runs/run/checkpoints/000002/meta.json").exists(), 60)
        process.kill()
    last = int(checkpoints()[-1])
    assert run(*slow, f"runner.max_epochs={last + 1}") == 0
    assert [row["step"] for row in rows()] == list(range(1, last + 2))


def test_a_crash_right_after_a_save_leaves_the_iteration_logged(monkeypatch):
    save = Saves.save

    def save_and_crash(*args: Any) -> None:
        save(*args)
        raise RuntimeError("power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Saves, "save", save_and_crash)
        with pytest.raises(RuntimeError, match="power"):
            run("runner.save_interval=1")
    assert checkpoints() == ["000001"]
    assert run("runner.save_interval=1") == 0
    assert [row["step"] for row in rows()] == [1, 2]


def test_an_error_while_saving_names_the_checkpoint(monkeypatch, capsys):
    def full(*args: object) -> None:
        raise CheckpointError("cannot write checkpoint: No space left on device", "free space")

    monkeypatch.setattr("embodied.learn.checkpoint.checkpoint.Checkpoints.save", full)
    assert run("runner.max_epochs=1") == 2
    assert "No space left on device" in capsys.readouterr().err


def test_an_error_in_the_background_ends_the_run_with_its_message(monkeypatch, capsys):
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    assert run("runner.max_epochs=1") == 2
    assert "cannot write checkpoint runs/run/checkpoints/000001: " in capsys.readouterr().err
    assert [row["step"] for row in rows()] == [1], "logged before it was saved"


def test_a_run_that_fails_otherwise_still_says_what_went_wrong_in_the_background(monkeypatch, capsys):
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    def fail(*args: object) -> None:
        raise WorkerDiedError("worker 0 died", "look at its log")

    log = Reporter.log
    monkeypatch.setattr("torch.save", full)
    monkeypatch.setattr(Reporter, "log", lambda self, i, *rest: fail() if i == 2 else log(self, i, *rest))
    assert run("runner.save_interval=1") == 2
    said = capsys.readouterr()
    assert "worker 0 died" in said.err
    assert "cannot write checkpoint runs/run/checkpoints/000001: " in said.out


@pytest.mark.parametrize(("seconds", "kept"), [(1e-6, ["000001", "000002", "000003"]), (1e6, ["000003"])])
def test_checkpoints_by_the_clock(seconds, kept):
    assert run(f"runner.save_interval_s={seconds}", "runner.max_epochs=3") == 0
    assert checkpoints() == kept


def test_sigterm_waits_for_the_checkpoint_that_is_being_written(monkeypatch):
    """The disk is slow until the run waits for it, and the signal comes in the rollout before that, twice."""
    opened, seen, save, wait, collect = threading.Event(), [], torch.save, Checkpoints.wait, Collector.collect

    def slow(*args: Any, **kwargs: Any) -> None:
        assert opened.wait(60)
        save(*args, **kwargs)

    def wait_for_the_disk(self: Checkpoints) -> None:
        if self._pending is not None:
            seen.append(checkpoints())
            opened.set()
        wait(self)

    def interrupted(self: Collector, iteration: int, *rest: Any) -> Any:
        if iteration == 1:
            wait_for(lambda: Path("runs/run/checkpoints/.writing-000001").exists(), 60)
            os.kill(os.getpid(), signal.SIGTERM)
        return collect(self, iteration, *rest)

    def close(self: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        self.pool.close()
        self.slab.close()

    monkeypatch.setattr("torch.save", slow)
    monkeypatch.setattr(Checkpoints, "wait", wait_for_the_disk)
    monkeypatch.setattr(Collector, "collect", interrupted)
    monkeypatch.setattr("embodied.run.build.simulators.Workers.close", close)
    assert run("runner.save_interval=1", "runner.max_epochs=5") == 143
    assert seen == [[".writing-000001"]]
    assert checkpoints() == ["000001"]
    assert [row["step"] for row in rows()] == [1]


def test_what_a_killed_run_left_half_written_is_removed_by_the_next():
    left = Path("runs/run/checkpoints/.writing-000001")
    assert run("runner.max_epochs=1") == 0
    left.mkdir()
    assert run("runner.dry_run=true") == 0
    assert left.exists(), "a dry run writes nothing"
    assert run("runner.max_epochs=1") == 0
    assert checkpoints() == ["000001"]


def test_metrics_are_finite():
    assert run("runner.max_epochs=1") == 0
    assert all(value is not None and np.isfinite(value) for value in rows()[0].values())


PPO = ("algorithm=ppo", "env.train.reward_mode=dense")


@pytest.mark.parametrize("reward_type", ["chunk_level", "action_level"])
def test_ppo_is_the_same_run_whatever_the_workers_and_goes_on_where_it_stopped(reward_type):
    options = (*PPO, f"algorithm.reward_type={reward_type}", "actor.model.value_type=${algorithm.reward_type}")
    assert run(*options, TWO, name="a") == 0
    assert run(*options, "rollout.schedule=lockstep", "runner.max_epochs=1", name="b") == 0
    assert run(*options, "rollout.schedule=lockstep", name="b") == 0
    assert lasting(rows("a")) == lasting(rows("b"))
    assert checkpoint_bytes(2, "a") == checkpoint_bytes(2, "b")
    assert {"train/value_loss", "train/explained_variance"} <= set(rows("a")[0])
    assert rows("a")[0]["train/skipped_records"] == 0


def test_ppo_can_bootstrap_terminated_episodes():
    options = (*PPO, "env.train.success_distance=0.8", "runner.max_epochs=1")
    assert run(*options, name="a") == run(*options, "algorithm.bootstrap_type=always", name="b") == 0
    assert 0 < rows("a")[0]["rollout/success_rate"] == rows("b")[0]["rollout/success_rate"]
    assert rows("a")[0]["train/value_loss"] != rows("b")[0]["train/value_loss"]


def updates_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[EpisodeResult], list[np.ndarray]]]:
    """For each update of the runs that follow: its episodes, and the weight versions of each episode's records."""
    seen: list[tuple[list[EpisodeResult], list[np.ndarray]]] = []
    update = Trainer.update

    def watched(self: Trainer, arrays: Any, results: list[EpisodeResult], *rest: Any) -> Any:
        seen.append((list(results), [arrays["version"][list(result.rows)].copy() for result in results]))
        return update(self, arrays, results, *rest)

    monkeypatch.setattr(Trainer, "update", watched)
    return seen


@pytest.mark.parametrize("bootstrap", ["standard", "always"])
def test_ppo_observes_the_end_of_truncated_episodes_and_of_all_if_told_so(monkeypatch, bootstrap):
    updates = updates_of(monkeypatch)
    options = ("env.train.success_distance=0.8", "runner.max_epochs=1", f"algorithm.bootstrap_type={bootstrap}")
    assert run(*PPO, *options) == 0
    ((results, _),) = updates
    assert {(r.truncated, r.terminated) for r in results} == {(True, False), (False, True)}
    for result in results:
        assert (result.final_row >= 0) == (result.truncated or bootstrap == "always")


def test_records_carry_the_version_of_the_weights_that_acted(monkeypatch):
    updates = updates_of(monkeypatch)
    assert run("env.train.reward_mode=dense", "runner.max_epochs=3") == 0
    for iteration, (_, versions) in enumerate(updates):
        assert set(np.concatenate(versions)) == {iteration}
    assert [row["train/staleness_max"] for row in rows()] == [0, 0, 0]


def test_a_dry_run_counts_the_rows_of_final_observations(no_worker, capsys):
    assert run(*PPO, "runner.dry_run=true") == 0
    assert "32 records" in capsys.readouterr().out  # 8 episodes of 3 chunks and a final observation


def test_ppo_without_a_value_head_is_refused(no_worker, capsys):
    assert run(*PPO, "actor.model.value_head=false") == 2
    assert "the policy has no value head" in capsys.readouterr().err


def test_a_resumed_run_keeps_the_reference_of_its_beginning():
    options = ("algorithm.kl_beta=0.5", "algorithm.loss_type=gspo", "env.train.reward_mode=dense")
    assert run(*options, name="whole") == 0
    assert run(*options, "runner.max_epochs=1", name="parts") == run(*options, name="parts") == 0
    assert rows("whole")[1]["train/kl_reference"] > 0
    assert lasting(rows("parts")) == lasting(rows("whole"))
    assert checkpoint_bytes(2, "parts") == checkpoint_bytes(2, "whole")


def test_each_side_gives_the_policy_its_own_tasks(monkeypatch):
    """A task id of the evaluation indexes the evaluation's instructions, whatever was trained on, and back again."""
    from embodied.testing.policy import FakePolicy

    bound, acted = [()], []
    bind, act = FakePolicy.bind, FakePolicy.act
    monkeypatch.setattr(FakePolicy, "bind", lambda self, env: (bound.append(env.tasks), bind(self, env))[1])
    monkeypatch.setattr(FakePolicy, "act", lambda self, *given: (acted.append(len(bound[-1])), act(self, *given))[1])
    assert run("env.train.num_tasks=1", "env.eval.num_tasks=3", "runner.val_check_interval=1") == 0
    changes = [number for i, number in enumerate(acted) if i == 0 or acted[i - 1] != number]
    assert changes == [1, 3, 1, 3]


def test_what_a_pattern_freezes_is_not_trained_whatever_the_policy():
    patterns = "actor.model.freeze_pattern=['^task','body[.]0[.]bias']"
    assert run(patterns, "env.train.reward_mode=dense", "runner.max_epochs=1") == 0
    meta = json.loads(Path("runs/run/checkpoints/000001/meta.json").read_text(encoding="utf-8"))
    assert set(meta["parameters"]) == {"body.0.weight", "head.weight", "head.bias"}
    assert rows()[0]["train/optimizer_steps"] == 1


def test_the_average_of_the_weights_is_what_is_evaluated():
    """With a decay of nearly 1 the average stays where training began, however far the trained weights go."""
    options = ("actor.optim.lr=0.1", "env.train.reward_mode=dense", "runner.val_check_interval=1")
    options = (*options, "env.eval.reward_mode=dense", "env.eval.success_distance=0.0", "runner.max_epochs=1")
    options = (*options, "experiment=laptop")  # by itself an evaluation takes the sizes of another
    assert run(*options, "actor.optim.ema_decay=0.9999999", name="average") == 0
    assert run(*options, name="present") == 0
    assert run(*options, "runner.ckpt_path=null", name="began", entry="eval") == 0
    returns = {
        name: [
            e["return"]
            for e in json.loads(Path(f"runs/{name}/eval/{file}.json").read_text(encoding="utf-8"))["episodes"]
        ]
        for name, file in (("average", "000001"), ("present", "000001"), ("began", "000000"))
    }
    assert returns["average"] == returns["began"] != returns["present"]
    for name in ("average", "present"):
        assert (
            run(*options, f"runner.ckpt_path=runs/{name}/checkpoints/000001", name=f"{name}-again", entry="eval") == 0
        )
        report = json.loads(Path(f"runs/{name}-again/eval/000000.json").read_text(encoding="utf-8"))
        assert [e["return"] for e in report["episodes"]] == returns[name], "a checkpoint is evaluated as its run was"


def test_rates_of_training_and_shares_of_time():
    options = ("runner.peak_tflops=0.001", "runner.val_check_interval=1", "runner.save_interval=1")
    assert run("env.train.reward_mode=dense", *options) == 0
    row = rows()[1]
    trained = row["train/samples_per_s"] * row["time/train_s"]
    assert trained == pytest.approx(row["rollout/records"] - row["train/skipped_records"])
    assert row["train/records"] == pytest.approx(trained)
    assert row["train/tokens_per_s"] == pytest.approx(28 * row["train/samples_per_s"])
    assert row["time/train_mfu"] == pytest.approx(row["train/tflops_per_s"] / 0.001)
    shares = [row[f"time/{name}_share"] for name in ("rollout", "train", "eval", "save")]
    assert 0 < sum(shares) <= 1
    assert row["time/train_share"] == pytest.approx(row["time/train_s"] / row["time/iteration_s"], rel=0.2)
    assert {"train/ratio_p01", "train/ratio_p99", "train/clip_share_low", "train/staleness_mean"} <= set(row)
    assert "memory/device_peak_gb" not in row, "a CPU's memory is memory/pss_gb"
    assert not rows()[0].keys() - {*row, "train/logprob_gap"}


def test_without_a_peak_there_is_no_utilisation(capsys):
    assert run("env.train.reward_mode=dense", "runner.max_epochs=1") == 0
    assert "time/train_mfu" not in rows()[0]
    assert rows()[0]["train/tflops_per_s"] > 0
    assert "no MFU (runner.peak_tflops is null)" in capsys.readouterr().out


def test_operations_are_not_counted_where_nobody_asks_for_them(capsys):
    for name, count in (("counted", "true"), ("plain", "false")):
        assert (
            run("env.train.reward_mode=dense", f"actor.calculate_flops={count}", "runner.max_epochs=1", name=name) == 0
        )
    counted, plain = rows("counted")[0], rows("plain")[0]
    assert counted.keys() - plain.keys() == {"train/tflops_per_s"}
    assert counted["train/loss"] == plain["train/loss"], "passes are cut by them all the same"
    assert run("actor.calculate_flops=false", "runner.peak_tflops=1", name="x") == 2
    assert "set actor.calculate_flops=true, or leave runner.peak_tflops out" in capsys.readouterr().err


FULL = ("actor.model._target_=broken_policies.OutOfMemory", "env.train.reward_mode=dense")


@pytest.mark.parametrize(
    ("phase", "texts"),
    [
        ("rollout", ["cpu is out of memory while the policy acted", "set rollout.policy_batch=1 (now 2)"]),
        (
            "update",
            [
                "cpu is out of memory in the forward and backward passes",
                "set actor.micro_batch_size=16 (now 32)",
                "set actor.model.gradient_checkpointing=true (now false)",
                "set actor.model.precision=bf16 (now fp32)",
                "actor.fsdp_config.strategy=fsdp2",
            ],
        ),
    ],
)
def test_a_full_device_is_explained_with_the_keys_that_help(capsys, phase, texts):
    options = (*FULL, f"actor.model.phase={phase}", "actor.model.precision=fp32", "rollout.policy_batch=2")
    options += ("actor.micro_batch_size=32", "actor.model.gradient_checkpointing=false")
    assert run(*options) == 2
    error = capsys.readouterr().err
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in error
    for text in texts:
        assert text in error
    assert "Traceback" not in error


def test_what_is_at_its_smallest_is_not_proposed(capsys):
    options = (*FULL, "actor.model.phase=update", "actor.model.precision=bf16", "actor.micro_batch_size=1")
    assert run(*options, "actor.model.gradient_checkpointing=true") == 2
    error = capsys.readouterr().err
    assert "micro_batch_size" not in error
    assert "gradient_checkpointing" not in error
    assert "precision" not in error


def test_workers_that_rest_during_updates_change_no_number(monkeypatch):
    own, seen = children(), []
    update = Trainer.update

    def watched(*given, **named):
        seen.append(len(children() - own))
        return update(*given)

    monkeypatch.setattr(Trainer, "update", watched)
    common = (TWO, "runner.val_check_interval=1", "runner.logger.report=false", "runner.max_epochs=3")
    assert run(*common) == 0
    assert run(*common, "env.enable_offload=true", name="rests") == 0
    assert seen == [2, 2, 2, 0, 0, 0]
    assert lasting(rows("rests")) == lasting(rows())
    evaluated = [
        json.loads(Path(f"runs/{name}/eval/000003.json").read_text(encoding="utf-8")) for name in ("run", "rests")
    ]
    assert evaluated[0]["protocol"] == evaluated[1]["protocol"], "workers that rest are asked what simulates"
    before, after = tensors(Path("runs/run")), tensors(Path("runs/rests"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
