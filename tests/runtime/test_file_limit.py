"""How many files a run opens: what is counted against what is open, and limits that are too low."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import warm
from rig import BOTH_STARTS

from embodied import train
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.run import command
from embodied.run.build import preflight
from embodied.runtime.pool import file_limit
from embodied.runtime.pool.file_limit import POOL, RESERVE, WORKER, OpenFiles, open_now
from embodied.tools import demos

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
TINY = (
    "env=fake", "model=fake", "runner.device=cpu", "runner.max_epochs=1", "env.train.total_num_envs=16",
    "env.eval.total_num_envs=16", "algorithm.rollout_epoch=1", "env.train.max_episode_steps=4",
    "env.eval.max_episode_steps=4", "env.eval.video_cfg.save_video=false", "runner.val_check_interval=-1",
    "runner.logger.report=false",
)  # fmt: skip
HAVE_MANY = file_limit.resource.getrlimit(file_limit.resource.RLIMIT_NOFILE)[1] > 400


@BOTH_STARTS
def test_what_a_pool_and_its_workers_have_open(make_rig, request):
    if "forkserver" in request.node.name:
        make_rig(slots=1, workers=1)  # the server's socket comes with its first worker
    for workers in (2, 5):
        gc.collect()  # what earlier tests have left is closed now, and not while this one counts
        before = open_now()
        make_rig(slots=5, workers=workers)
        assert open_now() - before == POOL + workers * WORKER


@contextmanager
def most_open() -> Iterator[Callable[[], int]]:
    """Looks all the time; what it yields says how many files were open at most."""
    seen, done = [open_now()], threading.Event()

    def look() -> None:
        while not done.wait(0.001):
            seen.append(open_now())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: max(seen)
    finally:
        done.set()
        thread.join()


def test_a_run_with_both_pools_has_no_more_open_than_was_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counted: list[OpenFiles] = []
    monkeypatch.setattr(preflight, "allow", counted.append)
    begun = open_now()
    options = (*TINY, "env.num_workers=3", "env.eval.success_distance=99", "runner.val_check_interval=1")
    with most_open() as most:
        assert train.main([*options, "--config-dir", str(TESTS / "config")]) == 0
    (files,) = counted
    assert (files.workers, files.each, files.others) == (6, WORKER, 2 * POOL + RESERVE)
    assert most() - begun >= 6 * WORKER + 2 * POOL, "two pools were open"
    assert most() - begun - 6 * WORKER - 2 * POOL <= RESERVE / 4, "there is room for GPUs"


def test_a_recording_has_no_more_open_than_was_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counted: list[OpenFiles] = []
    monkeypatch.setattr(preflight, "allow", counted.append)
    begun = open_now()
    options = ("env=fake", "episodes=9", "env.num_workers=3", "env.train.horizon=60")
    with most_open() as most:
        assert demos.main([*options, "--config-dir", str(TESTS / "config")]) == 0
    (files,) = counted
    assert (files.workers, files.each, files.others) == (3, WORKER, POOL + RESERVE)
    assert most() - begun >= 3 * WORKER + POOL
    assert most() - begun - 3 * WORKER - POOL <= RESERVE / 4, "there is room for data files"


@pytest.mark.parametrize(
    ("overrides", "entry", "workers"),
    [
        ((), "train", 16),
        (("env.eval.success_distance=99",), "train", 16),
        (("env.eval.success_distance=99", "runner.val_check_interval=1", "env.num_workers=12"), "train", 24),
        (("env.eval.success_distance=99", "env.eval.total_num_envs=4"), "eval", 4),
        (("demos.episodes=50",), "demos", 16),
    ],
)  # fmt: skip
def test_which_workers_are_counted(tmp_path, monkeypatch, overrides, entry, workers):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)

    def refuse(files: OpenFiles) -> None:
        raise ConfigError(f"{files.workers} workers", "")

    monkeypatch.setattr(preflight, "allow", refuse)
    with pytest.raises(ConfigError, match=f"^{workers} workers"):
        command.run([*TINY, *overrides, "--config-dir", str(TESTS / "config")], entry, Group())


LIMITED = """
import resource, runpy, sys
limit, which, module = sys.argv[1:4]
del sys.argv[1:4]
hard = int(limit) if which == "hard" else resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), hard))
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def start(limit: int, which: str, folder: Path, *overrides: str, entry: str = "train") -> CompletedProcess[str]:
    """Runs a command with 16 workers. ``which``: the limit that is set, ``soft`` or also ``hard``."""
    options = (*TINY, "env.num_workers=16", *overrides, "--config-dir", str(TESTS / "config"))
    words = ["-c", LIMITED, str(limit), which, f"embodied.{entry}", *options]
    return warm.python(words, folder, {"PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("entry", ["train", "eval", "tools.demos", "tools.bench"])
def test_a_hard_limit_that_is_too_low_is_refused_with_both_numbers(tmp_path, entry):
    done = start(40, "hard", tmp_path, *(["demos.episodes=16"] if entry == "tools.demos" else []), entry=entry)
    assert done.returncode == 2, done.stderr
    needed, allowed = map(int, re.search(r"needs (\d+) open files .* and (\d+) are allowed", done.stderr).groups())
    assert 16 * WORKER + RESERVE < needed <= 16 * WORKER + RESERVE + POOL + 16
    assert allowed == 40
    for fix in (f"ulimit -Hn {needed}", f"LimitNOFILE={needed}"):
        assert fix in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.log")), "no worker was started"


@pytest.mark.skipif(not HAVE_MANY, reason="the hard limit of this machine is too low itself")
def test_a_soft_limit_that_is_too_low_is_raised(tmp_path):
    done = start(40, "soft", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 iteration done" in done.stdout


def test_fewer_workers_are_the_fix_where_some_would_fit():
    needed = OpenFiles(256, WORKER, 100).needed
    others = needed - 256 * WORKER
    with pytest.raises(ConfigError) as caught:
        limited(OpenFiles(256, WORKER, 100), 1024)
    fits = (1024 - others) // WORKER
    assert f"at most {fits} in all" in str(caught.value)
    limited(OpenFiles(fits, WORKER, 100), 1024)
    with pytest.raises(ConfigError):
        limited(OpenFiles(fits + 1, WORKER, 100), 1024)


def limited(files: OpenFiles, hard: int) -> list[tuple[int, int]]:
    """What :func:`allow` sets where ``hard`` is the hard limit, and the soft one leaves room for 16 more files than
    earlier tests have left open."""
    told: list[tuple[int, int]] = []
    soft = open_now() + 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_limit.resource, "getrlimit", lambda which: (soft, hard))
        patch.setattr(file_limit.resource, "setrlimit", lambda which, limits: told.append(limits))
        file_limit.allow(files)
    return told


def test_the_limit_is_raised_no_further_than_needed():
    files = OpenFiles(16, WORKER, 100)
    assert limited(files, 2**30) == [(files.needed, 2**30)]
    assert limited(OpenFiles(0, WORKER, 0), 2**30) == []
    unlimited = file_limit.resource.RLIM_INFINITY
    assert limited(files, unlimited) == [(files.needed, unlimited)]
