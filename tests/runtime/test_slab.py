"""The slab: one memory, seen from two processes, without a name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embodied.errors import ConfigError
from embodied.runtime import slab as slabs
from embodied.runtime.slab import ALIGN, Slab, runtime_fields, slab_bytes
from embodied.types import ArraySpec

FIELDS = {
    "images": ArraySpec((2, 5, 3, 3), "uint8"),
    "flag": ArraySpec((), "bool"),
    "state": ArraySpec((3,), "float32"),
    "episode_id": ArraySpec((), "int64"),
}


@pytest.fixture
def slab():
    slab = Slab.create(FIELDS, rows=7)
    yield slab
    slab.close()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_fields_are_aligned_and_do_not_overlap(slab):
    starts = {name: address(array) for name, array in slab.arrays.items()}
    first = min(starts.values())
    assert [start % ALIGN for start in starts.values()] == [0, 0, 0, 0]
    ends = [starts[name] + array.nbytes for name, array in slab.arrays.items()]
    for end, following in zip(ends, list(starts.values())[1:], strict=False):
        assert end <= following
    assert ends[-1] <= first + slab.nbytes
    assert slab.nbytes == slab_bytes(FIELDS, 7) == 640 + 64 + 128 + 64


def test_arrays_have_the_declared_shape_and_begin_at_zero(slab):
    assert {name: (array.shape, str(array.dtype)) for name, array in slab.arrays.items()} == {
        name: ((7, *spec.shape), spec.dtype) for name, spec in FIELDS.items()
    }
    assert not any(array.any() for array in slab.arrays.values())


def test_views_write_into_one_row_and_no_other(slab):
    views = slab.views({"state": None, "flag": None}, 3)
    assert set(views) == {"state", "flag"}
    assert views["flag"].shape == ()
    views["state"][:] = (1, 2, 3)
    views["flag"][...] = True
    assert slab.arrays["state"][3].tolist() == [1, 2, 3]
    assert slab.arrays["flag"].tolist() == [row == 3 for row in range(7)]
    assert slab.arrays["state"].sum() == 6


READER = """
import sys
from embodied.runtime.slab import Slab
from embodied.types import ArraySpec
fields = {"images": ArraySpec((2, 5, 3, 3), "uint8"), "flag": ArraySpec((), "bool"),
          "state": ArraySpec((3,), "float32"), "episode_id": ArraySpec((), "int64")}
slab = Slab.attach(int(sys.argv[1]), fields, 7)
print("attached", flush=True)
for line in sys.stdin:
    print(slab.arrays["episode_id"][int(line)], flush=True)
    slab.arrays["state"][int(line)] = 0.5
"""


def test_a_second_process_sees_writes_made_after_it_attached(slab):
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(slab.fd)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[slab.fd],
    encoding="utf-8") as reader:  # fmt: skip
        assert reader.stdout.readline() == "attached\n"
        slab.arrays["episode_id"][5] = 2**40 + 1
        reader.stdin.write("5\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == f"{2**40 + 1}\n"
        reader.stdin.close()
        assert reader.wait(5) == 0
    assert slab.arrays["state"][5].tolist() == [0.5, 0.5, 0.5]
    assert slab.arrays["state"].sum() == 1.5


def test_no_name_is_left_anywhere():
    before = sorted(os.listdir("/dev/shm"))
    slab = Slab.create(FIELDS, rows=7, name="embodied-test-slab")
    target = os.readlink(f"/proc/self/fd/{slab.fd}")
    assert target.startswith("/memfd:embodied-test-slab")
    assert sorted(os.listdir("/dev/shm")) == before
    slab.close()
    assert not any(
        "embodied-test-slab" in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    )


def test_a_slab_that_does_not_fit_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(slabs, "available_memory", lambda: 2 * 2**30)
    with pytest.raises(ConfigError) as refused:
        Slab.create({"images": ArraySpec((1024, 1024, 3), "uint8")}, rows=1000)
    assert "1000 records needs 2.9 GiB and 2.0 GiB are free" in refused.value.message
    assert "algorithm.rollout_epoch" in refused.value.remedy


def test_available_memory_is_below_that_of_the_machine():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < slabs.available_memory() <= total


def test_runtime_fields_have_k_rewards():
    fields = runtime_fields(6)
    assert fields["rewards"] == ArraySpec((6,), "float32")
    assert {"task_id", "episode_id", "t", "version", "num_steps", "terminated", "truncated", "success"} < set(fields)
