"""What LIBERO's simulators take of host memory, as ``benchmarks/simulator_memory.py`` measured it without a GPU.

Figures are of one camera or two of 256 pixels, a worker's anonymous memory. Each suite's tasks were built in its order:
others of its tasks take another number of textures, so that a few may take a third more or less than the first ones.
"""

from __future__ import annotations

from embodied.lib.host_memory import ForkMemory, SimulatorMemory

from .rendering import Pictures

MB = 2**20
IMPORTS = 116  # MB
TASKS = {  # MB that 1, 2, … tasks add
    "libero_object": (399, 440, 487, 552, 570, 591, 610, 628, 647, 664),
    "libero_spatial": (381, 405, 429, 451, 475, 497, 519, 543, 566, 589),
    "libero_goal": (381, 401, 421, 440, 459, 477, 497, 515, 535, 555),
    "libero_10": (535, 556, 678, 791, 1143, 1280, 1316, 1344, 1374, 1384),
    "libero_90": (535, 556, 678, 791, 1143, 1280, 1316, 1344, 1374, 1384),
}
REBUILDING = {"libero_object": 550, "libero_10": 890}  # MB, where tasks are built again and again
"""Decoded textures and meshes are kept, the heap is cut to pieces, and three tasks may be of three scenes."""
SIDE = 256  # pixels of the figures
PIXEL, PIXEL_OF_TASK = 80, 48  # bytes of a pixel: buffers of the first task, of each further one
COARSE = 60 * MB  # less where the vertices of meshes are joined in cells of 0.01 m or more
BUILDING = 1300 * MB  # resident memory beyond what stays
FILES = 195 * MB  # Python, numpy, Mesa, LLVM
DRAWN = 0.7  # share of a task's memory: textures 331 MB and display lists 36 MB of 400 and more
ADDRESSES, ADDRESSES_OF_SLOT = (1.06, 4.7, 8.0, 10.9), 1.25
"""GiB: MuJoCo reserves 1.24 for each state, of which a task has two and each further slot one."""
NOTE = "measured without a GPU, with the first tasks of each suite (benchmarks/results/simulator_memory.json)"


def host_memory(suite: str, pictures: Pictures, keeps: int) -> SimulatorMemory:
    """Returns what a worker takes.

    Args:
        suite: a perturbed one takes what LIBERO's own does.
        keeps: simulators of a worker.
    """
    base = next(name for name in TASKS if suite.startswith(name))
    pixels = pictures.width * pictures.height - SIDE**2
    coarse = COARSE if pictures.mesh_cell >= 0.01 else 0
    tasks = tuple(
        size * MB - coarse + pixels * (PIXEL + PIXEL_OF_TASK * further) for further, size in enumerate(TASKS[base])
    )
    return SimulatorMemory(
        IMPORTS * MB, tasks, slot=MB, files=FILES, building=BUILDING, keeps=keeps,
        rebuilding=REBUILDING.get(base, 550) * MB, forked=ForkMemory(34 * MB, 35 * MB, 7 * MB), drawn=DRAWN,
        addresses=tuple(int(size * 2**30) for size in ADDRESSES), slot_addresses=int(ADDRESSES_OF_SLOT * 2**30),
        keys={"keeps": "max_cached_simulators", "tasks": "task_ids"}, note=NOTE,
    )  # fmt: skip
