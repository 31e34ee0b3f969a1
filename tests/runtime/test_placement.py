"""Where workers run: cores, GPU, interpreter."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rig import BOTH_STARTS

from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool import placement
from embodied.runtime.pool.fork_server import ForkServer


def test_examples():
    assert doctest.testmod(placement).failed == 0


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8, 9, 20])
@pytest.mark.parametrize("nodes", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1]], [[5]]])
def test_pinned_workers_lie_on_one_node_and_share_no_core_while_there_are_enough(workers, nodes):
    parts = [placement.cores_of(worker, workers, nodes) for worker in range(workers)]
    for part in parts:
        assert any(set(part) <= set(node) for node in nodes)
        assert part
    used = [core for part in parts for core in part]
    cores = sum(map(len, nodes))
    if workers <= cores:
        assert len(used) == len(set(used))
    counts = [used.count(core) for core in set(used)]
    assert max(counts) <= -(-workers // cores)


def test_nodes_are_read_from_sys(tmp_path):
    for number, cores in ((0, "0-1,4\n"), (1, "2-3\n"), (10, "\n")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores, encoding="utf-8")
    assert placement.numa_nodes({0, 2, 3, 4}, tmp_path) == [[0, 4], [2, 3]]
    assert placement.numa_nodes({0, 7}, tmp_path) == [[0, 7]], "a core that no node names: one node"
    assert placement.numa_nodes({3, 1}, tmp_path / "none") == [[1, 3]]


def test_visible_gpus(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert placement.visible_gpus({}, tmp_path) == (0, 1)
    assert placement.visible_gpus({}, tmp_path / "none") == ()
    assert placement.visible_gpus({"CUDA_VISIBLE_DEVICES": "2, 5"}, tmp_path) == (2, 5)
    assert placement.visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-8a"}, tmp_path) == ()
    assert placement.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()


def test_gpus_are_named_as_cuda_shows_them(tmp_path):
    assert placement.visible_names({}, tmp_path / "none") == ()
    (tmp_path / "0000:01:00.0").mkdir()
    assert placement.visible_names({}, tmp_path) == (0,)
    shown = {"": (), "2, 5": (2, 5), "GPU-8a,3": ("GPU-8a", 3), "MIG-1f,GPU-8a": ("MIG-1f", "GPU-8a"),
             "1,-1,2": (1,), "1,,2": (1,), "NoDevFiles": ()}  # fmt: skip
    for named, gpus in shown.items():
        assert placement.visible_names({"CUDA_VISIBLE_DEVICES": named}, tmp_path) == gpus


def test_the_number_of_a_named_gpu_is_asked_of_the_driver(tmp_path, monkeypatch):
    for place, uuid in (("0000:81:00.0", "GPU-8b22"), ("0000:01:00.0", "GPU-8a11"), ("0000:a1:00.0", "GPU-8b33")):
        (tmp_path / place).mkdir()
        text = f"Model: \t H100\nGPU UUID: \t {uuid}-0000\nDevice Minor: \t 7\n"
        (tmp_path / place / "information").write_text(text, encoding="utf-8")
    names = ("GPU-8b22-0000", "GPU-8a", "GPU-8b", "MIG-8a11", "GPU-", 7)
    assert [placement.gpu_number(name, tmp_path) for name in names] == [1, 0, None, None, None, 7]
    monkeypatch.setattr(placement.gpu_number, "__defaults__", (tmp_path,))
    egl = {0: 2, 1: 5}
    assert placement.render_environment("GPU-8b22", egl, {}) == {
        "EMBODIED_RENDER_GPU": "GPU-8b22", "MUJOCO_EGL_DEVICE_ID": "5"}  # fmt: skip
    assert placement.render_environment("MIG-1", egl, {}) == {"EMBODIED_RENDER_GPU": "MIG-1"}


def test_workers_are_told_their_gpu_as_egl_counts_it():
    egl = placement.parse_egl("0 2\n1 0\n2 -1\n3 1\n")
    told = [placement.render_environment(placement.gpu_of(worker, (0, 1, 2)), egl, {}) for worker in range(4)]
    assert [one["EMBODIED_RENDER_GPU"] for one in told] == ["0", "1", "2", "0"]
    assert [one["MUJOCO_EGL_DEVICE_ID"] for one in told] == ["1", "3", "0", "1"]
    assert placement.render_environment(7, egl, {}) == {"EMBODIED_RENDER_GPU": "7"}
    assert placement.render_environment(0, egl, {"MUJOCO_EGL_DEVICE_ID": "9"}) == {"EMBODIED_RENDER_GPU": "0"}
    assert placement.render_environment(None, egl, {}) == {}


def test_this_machines_egl_is_asked_without_harm():
    found = placement.egl_indices()
    assert len(set(found.values())) == len(found)
    assert set(found) <= set(placement.visible_gpus({}))


@BOTH_STARTS
def test_workers_find_their_gpu_and_cores(make_rig):
    rig = make_rig(workers=2, target="hosted_env.TellsItsHost", pool={"gpus": (4, 6), "pin": True})
    extras = [fact.extra for fact in rig.pool.facts]
    assert [extra["gpu"] for extra in extras] == ["4", "6"]
    assert [extra["finds envs"] for extra in extras] == ["True", "True"]
    nodes = placement.numa_nodes()
    assert [extra["cores"] for extra in extras] == [str(sorted(placement.cores_of(w, 2, nodes))) for w in range(2)]
    assert os.sched_getaffinity(rig.pool.pids[1]) == set(placement.cores_of(1, 2, nodes))


def test_what_is_imported_before_the_fork_sees_the_first_gpu(make_rig, tmp_path):
    server = ForkServer([("hosted_env.TellsItsHost", {})], tmp_path, 60.0, gpus=(4, 6))
    try:
        rig = make_rig(workers=2, target="hosted_env.TellsItsHost", pool={"gpus": (4, 6), "server": server})
        extras = [fact.extra for fact in rig.pool.facts]
    finally:
        server.close()
    assert [(extra["imported with"], extra["gpu"]) for extra in extras] == [("4", "4"), ("4", "6")]


@pytest.fixture
def other_python(tmp_path: Path) -> str:
    """An environment that has numpy and nothing else."""
    folder = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    packages = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            (site / name).symlink_to(packages / name)
    return str(folder / "bin" / "python")


@pytest.mark.parametrize("forks", [False, True], ids=["spawn", "forkserver"])
def test_workers_of_another_interpreter_need_no_more_than_numpy(make_rig, other_python, forks, request, tmp_path):
    pool = {"python": other_python}
    if forks:
        pool["server"] = ForkServer([("hosted_env.TellsItsHost", {})], tmp_path, 60.0, python=other_python)
        request.addfinalizer(pool["server"].close)
    rig = make_rig(workers=1, target="hosted_env.TellsItsHost", pool=pool)
    extra = rig.pool.facts[0].extra
    assert Path(extra["prefix"]) == Path(other_python).parents[1]
    assert extra["loaded"] == "[]"
    rig.pool.send(Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, max_steps=8))
    rig.pool.recv(1)
    rig.pool.send(Command(Kind.STEP, 0, row=0, next_row=1))
    assert rig.pool.recv(1)[0].num_steps == 4
    assert rig.slab.arrays["images"][1].any()
    own = {Path(folder) for folder in sys.path if "site-packages" in folder}
    assert not own & {Path(folder) for folder in extra["path"].split(":")}
