"""The process that forks workers: what it imports, what it refuses, and how it ends."""

from __future__ import annotations

import doctest
import os
import signal
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rig import open_rig, records

from embodied.errors import WorkerDiedError, WorkerHungError
from embodied.lib import child
from embodied.runtime.plan import train_plan
from embodied.runtime.pool import before_fork, fork_server
from embodied.runtime.pool.fork_server import ForkServer

PATIENCE = 60.0


@contextmanager
def serving(folder, target="preloaded_env.Preloaded", timeout=PATIENCE, say=lambda text: None, **kwargs):
    server = ForkServer([(target, kwargs)], folder, timeout, say=say)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def forked(tmp_path, server, say=lambda text: None, **options):
    with open_rig(tmp_path / "logs", pool={"server": server}, say=say, **options) as rig:
        yield rig


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    until = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


def collect(rig):
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=8, group_size=2)
    results, stats = rig.rollout().collect(plan, rig.job())
    return records(rig, results), stats.worker_restarts


def all_up(rig):
    until = time.monotonic() + PATIENCE
    while len(rig.pool.up) < rig.pool.num_slots and time.monotonic() < until:
        rig.pool.recv(1, 0.1)
    assert len(rig.pool.up) == rig.pool.num_slots


def test_examples():
    assert doctest.testmod(child).failed == 0


def test_workers_inherit_what_the_server_has_imported(tmp_path):
    with serving(tmp_path) as server, forked(tmp_path, server, target="preloaded_env.Preloaded") as rig:
        facts = [fact.extra for fact in rig.pool.facts]
        assert {fact["by"] for fact in facts} == {fact["parent"] for fact in facts} == {str(server.pid)}
        assert len({fact["draw"] for fact in facts}) == 2, "each has random numbers of its own"
        with forked(tmp_path, server, target="preloaded_env.Preloaded") as second:
            assert {fact.extra["by"] for fact in second.pool.facts} == {str(server.pid)}


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("preloaded_env.StartsThread", "1 threads"),
        ("preloaded_env.RaisesInPreload", "RuntimeError: no such simulator"),
        ("preloaded_env.NoSuchClass", "cannot import"),
    ],
)
def test_what_cannot_be_forked_is_left_to_the_workers(tmp_path, target, why):
    said: list[str] = []
    with serving(tmp_path, target, say=said.append) as server:
        with forked(tmp_path, server, target="preloaded_env.Preloaded") as rig:
            assert {fact.extra["by"] for fact in rig.pool.facts} == {"0"}
            tasks = [os.listdir(f"/proc/{pid}/task") for pid in (server.pid, *rig.pool.pids)]
        assert [len(threads) for threads in tasks] == [1, 1, 1]
    assert len(said) == 1
    assert target in said[0]
    assert why in said[0]


@pytest.mark.parametrize(
    ("words", "built", "said"),
    [
        (["a", "b"], "a b", ""),
        (["a", "raises", "b"], "a b", "build raises: MemoryError: no room for it"),
        (["a", "thread", "b"], "a", "build thread: 1 threads (python)"),
        (["raises", "a", "thread"], "a", "build thread: 1 threads (python); build raises: MemoryError: no room for it"),
    ],
)
def test_workers_inherit_what_was_built_ahead(tmp_path, words, built, said):
    lines: list[str] = []
    with serving(tmp_path, "preloaded_env.Builds", say=lines.append, words=words) as server:
        with forked(tmp_path, server, target="preloaded_env.Builds", words=[]) as rig:
            facts = [fact.extra for fact in rig.pool.facts]
        assert {fact["built"] for fact in facts} == {built}
        assert {fact["by"] for fact in facts} == {str(server.pid)}, "the import stays"
    assert lines == ([f"the fork server leaves it to each worker to {said}"] if said else [])


def test_both_sides_of_a_run_are_built_for(tmp_path):
    target = "preloaded_env.Builds"
    server = ForkServer([(target, {"words": ["train"]}), (target, {"words": ["eval"]})], tmp_path, PATIENCE)
    with closing(server), forked(tmp_path, server, target=target, words=[]) as rig:
        assert {fact.extra["built"] for fact in rig.pool.facts} == {"train eval"}


@pytest.mark.skipif(
    Path("/proc/sys/vm/overcommit_memory").read_text(encoding="utf-8").strip() != "0",
    reason="Linux promises more here, or less, than it does by default",
)
def test_more_memory_than_the_machine_has_is_not_forked(tmp_path):
    with (
        serving(tmp_path, "preloaded_env.Reserves") as server,
        pytest.raises(WorkerDiedError) as failed,
        forked(tmp_path, server, target="preloaded_env.Reserves"),
    ):
        pass
    assert "Cannot allocate memory" in failed.value.message
    assert "env.start_method=spawn" in failed.value.remedy


