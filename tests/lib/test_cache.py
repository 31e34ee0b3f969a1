"""What several processes would work out at the same time is worked out by one."""

from __future__ import annotations

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embodied.lib import cache
from embodied.lib.cache import one_process_first


def test_others_wait_for_the_first_and_then_go_in_together(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(cache, "LOOK_S", 0.01)
    kept, tried = tmp_path / "kept", threading.Semaphore(0)
    flock = fcntl.flock
    monkeypatch.setattr(cache.fcntl, "flock", lambda *given: (tried.release(), flock(*given)))
    together = threading.Barrier(3)

    def other() -> str:
        with one_process_first(tmp_path, wait_s=10):
            together.wait(10)  # all are in
            return kept.read_text(encoding="utf-8")

    with ThreadPoolExecutor(3) as others:
        with one_process_first(tmp_path):
            found = [others.submit(other) for _ in range(3)]
            for _ in range(10):
                assert tried.acquire(timeout=10), "they look again and again"
            assert not any(one.done() for one in found)
            kept.write_text("worked out", encoding="utf-8")
        assert [one.result(10) for one in found] == ["worked out"] * 3
    with (
        one_process_first(tmp_path, wait_s=0.0),
        (tmp_path / "lock").open(encoding="utf-8") as file,
        pytest.raises(BlockingIOError),
    ):
        flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the next one is a first one again


def test_nobody_waits_for_ever_or_where_there_are_no_locks(tmp_path: Path):
    with one_process_first(tmp_path), one_process_first(tmp_path, wait_s=0.05):
        pass
    with one_process_first(tmp_path / "none"):
        pass
    with pytest.raises(FileNotFoundError, match="own"), one_process_first(tmp_path):
        raise FileNotFoundError("its own error")
