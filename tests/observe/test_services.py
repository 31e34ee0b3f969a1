"""Services in processes of their own: what they are told, and that none stops a run or changes its numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from beside_runs import Said, until
from logged import VARYING

from embodied import train
from embodied.errors import ConfigError
from embodied.observe.trackers import services
from embodied.observe.trackers.service_clients import flat, mlflow_name
from embodied.observe.trackers.services import About
from embodied.observe.trackers.trackers import Trackers, make_trackers
from embodied.parallel.group import Group
from embodied.run.folder import reporter
from embodied.runtime.signals import StopSignal
from embodied.schema import LoggerConfig, RunnerConfig

HERE = Path(__file__).parent
LOGGED = {"train/loss": 2.0, "eval/success_rate": 0.5}
RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "runner.save_interval=-1",
    "runner.val_check_interval=2", "algorithm.rollout_epoch=4", "env.num_workers=1", "env.train.max_episode_steps=10",
    "env.eval.max_episode_steps=6", "env.eval.episodes_per_task=2", "--config-dir", str(HERE.parent / "config"),
)  # fmt: skip
UNSEEN = "env.eval.video_cfg.save_video=false"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Lets the recording package be found as wandb; a call gives what it was told."""
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(HERE / "recording_wandb.py", packages / "wandb.py")
    monkeypatch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{HERE.parents[1]}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record.jsonl"))
    monkeypatch.setattr(services, "version", lambda name: "1")
    monkeypatch.chdir(tmp_path)
    return lambda: [json.loads(line) for line in (tmp_path / "record.jsonl").read_text(encoding="utf-8").splitlines()]


