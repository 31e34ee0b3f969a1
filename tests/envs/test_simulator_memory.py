"""What simulators leave in memory: MuJoCo's leftovers of a build, pages that are given back."""

import ctypes
import mmap
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from embodied.envs.libero import memory
from embodied.envs.shared.memory import release, unreserve

from embodied.errors import ConfigError

pytestmark = pytest.mark.sim
MB = 2**20


def test_released_pages_read_as_zero_and_their_neighbours_stay():
    pages = np.full(4 * mmap.PAGESIZE, 7, np.uint8)
    release(pages[100:-100])
    first = -(pages.ctypes.data + 100) % mmap.PAGESIZE + 100
    last = len(pages) - 100 - (pages.ctypes.data + len(pages) - 100) % mmap.PAGESIZE
    assert (pages[:first] == 7).all()
    assert (pages[last:] == 7).all()
    assert last - first >= 2 * mmap.PAGESIZE
    assert not pages[first:last].any()


def flags_at(address):
    """What the kernel notes of the memory at an address: ``ac`` = it is promised."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    ranges = [n for n, line in enumerate(lines) if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line)]
    for first, end in zip(ranges, [*ranges[1:], len(lines)], strict=True):
        low, high = (int(part, 16) for part in lines[first].split()[0].split("-"))
        if low <= address < high:
            return next(line for line in lines[first:end] if line.startswith("VmFlags")).split()[1:]
    raise AssertionError("no memory is there")


@pytest.fixture
def block():
    """A block of 256 MiB, written at both ends and freed as its maker frees it."""
    library = ctypes.CDLL(None)
    library.aligned_alloc.restype, library.aligned_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
    library.free.argtypes = [ctypes.c_void_p]
    address = library.aligned_alloc(64, 256 * MB)
    ctypes.memset(address, 7, 10_000)
    ctypes.memset(address + 256 * MB - 10_000, 7, 10_000)
    yield address
    library.free(address)
    with pytest.raises(AssertionError):
        flags_at(address + 128 * MB)


def test_a_reserve_is_not_promised_and_its_beginning_stays(block):
    assert "ac" in flags_at(block + MB)
    assert unreserve(block, 256 * MB, 10_000)
    assert "ac" not in flags_at(block + MB)
    assert ctypes.string_at(block, 10_000) == bytes([7]) * 10_000
    assert ctypes.string_at(block + 128 * MB, 100) == bytes(100)
    ctypes.memset(block + MB, 1, MB)  # it can be written to as before
    assert ctypes.string_at(block + 2 * MB - 1, 2) == b"\x01\x00"


@pytest.mark.parametrize(("shift", "size"), [(MB, 100 * MB), (0, 100 * MB), (0, 300 * MB), (-64, 256 * MB)])
def test_what_is_no_whole_block_is_left_as_it_is(block, shift, size):
    assert not unreserve(block + shift, size, 100)
    assert "ac" in flags_at(block + 2 * MB)
    assert not unreserve(0, size, 100)


def test_a_function_that_mujoco_lacks_is_skipped_and_said(sim, monkeypatch):
    assert memory.unknown_functions() is None
    assert "memory" not in sim.prepare().extra
    have = memory.function
    monkeypatch.setattr(memory, "function", lambda name, result=None: None if "Last" in name else have(name, result))
    memory.free_description()
    assert memory.unknown_functions() == (
        "this mujoco has no mj_freeLastXML: a worker keeps the description of the scene that was built last, "
        "about 400 MB"
    )
    monkeypatch.setattr(memory, "function", lambda name, result=None: None)
    memory.free_assets()
    assert "mj_getCache, mj_clearCache" in memory.unknown_functions()


def test_the_doctor_shows_what_stays_in_memory(sim, monkeypatch):
    from embodied.envs.libero import process

    monkeypatch.setattr(process, "unknown_functions", lambda: "this mujoco has no mj_freeLastXML")
    assert sim._try_imports().extra["memory"] == "this mujoco has no mj_freeLastXML"


BUILT = """
import json
import re
from pathlib import Path
from types import SimpleNamespace
from embodied.envs.libero import LiberoEnv, memory
from embodied.types import Start

def promised():
    text = Path("/proc/self/smaps").read_text(encoding="utf-8")
    parts = re.findall(r"^Size: *([0-9]+) kB$.*?^VmFlags:([a-z ]*)$", text, re.M | re.S)
    return sum(int(size) for size, flags in parts if " ac" in flags) / 1024

def anonymous():
    text = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return int(re.search(r"Pss_Anon: *([0-9]+)", text)[1]) / 1024

env = LiberoEnv("libero_object", task_ids=[0], init_params={"camera_heights": 64, "camera_widths": 64})
env.prepare()
before, promised_before = anonymous(), promised()
env.reset(Start(0, 0, 0))
built, most = anonymous(), promised() - promised_before
size = memory.function("mj_getCacheSize", memory.ctypes.c_size_t)
cached = size(memory.ctypes.c_void_p(memory.function("mj_getCache", memory.ctypes.c_void_p)()))
env.frame()
model, drawn = env._current._model, env._current._offscreen._context
print(json.dumps({"built": built - before, "promised": most, "cached": cached, "drawn": anonymous() - before,
                  "casts": bool(model.light_castshadow.any()), "shadow": drawn.shadowSize}))
"""


@pytest.fixture(scope="module")
def built(sim):
    """MB that the first task takes, in a process of its own."""
    import json

    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILT],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_build_leaves_the_model_and_little_else(built):
    assert built["built"] < 350, "the model is 259 MB; with MuJoCo's leftovers it was 1100"
    assert built["cached"] == 0


def test_a_task_is_not_promised_what_mujoco_reserves(built):
    assert built["promised"] < 1500, "MuJoCo reserves 2,600 MB of a task, of which it uses next to nothing"


def test_no_shadow_map_is_made_where_no_light_casts_shadows(built):
    assert not built["casts"]
    assert built["shadow"] == 0


def test_a_mujoco_without_polygons_gives_back_what_it_has():
    """As 3.2, whose meshes have vertices and triangles alone."""
    model = SimpleNamespace(
        nmesh=1, nplugin=0, nflex=0, sensor_type=np.zeros(0, int), geom_contype=np.zeros(1, int),
        geom_conaffinity=np.zeros(1, int), pair_geom1=np.zeros(0, int), pair_geom2=np.zeros(0, int),
        geom_dataid=np.zeros(1, int), mesh_vertadr=np.zeros(1, int), mesh_vertnum=np.full(1, 9000),
        mesh_vert=np.ones((9000, 3), np.float32),
    )  # fmt: skip
    memory.release_drawn(model)
    assert not model.mesh_vert[2000:7000].any()


def test_a_task_that_gets_no_memory_says_what_helps(monkeypatch):
    limits = [(8 * 2**30, 8 * 2**30), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.pop(0))
    for error, words, fix in (
        (ValueError("Error: engine error: Could not allocate memory"), "8.59 GB of addresses", "ulimit -v unlimited"),
        (MemoryError(), "the task soup", "env.num_workers"),
    ):
        with pytest.raises(ConfigError) as failed, memory.explained("soup"):
            raise error
        assert words in failed.value.message
        assert fix in failed.value.remedy
    with pytest.raises(ValueError, match="a mesh is wrong"), memory.explained("soup"):
        raise ValueError("a mesh is wrong")
