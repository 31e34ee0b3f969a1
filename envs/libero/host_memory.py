"""What LIBERO's simulators take of host memory, as ``benchmarks/simulator_tables.py`` measured it without a GPU.

Figures are a worker's anonymous memory with one camera or two of 256 pixels. The tasks of a suite were built in its
order, of libero_90 every ninth: others of its tasks have other textures, so that a few of them may take a third more or
less than the first ones.
"""

from __future__ import annotations

from embodied.lib.host_memory import ForkMemory, SimulatorMemory

from .files import PLUS
from .rendering import Pictures

MB = 2**20
IMPORTS = 116  # MB
TASKS = {  # MB that 1, 2, … tasks add
    "libero_object": (399, 440, 487, 552, 570, 591, 610, 628, 647, 664),
    "libero_spatial": (381, 405, 429, 451, 475, 497, 519, 543, 566, 589),
    "libero_goal": (381, 401, 421, 440, 459, 477, 497, 515, 535, 555),
    "libero_10": (535, 556, 678, 791, 1143, 1280, 1316, 1344, 1374, 1384),
    "libero_90": (318, 413, 456, 483, 589, 622, 1049, 1111, 1288, 1424),
}
REBUILDING = {"libero_spatial": 306, "libero_goal": 304, "libero_object": 550, "libero_10": 940, "libero_90": 1100}
"""MB more where tasks are built again and again: decoded textures and meshes are kept, the heap is cut to pieces, and
the tasks that are kept may be of three scenes."""
SIDE = 256  # pixels of the figures
PIXEL, PIXEL_OF_TASK = 80, 48  # bytes of a pixel: buffers of the first task, of each further one
COARSE = 60 * MB  # less where the vertices of meshes are joined in cells of 0.01 m or more
BUILDING = 1300 * MB  # resident memory beyond what stays
FILES = 195 * MB  # Python, numpy, Mesa, LLVM
FORKED = ForkMemory(34 * MB, 41 * MB, int(7.3 * MB), built=True)
"""``benchmarks/simulator_forks.py``: 48 MB with one task, 65 with three, 110 with ten of libero_object."""
DRAWN = 0.7  # share of a task's memory: textures 331 MB and display lists 36 MB of 400 and more
ADDRESSES, ADDRESSES_OF_SLOT = (1.06, 5.0, 8.3, 11.0), 1.25
"""GiB: MuJoCo reserves 1.24 for each state, of which a task has two and each further slot one."""
NOTE = "measured without a GPU, with the first tasks of each suite (benchmarks/results/simulator_memory.json)"


def host_memory(suite: str, pictures: Pictures, keeps: int) -> SimulatorMemory:
    """Returns what a worker takes.

    Args:
        suite: a perturbed one takes what LIBERO's own does.
        keeps: simulators of a worker.
    """
    base = next(name for name in TASKS if PLUS.get(suite, suite).startswith(name))
    pixels = pictures.width * pictures.height - SIDE**2
    coarse = COARSE if pictures.mesh_cell >= 0.01 else 0
    tasks = tuple(
        size * MB - coarse + pixels * (PIXEL + PIXEL_OF_TASK * further) for further, size in enumerate(TASKS[base])
    )
    return SimulatorMemory(
        IMPORTS * MB, tasks, slot=MB, files=FILES, building=BUILDING, keeps=keeps,
        rebuilding=REBUILDING[base] * MB, forked=FORKED, drawn=DRAWN,
        addresses=tuple(int(size * 2**30) for size in ADDRESSES), slot_addresses=int(ADDRESSES_OF_SLOT * 2**30),
        keys={"keeps": "max_cached_simulators", "tasks": "task_ids"}, note=NOTE,
    )  # fmt: skip