def test_open_devices_are_seen(monkeypatch):
    monkeypatch.setattr(before_fork, "_threads", list)
    assert before_fork.hazards() == ""
    monkeypatch.setattr(before_fork, "DEVICES", ("/dev/zero",))
    with open("/dev/zero", encoding="utf-8"):
        assert before_fork.hazards() == "open devices /dev/zero"


def test_a_server_that_crashes_while_it_imports_is_named(tmp_path):
    with serving(tmp_path, "preloaded_env.CrashesInPreload") as server:
        with pytest.raises(WorkerDiedError) as failed, forked(tmp_path, server):
            raise AssertionError("it cannot start")
        assert f"the fork server (pid {server.pid}) was killed by SIGSEGV" in failed.value.message
        assert "in preload" in failed.value.detail
        assert "env.start_method=spawn" in failed.value.remedy


def test_a_server_that_hangs_while_it_imports_shows_where(tmp_path):
    marker = tmp_path / "hangs"
    with serving(tmp_path, "preloaded_env.HangsInPreload", timeout=0.5, marker=str(marker)) as server:
        wait_until(marker.exists)
        with pytest.raises(WorkerHungError) as failed, forked(tmp_path, server):
            raise AssertionError("it cannot start")
        assert "did not answer for 0.5 s when it was to import preloaded_env.HangsInPreload" in failed.value.message
        assert "in preload" in failed.value.detail
        assert "env.init_timeout_s" in failed.value.remedy
        assert not alive(server.pid)


def test_a_server_that_hangs_while_it_builds_says_at_what(tmp_path):
    with serving(tmp_path, "preloaded_env.Builds", timeout=5, words=["a", "hangs"]) as server:
        with pytest.raises(WorkerHungError) as failed, forked(tmp_path, server):
            raise AssertionError("it cannot start")
        assert "did not answer for 5 s when it was to build hangs" in failed.value.message
        assert "in _build" in failed.value.detail
        assert not alive(server.pid)


def test_workers_of_a_killed_server_are_replaced_from_another(tmp_path):
    said: list[str] = []
    with serving(tmp_path, say=said.append) as server, forked(tmp_path, server, said.append, max_restarts=3) as rig:
        expected, _ = collect(rig)
        killed, workers, opened = server.pid, rig.pool.pids, len(os.listdir("/proc/self/fd"))
        os.kill(killed, signal.SIGKILL)
        got, _ = collect(rig)
        all_up(rig)
        assert len(os.listdir("/proc/self/fd")) == opened
        assert got == expected
        assert rig.pool.restarts == 2
        assert server.pid != killed
        assert not any(map(alive, [killed, *workers]))
    what = f"the fork server (pid {killed}) was killed by SIGKILL"
    assert [what in text for text in said].count(True) == len(said) == 3
    assert sum("a new worker takes its place" in text for text in said) == 2
    assert f"{what}; another takes its place" in said


def test_a_server_that_has_hung_up_and_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "ANSWER_S", 0.1)
    with serving(tmp_path) as server:
        process = server._process
        os.kill(process.pid, signal.SIGSTOP)
        later = threading.Timer(5, os.kill, [process.pid, signal.SIGKILL])
        later.start()
        process._bury()
        assert later.is_alive(), "it was killed here, and not by the timer"
        later.cancel()
    assert process.fate.endswith("was killed by SIGKILL")


def test_a_killed_server_ends_a_run_whose_workers_are_not_replaced(tmp_path):
    with serving(tmp_path) as server, forked(tmp_path, server, max_restarts=0) as rig:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=rf"ended because the fork server \(pid {server.pid}\) was killed by"):
            collect(rig)


def test_a_stopped_server_is_replaced_when_it_is_needed(tmp_path, monkeypatch):
    said: list[str] = []

    def say(text):
        said.append(text)
        monkeypatch.setattr(fork_server, "ANSWER_S", PATIENCE)  # for those that are not stopped

    with serving(tmp_path, say=say) as server, forked(tmp_path, server, say, max_restarts=3) as rig:
        expected, _ = collect(rig)
        stopped = server.pid
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(fork_server, "ANSWER_S", 0.5)
        assert collect(rig) == (expected, 0), "workers that serve do not need it"
        os.kill(rig.pool.pids[0], signal.SIGKILL)
        assert collect(rig)[0] == expected
        all_up(rig)
        assert server.pid != stopped
        assert not alive(stopped)
    assert any(f"(pid {stopped}) did not answer for 0.5 s" in text for text in said)


def test_a_closed_server_leaves_nothing(tmp_path):
    with serving(tmp_path) as server:
        rig = forked(tmp_path, server)
        pids = [*rig.__enter__().pool.pids, server.pid]
        server.close()
        wait_until(lambda: not any(map(alive, pids)))
        rig.__exit__(None, None, None)


def test_without_proc_nothing_is_made_before_the_fork(monkeypatch):
    monkeypatch.setattr(before_fork.os.path, "isdir", lambda path: False)
    assert before_fork.hazards() == "threads and devices cannot be seen without /proc"
