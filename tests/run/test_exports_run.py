"""Checkpoints that are exported beside the run: in which order, what stays, and what a failure or a stop does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from beside_runs import WAITS, Exportable, Said, hurried, until

from embodied import train
from embodied.errors import ConfigError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.run.folder.beside import beside, exports
from embodied.run.folder.beside.beside import NewestNext
from embodied.run.folder.beside.exports import Exporter
from embodied.runtime.signals import Stopped, StopSignal
from embodied.schema import CheckpointConfig
from embodied.testing import FakePolicy

RUN = Path("runs/run")
WANTED = CheckpointConfig(export_safetensors=True)


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def exporter(monkeypatch: pytest.MonkeyPatch, script: str, console: Said) -> Exporter:
    """One whose exports are written by lines of shell; $1 is the checkpoint, $5 the folder."""
    hurried(monkeypatch)
    monkeypatch.setattr(exports, "PROGRAM", ("sh", "-c", script, "sh"))
    return Exporter(RUN, WANTED, Exportable(), console)


def checkpoint(number: int) -> Path:
    path = RUN / "checkpoints" / f"{number:06d}"
    path.mkdir(parents=True, exist_ok=True)
    return path


WRITES = WAITS + 'mkdir -p "$5"; echo "$1" >> "$5/file"'


def test_one_is_exported_at_a_time_and_the_newest_is_next(monkeypatch):
    said = Said()
    one = exporter(monkeypatch, WRITES, said)
    paths = [checkpoint(number) for number in (1, 2, 3)]
    assert [[*one.completed(path)] for path in paths] == [paths[:1]] * 3, "the first is still being read"
    (line,) = said.lines
    assert line.startswith(f"{paths[1]} is not exported: the one before was not ready")
    Path("go").touch()
    one.finish(StopSignal())
    assert sorted(path.name for path in (RUN / "exports").iterdir()) == ["000001", "000003"]
    assert (RUN / "exports/000003/file").read_text(encoding="utf-8").splitlines() == [str(paths[2])]
    assert said.lines == [line]


def test_an_exported_folder_goes_with_its_checkpoint_and_is_replaced_with_it(monkeypatch):
    Path("go").touch()
    for number in (1, 2, 2):
        one = exporter(monkeypatch, WRITES, Said())
        one.completed(checkpoint(number))
        one.finish(StopSignal())
    assert (RUN / "exports/000002/file").read_text(encoding="utf-8").count("\n") == 1, "of the checkpoint as it is now"
    checkpoint(1).rmdir()
    one = exporter(monkeypatch, WRITES, Said())
    one.completed(checkpoint(3))
    one.finish(StopSignal())
    assert sorted(path.name for path in (RUN / "exports").iterdir()) == ["000002", "000003"]


def test_what_a_run_goes_on_from_is_exported_unless_it_was(monkeypatch):
    Path("go").touch()
    elsewhere = Path("runs/other/checkpoints/000009")
    for path in (checkpoint(1), checkpoint(1), elsewhere):
        one = exporter(monkeypatch, WRITES, Said())
        one.missing(path)
        one.finish(StopSignal())
    assert [path.name for path in (RUN / "exports").iterdir()] == ["000001"]
    assert (RUN / "exports/000001/file").read_text(encoding="utf-8").count("\n") == 1


def test_a_failure_is_said_and_stops_nothing(monkeypatch):
    said = Said()
    one = exporter(
        monkeypatch, 'printf "error: no space\n  fix: make room\n  kind: ConfigError (explain)\n" >&2; exit 2', said
    )
    one.completed(checkpoint(1))
    one.finish(StopSignal())
    monkeypatch.setattr(exports, "PROGRAM", ("./nothing",))
    two = Exporter(RUN, WANTED, Exportable(), said)
    assert [*two.completed(checkpoint(2))] == []
    assert said.lines[0] == "runs/run/checkpoints/000001 was not exported: no space fix: make room"
    assert said.lines[1].startswith("runs/run/checkpoints/000002 was not exported: [Errno 2]")


def test_an_export_that_hangs_does_not_hold_up_the_end_of_a_run(monkeypatch):
    said = Said()
    one = exporter(monkeypatch, "exec sleep 60", said)
    monkeypatch.setattr(exports, "LONGEST_S", 0.3)
    one.completed(checkpoint(1))
    one.finish(StopSignal())
    assert said.lines == [
        "the export is not ready. To write it: python -m embodied.tools.export runs/run/checkpoints/000001 --out FOLDER"
    ]


def test_programs_come_last_until_the_run_waits_for_them():
    queue, own = NewestNext(lambda folder: ["sleep", "60"], lambda folder, failure: None), os.getpriority(0, 0)
    may_raise = (
        int(Path("/proc/self/status").read_text(encoding="utf-8").partition("CapEff:")[2].split()[0], 16) >> 23 & 1
    )

    def priority() -> int:
        assert queue._process is not None
        return os.getpriority(os.PRIO_PROCESS, queue._process.pid)

    queue.put(Path("first"))
    assert priority() == beside.LOWEST
    queue.hurry()
    assert priority() == (own if may_raise else beside.LOWEST)
    queue.kill()
    queue.put(Path("second"))
    assert priority() == own
    queue.kill()


def test_a_stop_signal_ends_an_export_and_says_how_to_write_it(monkeypatch):
    said = Said()
    one = exporter(monkeypatch, 'mkdir -p "$(dirname $5)/.$(basename $5).part"; echo $$ > pid; exec sleep 60', said)
    one.completed(checkpoint(1))
    until(lambda: Path("pid").exists() and bool(Path("pid").read_text(encoding="utf-8")))
    stop, began = StopSignal(timeout_s=1.0), time.monotonic()
    sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    with stop, stop.hold():
        sender.start()
        with suppress(Stopped):
            one.finish(stop)
        assert stop.wanted
        stop.number = None
    assert time.monotonic() - began < 30.0
    assert said.lines == [
        "the export is not ready. To write it: python -m embodied.tools.export runs/run/checkpoints/000001 --out FOLDER"
    ]
    assert not Path("/proc", Path("pid").read_text(encoding="utf-8").strip()).exists()
    assert [*(RUN / "exports").iterdir()] == []


def test_a_checkpoint_that_is_being_read_stays(monkeypatch):
    from learn.learner import trained

    one = exporter(monkeypatch, WRITES, Said())
    learner = trained()
    checkpoints = Checkpoints(RUN / "checkpoints", 1, completed=one.completed)
    for number in (1, 2):
        checkpoints.save(learner, number)
    assert [path.name for path in checkpoints.all()] == ["000001", "000002"]
    Path("go").touch()
    one.finish(StopSignal())
    checkpoints.save(learner, 3)
    assert [path.name for path in checkpoints.all()] == ["000003"]


def test_a_policy_without_the_format_is_refused_before_the_first_iteration(capfd):
    keys = ("env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.dry_run=true", "env.num_workers=1",
            f"{exports.KEY}=true", "--config-dir", str(Path(__file__).parents[1] / "config"))  # fmt: skip
    assert train.main([*keys]) == 2
    assert "FakePolicy has no format 'hf'" in capfd.readouterr().err
    with pytest.raises(ConfigError, match=f"set {exports.KEY}=false"):
        Exporter(RUN, WANTED, FakePolicy(), Said())
    assert [*Exporter(RUN, CheckpointConfig(), FakePolicy(), Said()).completed(checkpoint(1))] == []
    assert sys.executable in exports.PROGRAM
