"""The ring of replayed records: what it holds, what it returns to, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embodied.errors import CheckpointError, ConfigError, DamagedCheckpointError, RunFolderError, SpecMismatchError
from embodied.learn.replay.ring import Replay
from embodied.learn.replay.segments import MOST_OPEN
from embodied.types import ArraySpec

FIELDS = {
    "images": ArraySpec((16, 24, 3), "uint8"), "num_steps": ArraySpec((), "int32"),
    "terminated": ArraySpec((), "bool"), "demonstrated": ArraySpec((), "bool"),
}  # fmt: skip


def opened(folder: Path, capacity: int = 40, max_gb: float | None = None, **changed) -> Replay:
    given = {"fields": FIELDS, "origin": "env a, policy b", **changed}
    rank, expected = given.get("rank", (0, 1)), given.get("expected")
    return Replay.open(folder, given["fields"], capacity, max_gb, given["origin"], rank, expected)


def records(first: int, count: int) -> dict[str, np.ndarray]:
    number = np.arange(first, first + count)
    return {
        "images": np.broadcast_to((number % 251).astype(np.uint8)[:, None, None, None], (count, 16, 24, 3)).copy(),
        "num_steps": np.where(number % 5 == 4, 0, number).astype(np.int32), "terminated": np.zeros(count, bool),
        "demonstrated": number % 3 == 0,
    }  # fmt: skip


def filled(folder: Path, count: int = 100, capacity: int = 40) -> dict:
    ring = opened(folder, capacity)
    for first in range(0, count, 10):
        ring.append(records(first, 10))
    state = ring.state_dict()
    ring.saved(state)
    ring.close()
    return state


def test_it_holds_the_last_records(tmp_path):
    ring = opened(tmp_path)
    ring.append(records(0, 100))
    got = ring.batch(np.array([0, 39, 7]))
    for name, values in records(60, 40).items():
        np.testing.assert_array_equal(got[name], values[[0, 39, 7]])
    numbers = np.arange(60, 100)
    assert ring.transitions.tolist() == np.flatnonzero(numbers % 5 != 4).tolist()
    assert ring.demonstrated.tolist() == np.flatnonzero((numbers % 5 != 4) & (numbers % 3 == 0)).tolist()


def test_a_last_record_without_its_next_entry_is_no_transition(tmp_path):
    ring = opened(tmp_path)
    ring.append(records(0, 4))
    assert ring.transitions.tolist() == [1, 2]  # record 0 has no control steps, record 3 goes on
    ring.append(records(4, 1))
    assert ring.transitions.tolist() == [1, 2, 3]


def test_the_smaller_bound_holds(tmp_path):
    one = opened(tmp_path / "a").record_bytes
    assert opened(tmp_path / "b", 40, 10 * one / 1e9 + 1e-9).capacity == 10
    assert opened(tmp_path / "c", 40, 1.0).capacity == 40
    with pytest.raises(ConfigError, match="holds none"):
        opened(tmp_path / "d", 40, 1e-9)


LARGE = {**FIELDS, "images": ArraySpec((512, 512, 3), "uint8")}


def test_a_ring_is_laid_out_for_no_more_records_than_are_expected(tmp_path):
    one = opened(tmp_path / "one", fields=LARGE).record_bytes
    with pytest.raises(RunFolderError, match="the replay of 1000000000 records needs"):
        opened(tmp_path / "a", 10**9, fields=LARGE)
    ring = opened(tmp_path / "b", 10**9, fields=LARGE, expected=100)
    assert (ring.capacity, ring.room) == (10**9, 100)
    ring.append({name: np.zeros((1, *spec.shape), spec.dtype) for name, spec in LARGE.items()})
    (file,) = (tmp_path / "b").glob("*.records")
    assert file.stat().st_size < 100 * one / 4


@pytest.mark.parametrize("expected", [1, 7, 30, 99])
def test_what_is_expected_changes_no_record(tmp_path, expected):
    one, other = opened(tmp_path / "a"), opened(tmp_path / "b", expected=expected)
    for first in range(0, 100, 10):
        for ring in (one, other):
            ring.append(records(first, 10))
        assert one.transitions.tolist() == other.transitions.tolist()
        assert one.demonstrated.tolist() == other.demonstrated.tolist()
        np.testing.assert_array_equal(*(ring.batch(np.arange(len(ring)))["images"] for ring in (one, other)))
    assert other.room == 40


@pytest.mark.parametrize("more", [10, 60])
def test_a_run_goes_on_for_longer_than_it_was_laid_out_for(tmp_path, more):
    ring = opened(tmp_path, 100, expected=10)
    ring.append(records(0, 10))
    state = ring.state_dict()
    ring.close()
    again = opened(tmp_path, 100, expected=more)  # another runner.max_epochs
    again.load_state_dict(state)
    again.append(records(10, 50))
    assert len(again) == 60
    np.testing.assert_array_equal(again.batch(np.arange(60))["images"], records(0, 60)["images"])


def test_a_ring_of_very_many_files_has_few_of_them_open(tmp_path, monkeypatch):
    monkeypatch.setattr("embodied.learn.replay.ring.LEAST_BYTES", 1)
    ring, before = opened(tmp_path, 4000, expected=32), len(os.listdir("/proc/self/fd"))
    ring.append(records(0, 800))
    state = ring.state_dict()
    np.testing.assert_array_equal(ring.batch(np.arange(800))["images"], records(0, 800)["images"])
    assert len(list(tmp_path.glob("*.records"))) == 400
    assert len(os.listdir("/proc/self/fd")) - before <= MOST_OPEN
    assert state["total"] == 800


def test_old_files_are_deleted(tmp_path):
    ring = opened(tmp_path)
    for first in range(0, 300, 10):
        ring.append(records(first, 10))
        ring.saved(ring.state_dict())
    held = sum(path.stat().st_size for path in tmp_path.glob("*.records"))
    assert held <= 1.5 * ring.disk_bytes  # 20 records since the last checkpoint but one come on top of 40


def test_an_earlier_checkpoint_is_returned_to_and_a_later_one_is_then_refused(tmp_path):
    ring = opened(tmp_path)
    ring.append(records(0, 50))
    early = ring.state_dict()
    ring.saved(early)
    ring.append(records(50, 7))
    late = ring.state_dict()
    ring.saved(late)
    ring.close()
    ring = opened(tmp_path)
    ring.load_state_dict(early)
    np.testing.assert_array_equal(ring.batch(np.arange(40))["num_steps"], records(10, 40)["num_steps"])
    ring.append(records(500, 7))
    ring.close()
    ring = opened(tmp_path)
    with pytest.raises(CheckpointError, match="written others in their place"):
        ring.load_state_dict(late)


def test_a_checkpoint_whose_records_are_deleted_is_refused(tmp_path):
    ring = opened(tmp_path)
    ring.append(records(0, 50))
    first = ring.state_dict()
    for begin in range(50, 400, 50):
        ring.append(records(begin, 50))
        ring.saved(ring.state_dict())
    with pytest.raises(CheckpointError, match="keeps those of the last 2 checkpoints"):
        ring.load_state_dict(first)


def test_records_of_a_checkpoint_are_not_written_over_by_a_run_that_did_not_load_it(tmp_path):
    state = filled(tmp_path)
    ring = opened(tmp_path)
    with pytest.raises(CheckpointError, match="has not gone on from it"):
        ring.append(records(0, 3))
    ring.load_state_dict(state)
    ring.append(records(100, 3))
    assert ring.total == 103


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"origin": "env c, policy b"}, "they are of env a, policy b, this run's of env c, policy b"),
        ({"fields": {**FIELDS, "images": ArraySpec((16, 16, 3), "uint8")}}, r"field images is uint8 \[16, 24, 3\]"),
        ({"fields": {**FIELDS, "state": ArraySpec((3,), "float32")}}, "field state is missing there"),
        ({"capacity": 30}, "they are at most 40, this run's 30"),
        ({"rank": (0, 2)}, "they are of process 0 of 1, this is process 0 of 2"),
    ],
)
def test_records_of_another_run_are_refused(tmp_path, changed, named):
    filled(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunFolderError, match=named):
        opened(tmp_path, **changed)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_version_and_an_edited_header_are_refused(tmp_path):
    filled(tmp_path)
    header = tmp_path / "replay.json"
    values = json.loads(header.read_text(encoding="utf-8"))
    header.write_text(json.dumps({**values, "format": 99}), encoding="utf-8")
    with pytest.raises(RunFolderError, match="format 99, this version reads 1"):
        opened(tmp_path)
    header.write_text(json.dumps({**values, "per_file": 3}), encoding="utf-8")
    with pytest.raises(DamagedCheckpointError, match="checksum"):
        opened(tmp_path)
    header.unlink()
    with pytest.raises(DamagedCheckpointError, match=r"without replay\.json"):
        opened(tmp_path)


def test_a_truncated_file_is_refused(tmp_path):
    state = filled(tmp_path)
    file = sorted(tmp_path.glob("*.records"))[-2]
    os.truncate(file, 100)
    ring = opened(tmp_path)
    with pytest.raises(DamagedCheckpointError, match="has 100 bytes, expected"):
        ring.load_state_dict(state)


@pytest.mark.parametrize("large", [False, True])
def test_a_flipped_byte_is_found(tmp_path, large):
    state = filled(tmp_path)
    file = sorted(tmp_path.glob("*.records"))[-3]
    content = bytearray(file.read_bytes())
    content[-5 if large else 1] ^= 4
    file.write_bytes(content)
    ring = opened(tmp_path)
    if large:
        ring.load_state_dict(state)
    with pytest.raises(DamagedCheckpointError, match="damaged"):
        ring.batch(np.arange(40)) if large else ring.load_state_dict(state)


def test_a_full_disk_is_an_error_and_appends_nothing(tmp_path, monkeypatch):
    ring = opened(tmp_path)
    ring.append(records(0, 10))
    before = ring.batch(np.arange(10))["images"].tobytes()

    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(RunFolderError, match="No space left on device"):
            ring.append(records(10, 10))
    assert ring.total == 10
    assert ring.batch(np.arange(10))["images"].tobytes() == before
    ring.append(records(10, 10))
    np.testing.assert_array_equal(ring.batch(np.arange(20))["images"], records(0, 20)["images"])


def test_a_limit_of_file_sizes_is_an_error(tmp_path):
    ring, limits = opened(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        with pytest.raises(RunFolderError, match="no room"):
            ring.append(records(0, 10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("*.records"))


def test_too_small_a_disk_is_refused_before_the_run(tmp_path):
    with pytest.raises(RunFolderError, match="GB are free"):
        opened(tmp_path, 10**13)


def test_a_folder_in_use_is_refused(tmp_path):
    held = opened(tmp_path)
    script = (
        "from tests.learn.replay.test_replay_ring import opened; from pathlib import Path; import sys\n"
        "try: opened(Path(sys.argv[1]))\nexcept Exception as error: print(type(error).__name__, error)"
    )
    root = Path(__file__).resolve().parents[3]
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert "RunFolderError another process writes" in said.stdout
    held.close()
    opened(tmp_path).close()


@pytest.mark.parametrize("change", ["missing", "shape", "dtype"])
def test_other_records_are_refused(tmp_path, change):
    given = records(0, 4)
    if change == "missing":
        del given["num_steps"]
    given["images"] = {"shape": given["images"][:, :2], "dtype": given["images"].astype(int)}.get(
        change, given["images"]
    )
    with pytest.raises(SpecMismatchError, match="num_steps" if change == "missing" else "images"):
        opened(tmp_path).append(given)
