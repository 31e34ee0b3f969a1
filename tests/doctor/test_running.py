"""A check that raises, crashes or hangs is a finding, and the others have theirs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from embodied.doctor import running
from embodied.doctor.findings import Finding, worst
from embodied.doctor.running import Check, run_all
from embodied.lib import child
from embodied.runtime.apart import processes as processes_apart

sys.path.append(str(Path(__file__).parent))
import odd_checks


def in_time(work, limit_s=60):
    """Returns what a function returns, or fails if it hangs."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(work()), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert returned, "it hangs, or it raised"
    return returned[0]


def test_each_check_has_its_findings_whatever_the_others_do():
    ended = []
    checks = [
        Check("hang", odd_checks.hang, apart=True, limit_s=4),
        Check("crash", odd_checks.crash, apart=True),
        Check("error", odd_checks.error, apart=True),
        Check("explained", odd_checks.explained, apart=True),
        Check("good", odd_checks.good, ("one",), apart=True),
        Check("sleeps here", odd_checks.hang, limit_s=0.1),
        Check("raises here", odd_checks.error),
        Check("refuses here", odd_checks.explained, advisory=True),
        Check("good here", odd_checks.good, ("two",)),
        Check("cut", odd_checks.cut, apart=True),
    ]
    began = time.monotonic()
    found = in_time(lambda: run_all(checks, ended.append))
    assert time.monotonic() - began < 60, "what hangs was ended"
    assert sorted(ended) == sorted(check.name for check in checks)
    told = [(finding.name, finding.status, finding.found) for finding in found]
    assert told[:2] == [
        ("before", "ok", "said before it hung"), ("hang", "fail", "this check did not end within 4 s"),
    ]  # fmt: skip
    assert told[2] == ("before", "ok", "said before the crash")
    assert told[3][:2] == ("crash", "fail")
    assert "was killed by SIGABRT" in told[3][2]
    assert told[4][:2] == ("error", "fail")
    assert "ZeroDivisionError: no such thing" in told[4][2]
    assert told[5:8] == [
        ("before", "warn", "said before"), ("explained", "fail", "it is wrong"), ("one", "ok", "all is well"),
    ]  # fmt: skip
    assert told[8:10] == [
        ("before", "ok", "said before it hung"), ("sleeps here", "fail", "this check did not end within 0.1 s"),
    ]  # fmt: skip
    assert told[10] == ("raises here", "fail", "this check failed: ZeroDivisionError: no such thing")
    assert told[14][:2] == ("cut", "fail")
    assert "JSONDecodeError" in told[14][2]
    assert told[11:14] == [
        ("before", "warn", "said before"), ("refuses here", "warn", "it is wrong"), ("two", "ok", "all is well"),
    ]  # fmt: skip
    assert found[6].fix == "mend it"
    assert worst(found) == "fail"


def test_a_check_that_cannot_be_run_is_a_finding(monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running.tempfile, "TemporaryDirectory", full)
    checks = [Check("apart", odd_checks.good, ("one",), apart=True), Check("here", odd_checks.good, ("two",))]
    failed, good = in_time(lambda: run_all(checks), 20)
    assert (failed.name, failed.status, good.found) == ("apart", "fail", "all is well")
    assert "No space left on device" in failed.found


class Process:
    """A process that ends when it is killed, or at once; one that is stuck outlives that."""

    all: ClassVar[list[Process]] = []

    def __init__(self, command, **how):
        self.kills, self.ended = 0, threading.Event()
        self.stuck = "stuck" in command[-2]
        if "ends" in command[-2]:
            self.ended.set()
        self.all.append(self)

    def wait(self, timeout):
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("check", timeout)
        return 0

    def kill(self):
        self.kills += 1
        if not self.stuck:
            self.ended.set()


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(Process, "all", [])
    monkeypatch.setattr(processes_apart, "Child", Process)
    monkeypatch.setattr(child, "REAP_S", 0.1)
    monkeypatch.setattr(running.os, "sched_getaffinity", lambda pid: {0, 1})
    return Process.all


def test_after_an_interrupt_no_check_starts(processes):
    names = ["ends", *(f"goes on {number}" for number in range(8))]
    before = {*threading.enumerate()}

    def interrupted(name):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([Check(name, odd_checks.good, (name,), apart=True) for name in names], interrupted)
    for thread in {*threading.enumerate()} - before:
        thread.join(20)
    assert len(processes) <= 3, "none started after it"
    assert all(process.ended.is_set() for process in processes)
    assert [process.kills for process in processes] == [1] * len(processes), "a pid that was reaped is not used again"


def test_the_longest_checks_begin_first(processes, monkeypatch):
    monkeypatch.setattr(running.os, "sched_getaffinity", lambda pid: {0, 1})
    started = []
    both = threading.Barrier(2)

    def start(self, command, log, more=None):
        started.append(json.loads(command[4]))
        if len(started) <= 2:
            both.wait(30)  # neither of the first two takes another before both have begun

    monkeypatch.setattr(processes_apart.Processes, "start", start)
    checks = [
        Check(name, odd_checks.good, (name,), apart=True, cpu_s=cpu_s)
        for name, cpu_s in (("short", 0), ("middle", 2), ("long", 9))
    ]
    run_all(checks)
    assert {name for (name,) in started[:2]} == {"long", "middle"}
    assert started[2] == ["short"]


def test_what_a_kill_does_not_end_is_left(processes):
    (found,) = in_time(lambda: run_all([Check("disk", odd_checks.good, ("stuck",), apart=True, limit_s=0.1)]), 20)
    assert found.found == "this check did not end within 0.1 s"


def test_the_fix_of_a_check_that_failed_runs_it_alone():
    (found,) = run_all([Check("error", odd_checks.error, apart=True)])
    command = shlex.split(found.fix.partition(": ")[2])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    encoding="utf-8")  # fmt: skip
    assert done.returncode == 1
    assert "ZeroDivisionError: no such thing" in done.stderr


def test_what_is_wrong_has_a_fix():
    with pytest.raises(ValueError, match="without a fix"):
        Finding("disk", "fail", "it is full")
