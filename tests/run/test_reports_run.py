"""Runs that have their report written: at evaluations, at the end, and when that cannot be done."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from beside_runs import Said, until
from logged import rows_of

from embodied import train
from embodied.lib import child
from embodied.run.folder import launches
from embodied.run.folder.beside import reports
from embodied.run.folder.beside.reports import Reports
from embodied.runtime.signals import Stopped, StopSignal

RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.logger.report=true", "runner.device=cpu", "runner.max_epochs=2",
    "runner.save_interval=-1", "runner.val_check_interval=1", "algorithm.rollout_epoch=4", "env.num_workers=1",
    "env.train.max_episode_steps=10", "env.eval.max_episode_steps=6", "env.eval.episodes_per_task=2",
    "runner.experiment_name=run", "--config-dir", str(Path(__file__).parents[1] / "config"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def wait_for(lines: int) -> None:
    until(lambda: Path("pids").exists() and len(Path("pids").read_text(encoding="utf-8").split()) >= lines)


def is_running(pid: str) -> bool:
    """A process that has ended may wait for its parent."""
    try:
        return Path("/proc", pid, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def standing_in(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a script write the report; its first argument is the folder."""
    program = Path("program")
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(reports, "PROGRAM", (str(program.absolute()),))
    monkeypatch.setattr(reports, "find_spec", lambda name: object())


def test_a_run_leaves_its_report_and_how_it_was_started(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vl_convert")
    assert train.main([*RUN]) == 0
    page = Path("runs/run/report.html").read_text(encoding="utf-8")
    assert "python -m embodied.train env=fake" in page
    assert "What is missing</h2>" not in page
    assert '<p class="state' not in page, "its last report says that it has ended, although it holds its folder"
    assert len(re.findall(r"<video ", page)) == 8 + 1  # all side by side
    assert "<h3>One rollout</h3>" in page
    assert "000003-train.json" in page, "the second iteration, which builds no simulators"
    assert [path.name[7:] for path in sorted(Path("runs/run/trace").iterdir())] == ["train.json", "eval.json"] * 2
    assert re.search(r"report +runs/run/report.html", capfd.readouterr().out)
    started = json.loads(Path("runs/run/starts.jsonl").read_text(encoding="utf-8"))
    assert started["command"].startswith("python -m embodied.train env=fake model=fake")
    assert started["processes"] == 1
    assert {"embodied", "python", "torch"} <= set(started["versions"])
    launches.record(Path("runs/run"), "the same again", 2)
    assert len(Path("runs/run/starts.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    launches.record(Path("not there"), "the same again", 2)
    launches.record(Path("runs/run"), "python run.name=\udcff api_key=abc", 2)  # an argument that is no UTF-8
    last = json.loads(Path("runs/run/starts.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["command"] == "python 'run.name=\udcff' 'api_key=(hidden)'"


def test_a_run_without_traces_has_no_timeline_and_the_same_numbers() -> None:
    pytest.importorskip("vl_convert")
    unseen = "env.eval.video_cfg.save_video=false"
    assert train.main([*RUN, unseen, "runner.experiment_name=usual", "runner.logger.report=false"]) == 0
    assert Path("runs/usual/trace").is_dir()
    assert train.main([*RUN, unseen, "rollout.trace=false"]) == 0
    assert not Path("runs/run/trace").exists()
    page = Path("runs/run/report.html").read_text(encoding="utf-8")
    assert "One rollout" not in page
    assert "There is no timeline of a rollout: rollout.trace=first writes one." in page
    assert rows_of("runs/usual") == rows_of("runs/run")


def test_evaluations_and_the_end_refresh_it_and_its_failure_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    standing_in('echo "$(wc -l < $1/metrics.jsonl) $(ls $1/eval | wc -l)" >> written; echo "no space" >&2; exit 2',
                monkeypatch)  # fmt: skip
    assert train.main([*RUN]) == 0
    assert "the report was not written: no space" in capfd.readouterr().out
    written = Path("written").read_text(encoding="utf-8").splitlines()
    assert written[-1] == "2 2"
    assert len(written) >= 2
    monkeypatch.setattr(reports, "PROGRAM", ("./nothing",))
    console = Said()
    Reports(Path("runs/run"), True, console).finish(StopSignal())
    assert console.lines[0].startswith("the report was not written: [Errno 2]")


def test_a_report_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "sleep 60 & echo $! >> pids; echo $$ >> pids; touch $1/.report.html.$$-0a1b2c3d.part; wait"
    standing_in(script, monkeypatch)
    monkeypatch.setattr(reports, "END_S", 0.5)
    Path("runs/run").mkdir(parents=True)
    console = Said()
    one = Reports(Path("runs/run"), True, console)
    one.refresh()
    one.refresh()  # the first is still being written
    wait_for(2)
    one.finish(StopSignal())
    (line,) = console.lines
    assert re.match(r"the report is not ready after 0\.5\d* s and is left as it was: ", line)
    assert line.endswith(": python -m embodied.tools.report runs/run writes it")
    pids = Path("pids").read_text(encoding="utf-8").split()
    assert len(pids) == 4  # the one that was being written had not seen the last numbers
    until(lambda: not any(is_running(pid) for pid in pids))  # a kill is obeyed a moment later
    assert list(Path("runs/run").iterdir()) == []


def test_a_stop_signal_ends_the_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in("echo $$ >> pids; echo >> pids; exec sleep 60", monkeypatch)
    stop = StopSignal(timeout_s=1.0)
    sender = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    console, began = Said(), time.monotonic()
    with stop, stop.hold():
        sender.start()
        with suppress(Stopped):
            Reports(Path("runs/run"), True, console).finish(stop)
        assert stop.wanted
        assert time.monotonic() - began < 20.0  # of the 120 that it may take without a signal
        stop.number = None
    assert "is left as it was" in console.lines[0]
    (pid,) = Path("pids").read_text(encoding="utf-8").split()
    until(lambda: not is_running(pid))


def test_a_machine_without_temporary_files_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in("touch written", monkeypatch)

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(child.tempfile, "TemporaryFile", full)
    console = Said()
    Reports(Path("runs/run"), True, console).finish(StopSignal())
    assert console.lines == ["the report was not written: [Errno 28] No space left on device"]


def test_without_the_extra_the_end_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "find_spec", lambda name: None)
    console = Said()
    one = Reports(Path("runs/run"), True, console)
    one.refresh()
    one.finish(StopSignal())
    assert console.lines == [
        "no report.html: pip install 'embodied-rl[report]', then python -m embodied.tools.report runs/run"
    ]
    silent = Said()
    Reports(Path("runs/run"), False, silent).finish(StopSignal())
    assert silent.lines == []


def test_after_a_stop_signal_nothing_is_begun_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in("touch written", monkeypatch)
    stop = StopSignal(timeout_s=1.0)
    stop.number = 15
    Reports(Path("runs/run"), True, Said()).finish(stop)
    assert not Path("written").exists()
