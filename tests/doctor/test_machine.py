"""Checks of the machine, each with a machine that fails it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from collections import namedtuple

import pytest

from embodied.doctor.checks import machine, versions
from embodied.doctor.checks.machine import Process
from embodied.doctor.findings import Finding, worst
from embodied.runtime.pool import file_limit
from embodied.runtime.pool.placement import START

Usage = namedtuple("Usage", "total used free")


def only(found) -> Finding:
    (finding,) = found
    return finding


@pytest.mark.parametrize(("free", "status"), [(8 * 2**30, "ok"), (2 * 2**30, "warn"), (2**29, "fail")])
def test_memory(monkeypatch, free, status):
    monkeypatch.setattr(machine, "available_memory", lambda: free)
    monkeypatch.setattr(machine, "container_memory", lambda: None)
    finding = only(machine.memory())
    assert (finding.name, finding.status) == ("memory", status)
    assert ("env.num_workers" in finding.fix) == (status != "ok")


def test_memory_that_the_kernel_does_not_say(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: None)
    assert only(machine.memory()).status == "skipped"


def test_memory_of_a_container(monkeypatch, tmp_path):
    group = tmp_path / "fs" / "inner"
    group.mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("0::/inner\n", encoding="utf-8")
    (group / "memory.max").write_text(f"{2**30}\n", encoding="utf-8")
    (group / "memory.current").write_text(f"{900 * 2**20}\n", encoding="utf-8")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {76 * 2**20}\n", encoding="utf-8")
    left = machine.container_memory(tmp_path / "fs", own)
    assert left == 200 * 2**20
    monkeypatch.setattr(machine, "available_memory", lambda: 64 * 2**30)
    finding = only(machine.memory(left))
    assert finding.status == "fail"
    assert "200 MiB" in finding.found
    assert "docker run --memory" in finding.fix
    (group / "memory.max").write_text("max\n", encoding="utf-8")
    assert machine.container_memory(tmp_path / "fs", own) is None


def test_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: Usage(2**20, 0, 2**20))
    works, small = machine.shared_memory(tmp_path)
    assert works.status == "ok"
    assert (small.status, small.name) == ("warn", "/dev/shm")
    assert "--shm-size" in small.fix

    def refused(name, flags):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(machine.os, "memfd_create", refused)
    assert next(machine.shared_memory(tmp_path)).status == "fail"


def test_open_files(monkeypatch):
    """The limit of the run itself refuses, in its words."""
    monkeypatch.setattr(file_limit.resource, "getrlimit", lambda which: (64, 64))
    with pytest.raises(Exception, match="ulimit -Hn"):
        list(machine.open_files())
    raised = []
    monkeypatch.setattr(file_limit.resource, "setrlimit", lambda *new: raised.append(new))
    for hard, told in ((1048576, "hard 1,048,576"), (file_limit.resource.RLIM_INFINITY, "hard no limit")):
        monkeypatch.setattr(file_limit.resource, "getrlimit", lambda which, hard=hard: (64, hard))
        finding = only(machine.open_files())
        assert "soft 64 " in finding.found, "the limit that a program gets, not one that the doctor has raised"
        assert finding.found.endswith(told)
    assert raised == []


@pytest.mark.parametrize(("free", "status"), [(2**40, "ok"), (2**30, "warn"), (2**20, "fail")])
def test_a_full_disk(monkeypatch, tmp_path, free, status):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: Usage(2**40, 0, free))
    found = {finding.name: finding for finding in machine.disk(str(tmp_path / "runs"))}
    assert found["disk of runs"].status == status
    assert ("runner.output_dir" in found["disk of runs"].fix) == (status != "ok")
    if status == "fail":
        assert "TMPDIR" in found["disk of temporary files"].fix
        assert "XDG_CACHE_HOME" in found["disk of cache"].fix


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "runs").touch()
    found = [*machine.disk(str(tmp_path / "runs" / "name"))]
    assert worst(found) == "fail"
    assert "is a file" in found[0].found


def test_stale_workers_are_those_without_a_launcher():
    worker = ("/venv/bin/python", str(START), "7")
    seen = [
        Process(1, 0, ("/sbin/init",)),
        Process(10, 1, ("/venv/bin/python3.11", "-m", "embodied.train")),
        Process(11, 10, worker),
        Process(20, 1, worker),  # its launcher was killed
        Process(21, 99, worker),  # its parent cannot be seen
        Process(22, 1, (*worker[:2], "--safe-stop", "9")),
    ]
    finding = only(machine.stale_workers(seen))
    assert finding.status == "warn"
    assert finding.fix == "kill -9 20 21"
    assert only(machine.stale_workers(seen[:3])).found.startswith("none; 1 env workers")


def test_a_stale_worker_is_found_in_proc(tmp_path):
    """A process that a shell has left behind, with the command line of a worker."""
    script = tmp_path / "embodied" / "runtime" / "pool" / START.name
    script.parent.mkdir(parents=True)
    script.write_text("import time; time.sleep(60)", encoding="utf-8")
    done = subprocess.run(
        ["sh", "-c", '"$0" "$1" 5 >/dev/null 2>&1 & echo $!', sys.executable, str(script)],
        capture_output=True, text=True, check=True,
    encoding="utf-8")  # fmt: skip
    pid = int(done.stdout)
    try:
        until = time.monotonic() + 10
        while not any(p.pid == pid and p.command[1:2] == (str(script),) for p in machine.processes()):
            assert time.monotonic() < until
            time.sleep(0.02)
        here = {p.pid: p for p in machine.processes()}
        parent = here.get(here[pid].parent)
        expected = parent is None or "python" not in parent.command[0]  # a container's first process may be python
        stale = only(machine.stale_workers())
        assert (str(pid) in stale.fix.split()) == expected
    finally:
        os.kill(pid, 9)


def test_versions_that_are_missing_or_wrong():
    installed = {"torch": "2.1", "numpy": "2.0", "sapien": "4.0"}

    def version(name):
        try:
            return installed[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    requires = [
        "torch>=2.7", "numpy>=1.26", "rich>=13", 'sapien<4,>=3.0.1; extra == "maniskill"',
        'mujoco>=3.2; extra == "libero"', 'trl>=1; extra == "dev"',
    ]  # fmt: skip
    found = {finding.name: finding for finding in versions.versions(requires, version)}
    assert found["package torch"].status == "fail"
    assert "2.1 is installed" in found["package torch"].found
    assert found["package torch"].fix == "pip install 'torch>=2.7'"
    assert found["package rich"].status == "fail"
    assert found["package sapien"].status == "warn"
    assert found["packages"].found == "3 looked at; not complete, and needed only for what they name: libero"
    assert found["system"].status == "ok"
    assert next(versions.versions([], version, "darwin")).status == "fail"