def ended(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def patient(waited_s: float) -> bool:
    return waited_s < 20.0


def test_a_service_gets_the_run_its_metrics_tables_and_videos_and_no_secret(tmp_path, record):
    (tmp_path / "a.mp4").write_bytes(b"12345")
    config = {"runner": {"seed": 3}, "judge": {"api_key": "sk-1234", "url": "https://me:pw@host/x"}}
    lines: list[str] = []
    made = make_trackers(["wandb"], tmp_path / "run", 0, None, About("a", "p", "g", config), lines.append)
    made.table(0, "eval/success", ["task", "rate"], [["all", 0.5]])
    made.video(0, "eval/video/a", Path("a.mp4"))
    made.log(0, LOGGED)
    made.finish(patient)
    begun, *rest = record()
    assert rest == [
        {"step": 0, "eval/success": [["task", "rate"], [["all", 0.5]]]}, {"step": 0, "eval/video/a": 5},
        {"step": 0, **LOGGED}, {"finished": True},
    ]  # fmt: skip
    assert (begun["name"], begun["project"], begun["group"]) == ("a", "p", "g")
    assert begun["config"] == {
        "runner": {"seed": 3}, "judge": {"api_key": "(hidden)", "url": "https://(hidden)@host/x"},
    }  # fmt: skip
    assert begun["id"] == made.run_ids["wandb"]
    assert not any(
        "sk-1234" in file.read_text(encoding="utf-8") for file in (tmp_path / "run").rglob("*") if file.is_file()
    )
    assert lines == ["tracker wandb: https://example.invalid/run"]
    assert ended(begun["pid"])


def test_a_resumed_run_goes_on_in_the_same_one_and_sends_no_step_twice(tmp_path, record):
    for last_step, given, steps in ((0, {}, (1, 2, 3)), (1, {"wandb": "another"}, (2, 3, 4)), (None, {}, (0, 1))):
        made = make_trackers(["wandb"], tmp_path / "run", last_step, given)
        for step in steps:
            made.log(step, LOGGED)
        made.finish(patient)
    lines = record()
    first, second, third = [line["id"] for line in lines if "id" in line]
    assert first == second != third
    assert [line["step"] for line in lines if "step" in line] == [1, 2, 3, 4, 0, 1]


def test_the_id_of_a_checkpoint_serves_where_the_folder_has_none(tmp_path, record):
    make_trackers(["wandb"], tmp_path / "run", 4, {"wandb": "id 7"}).finish(patient)
    assert record()[0]["id"] == "id 7"


@pytest.mark.parametrize("place", ["start", "log", "finish"])
@pytest.mark.parametrize(
    ("manner", "says"), [("raise", "ConnectionError: the service is gone at "), ("exit", "ended with status 7")]
)
def test_one_that_fails_is_said_once_and_off(tmp_path, record, monkeypatch, place, manner, says):
    monkeypatch.setenv("FAIL", f"{manner} {place}")
    lines: list[str] = []
    made = make_trackers(["jsonl", "wandb"], tmp_path / "run", 0, say=lines.append)
    for step in range(3):
        made.log(step, LOGGED)
    made.finish(patient)
    made.log(3, LOGGED)
    made.close()
    (failed,) = [line for line in lines if "failed and is off" in line]
    assert says in failed
    assert "tracker-wandb.log" in failed
    assert len((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.parametrize("place", ["start", "log", "finish"])
def test_one_that_hangs_is_waited_for_as_long_as_may_be_and_killed(tmp_path, record, monkeypatch, place):
    monkeypatch.setenv("FAIL", f"hang {place}")
    lines: list[str] = []
    made = make_trackers(["wandb"], tmp_path / "run", 0, say=lines.append)
    for step in range(3):
        made.log(step, LOGGED)
    until(lambda: (tmp_path / "record.jsonl").exists())
    made.finish(lambda waited_s: waited_s < 0.3)
    (failed,) = [line for line in lines if "failed" in line]
    waited = re.search(r"did not finish in ([0-9.]+) s", failed)
    assert waited
    assert 0.3 <= float(waited[1]) < 30
    assert ended(record()[0]["pid"])


def test_one_that_takes_nothing_does_not_fill_the_memory(tmp_path, record, monkeypatch):
    monkeypatch.setenv("FAIL", "hang start")
    monkeypatch.setattr(services, "MOST_WAITING", 5)
    lines: list[str] = []
    made = make_trackers(["wandb"], tmp_path / "run", 0, say=lines.append)
    began = time.monotonic()
    for step in range(2000):
        made.log(step, LOGGED)
    assert time.monotonic() - began < 60.0, "the run waited for it"
    made.close()
    assert [line for line in lines if "it has not taken 5 messages" in line] == lines[-1:]


def outcome(name: str) -> tuple[list[dict[str, float]], bytes]:
    folder = Path("runs", name)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lasting = [{key: value for key, value in row.items() if not VARYING.match(key)} for row in rows]
    return lasting, (folder / "checkpoints" / "000002" / "__0_0.distcp").read_bytes()


def test_a_run_gives_the_same_numbers_whatever_its_tracker_does(record, monkeypatch):
    assert train.main([*RUN, UNSEEN, "runner.experiment_name=without"]) == 0
    assert train.main([*RUN, "tracker=wandb", "runner.experiment_name=with"]) == 0
    lines = record()
    monkeypatch.setenv("FAIL", "raise log")
    assert train.main([*RUN, UNSEEN, "tracker=wandb", "runner.experiment_name=failing"]) == 0
    assert outcome("with") == outcome("without")
    assert outcome("failing") == outcome("without")
    (table,) = [line["eval/success"] for line in lines if "eval/success" in line]
    assert [row[0] for row in table[1]] == ["0", "1", "all"]
    rate = outcome("with")[0][-1]
    of_all = dict(zip(table[0], table[1][-1], strict=True))
    held_to = json.loads(Path("runs", "with", "eval", "000002.json").read_text(encoding="utf-8"))["protocol"]
    assert (of_all["protocol"], of_all["protocol_hash"]) == ("", held_to["hash"])
    assert (of_all["success_rate"], of_all["low"]) == (rate["eval/success_rate"], rate["eval/success_low"])
    assert sum(size for line in lines for name, size in line.items() if name.startswith("eval/video/")) == sum(
        file.stat().st_size for file in Path("videos", "with").rglob("*.mp4")
    )
    assert lines[0]["config"]["runner"]["seed"] == 1234


def test_both_of_two_evaluations_are_sent(record):
    both = ("algorithm.val_sampling_params.do_sample=both", "algorithm.val_sampling_params.temperature=2")
    own = ("tracker=wandb", "env.eval.reward_mode=dense", "runner.experiment_name=run", *both)
    assert train.main([*(key for key in RUN if not key.startswith("runner.max_epochs")), *own], "eval") == 0
    lines = record()
    (sent,) = [line for line in lines if "eval/success_rate" in line]
    assert {name.split("/")[0] for name in sent} == {"step", "eval", "eval_sampled"}
    for side, file in (("eval", "000000"), ("eval_sampled", "000000-sampled")):
        found = json.loads(Path("runs/run/eval", f"{file}.json").read_text(encoding="utf-8"))
        of_all = found["tasks"][-1]
        assert sent[f"{side}/success_rate"] == of_all["success_rate"]
        assert sent[f"{side}/episode_length_mean"] == of_all["steps_mean"]
        (table,) = [line[f"{side}/success"] for line in lines if f"{side}/success" in line]
        assert table[1][-1][-1] == found["protocol"]["hash"]
        videos = [name for line in lines for name in line if name.startswith(f"{side}/video/")]
        assert len(videos) == len(set(videos)) > 0
    assert sent["eval/return_mean"] != sent["eval_sampled/return_mean"], "else one could stand for the other"


def test_a_stopped_run_does_not_wait_for_a_service_that_hangs(record, monkeypatch, capsys):
    monkeypatch.setenv("FAIL", "hang finish")
    monkeypatch.setattr(reporter, "INTERRUPTED_S", 0.3)
    log, sent = Trackers.log, []

    def stopping(self: Trackers, step: int, metrics: dict[str, float]) -> None:
        log(self, step, metrics)
        if step == 1:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trackers, "log", stopping)
    assert train.main([*RUN, UNSEEN, "tracker=wandb", "runner.experiment_name=run", "runner.max_epochs=50"]) == 130
    assert time.monotonic() - sent[0] < 8.0  # a stop signal grants 10 s for work
    assert ended(record()[0]["pid"])
    assert "waiting until wandb has taken what was logged, at most 0.3 s; Ctrl-C again ends" in capsys.readouterr().out


def reporting(folder: Path) -> tuple[reporter.Reporter, Said]:
    """The reporter of a run with one service, which has been told something."""
    logger, said = LoggerConfig(log_path=str(folder / "run"), report=False), Said()
    made = reporter.Reporter(said, Group(), RunnerConfig(logger=logger))
    made.open_trackers(0, {}, {}, ["wandb"])
    made.track(1, LOGGED)
    return made, said


def stopped_by(number: int) -> StopSignal:
    stop = StopSignal()
    stop.number, stop._came_at = number, time.monotonic()
    return stop


@pytest.mark.parametrize(("number", "finished"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_after_ctrl_c_a_slow_service_has_time_and_after_sigterm_little(tmp_path, record, monkeypatch, number, finished):
    """It begins to finish when it has taken what was logged, and then needs a second."""
    monkeypatch.setenv("FAIL", "slow finish")
    monkeypatch.setattr(reporter, "STOPPED_S", 0.2)
    made, said = reporting(tmp_path)
    with made:
        made.finish(stopped_by(number))
    kept = record() if (tmp_path / "record.jsonl").exists() else []
    assert ({"finished": True} in kept) is finished
    assert [line for line in said.lines if "failed" in line] == ([] if finished else said.lines[-1:])
    assert any("waiting until wandb" in line for line in said.lines) is finished


@pytest.mark.parametrize("place", ["while it finishes", "before"])
def test_a_second_ctrl_c_ends_a_service_at_once(tmp_path, record, monkeypatch, request, place):
    monkeypatch.setenv("FAIL", "hang log")
    made, said = reporting(tmp_path)
    until(lambda: (tmp_path / "record.jsonl").exists())
    began, before = time.monotonic(), signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))  # a shell's jobs in the background ignore it
    pressed = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt), made:
        made.finish(stopped_by(signal.SIGINT)) if place == "while it finishes" else time.sleep(600.0)
    assert time.monotonic() - began < 100.0, "else it was waited for, as long as for one that may still finish"
    assert ended(record()[0]["pid"])
    assert not any("failed" in line for line in said.lines)


def test_a_missing_package_is_refused_with_its_extra_before_anything_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def absent(name: str) -> str:
        raise services.PackageNotFoundError(name)

    monkeypatch.setattr(services, "version", absent)
    assert train.main([*RUN, "tracker=swanlab"]) == 2
    assert "pip install 'embodied-rl[swanlab]'" in capsys.readouterr().err
    assert not Path("runs").exists()
    services.check_installed(["jsonl", "tensorboard", "some.Tracker"])
    with pytest.raises(ConfigError, match="Python package trackio is not installed"):
        services.check_installed(["jsonl", "trackio"])


class OwnWithTables:
    """A user's tracker."""

    seen: ClassVar[list[Any]] = []

    def __init__(self, folder: Path, resume_step: int, run_id: str | None) -> None:
        if folder.name == "refused":
            raise OSError("no route")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            raise OSError("gone")
        self.seen.append(step)

    def table(self, step: int, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        self.seen.append((step, name))

    def close(self) -> None:
        pass


def test_a_user_s_tracker_may_take_tables_and_may_fail(tmp_path):
    lines: list[str] = []
    name = f"{__name__}.OwnWithTables"
    made = make_trackers([name], tmp_path, 0, say=lines.append)
    made.video(1, "eval/video/a", Path("a.mp4"))  # which it does not take
    made.table(1, "eval/success", [], [])
    for step in (1, 2, 3):
        made.log(step, LOGGED)
    assert OwnWithTables.seen == [(1, "eval/success"), 1]
    assert ["gone" in line for line in lines] == [True]
    make_trackers([name], tmp_path / "refused", 0, say=lines.append).log(1, LOGGED)
    assert "no route" in lines[1]


def test_names_and_keys_as_mlflow_takes_them():
    assert mlflow_name("eval/avg@8") == "eval/avg_at_8"
    assert list(flat({"a": {"b": 1, "c": {}}, "d": [1, "x"]})) == [("a.b", 1), ("d", '[1, "x"]')]
