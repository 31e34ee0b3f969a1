"""What ManiSkill's CPU simulation takes of host memory, as it was measured without a GPU: anonymous memory of a worker,
and the driver's shared memory."""

from __future__ import annotations

from embodied.lib.host_memory import ForkMemory, SimulatorMemory

MB = 2**20
IMPORTS = 253  # MB, with torch and sapien
SCENES = {
    "PickCube-v1": 216, "PushCube-v1": 195, "PullCube-v1": 181, "StackCube-v1": 380, "PegInsertionSide-v1": 381,
    "LiftPegUpright-v1": 216, "PlaceSphere-v1": 204, "RollBall-v1": 205,
}  # fmt: skip
"""MB that the first slot of a task adds, with one camera of 128 pixels."""
SIDE, PIXEL = 128, 55  # pixels of the figures; bytes of each one more
SLOT = 4 * MB  # a further slot of a worker
BUILDING = 160 * MB  # resident memory beyond what stays
FILES = 233 * MB
ADDRESSES = (1.3, 2.6, 2.6)  # GiB


def host_memory(task: str, pixels: int) -> SimulatorMemory:
    """Returns what a worker takes, however many instructions the task has: one scene a slot.

    Args:
        pixels: of all cameras of an observation.
    """
    more = PIXEL * (pixels - SIDE**2)
    scene = SCENES.get(task, max(SCENES.values())) * MB + more
    known = "" if task in SCENES else f"; {task} was not, and counts as the largest of {', '.join(sorted(SCENES))}"
    return SimulatorMemory(
        IMPORTS * MB, (scene, scene), slot=SLOT + max(0, more), files=FILES, building=BUILDING, keeps=1,
        forked=ForkMemory(24 * MB), addresses=tuple(int(size * 2**30) for size in ADDRESSES),
        note=f"measured without a GPU (benchmarks/results/simulator_memory.json){known}",
    )  # fmt: skip
