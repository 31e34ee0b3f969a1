"""Places a worker on its machine: its cores, the GPU it renders on, its Python.

A worker finds in its environment, unless the user has set them otherwise:

| variable | means |
|---|---|
| ``EMBODIED_RENDER_GPU`` | the GPU to render or simulate on, by nvidia-smi's number or the name that CUDA shows |
| ``MUJOCO_EGL_DEVICE_ID`` | the same GPU as EGL counts, which is another order; only where EGL tells |

Workers take the GPUs in turn. EGL says by an attribute of its devices (EGL_NV_device_cuda) which GPU each is; a device
without it (Mesa's software renderer) is none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

RENDER_VARIABLES = ("EMBODIED_RENDER_GPU", "MUJOCO_EGL_DEVICE_ID")
Gpu = int | str
"""A GPU by nvidia-smi's number, or by the name that ``CUDA_VISIBLE_DEVICES`` gives it (``GPU-UUID``, ``MIG-UUID``)."""
START = Path(__file__).with_name("start_worker.py")
NODES = Path("/sys/devices/system/node")
NVIDIA = Path("/proc/driver/nvidia/gpus")

_ASK_EGL = """
import ctypes
egl = ctypes.CDLL("libEGL.so.1")
egl.eglGetProcAddress.restype = ctypes.c_void_p
egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
def function(name, *arguments):
    address = egl.eglGetProcAddress(name)
    return ctypes.CFUNCTYPE(ctypes.c_uint, *arguments)(address) if address else exit(0)
query_devices = function(b"eglQueryDevicesEXT", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
query_attribute = function(b"eglQueryDeviceAttribEXT", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
count, devices, cuda = ctypes.c_int(), (ctypes.c_void_p * 64)(), ctypes.c_ssize_t()
query_devices(64, devices, ctypes.byref(count))
CUDA_DEVICE_NV = 0x323A
for i in range(count.value):
    known = query_attribute(devices[i], CUDA_DEVICE_NV, ctypes.byref(cuda))
    print(i, cuda.value if known else -1)
"""


def gpu_of(worker: int, gpus: Sequence[Gpu]) -> Gpu | None:
    """Returns the GPU that an env worker renders on; workers take the GPUs in turn.

    >>> [gpu_of(worker, (2, 3)) for worker in range(5)], gpu_of(0, ())
    ([2, 3, 2, 3, 2], None)
    """
    return gpus[worker % len(gpus)] if gpus else None


def gpus_of_rank(gpus: Sequence[int], rank: int, ranks: int) -> tuple[int, ...]:
    """Returns the GPUs on which a rank's workers render: every ``ranks``-th of the machine's, from its own on.

    >>> gpus_of_rank((0, 1, 2, 3), 1, 2), gpus_of_rank((0, 1), 2, 4), gpus_of_rank((), 0, 2)
    ((1, 3), (0,), ())
    """
    return tuple(gpus[rank % len(gpus) :: ranks]) if gpus else ()


def visible_gpus(environ: Mapping[str, str] = os.environ, folder: Path = NVIDIA) -> tuple[int, ...]:
    """Returns the GPUs that this process may use, as nvidia-smi counts: those in ``CUDA_VISIBLE_DEVICES``, else all of
    the driver. If the variable holds anything but numbers, returns no GPU."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return tuple(range(len([*folder.iterdir()]))) if folder.is_dir() else ()
    parts = [part.strip() for part in named.split(",")]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def visible_names(environ: Mapping[str, str] = os.environ, folder: Path = NVIDIA) -> tuple[Gpu, ...]:
    """Returns the GPUs that this process may use in the order in which CUDA counts them, which is that of
    ``CUDA_VISIBLE_DEVICES``. As for CUDA, an entry that is no GPU hides those behind it.

    >>> visible_names({"CUDA_VISIBLE_DEVICES": "5, GPU-8a, -1, 2"})
    (5, 'GPU-8a')
    """
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return visible_gpus(environ, folder)
    parts = takewhile(
        lambda part: part.isdigit() or part.startswith(("GPU-", "MIG-")), map(str.strip, named.split(","))
    )
    return tuple(int(part) if part.isdigit() else part for part in parts)


def gpu_number(gpu: Gpu, folder: Path = NVIDIA) -> int | None:
    """Returns nvidia-smi's number of a GPU, which orders GPUs by their place on the bus; None: the driver does not tell
    it, as of a part of a GPU (MIG). A name may be the beginning of one, as for CUDA."""
    if isinstance(gpu, int):
        return gpu
    told = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*/information"))]
    found = [number for number, text in enumerate(told) if re.search(rf"(?m)^GPU UUID:\s*{re.escape(gpu)}", text)]
    return found[0] if len(found) == 1 else None


def render_environment(gpu: Gpu | None, egl: Mapping[int, int], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of the table above for a worker on ``gpu``. Those that the user has set stay as they are.

    Args:
        egl: GPU → EGL's index of it.

    >>> render_environment(3, {3: 0}, {})
    {'EMBODIED_RENDER_GPU': '3', 'MUJOCO_EGL_DEVICE_ID': '0'}
    """
    if gpu is None:
        return {}
    wanted = {"EMBODIED_RENDER_GPU": str(gpu)}
    if (number := gpu_number(gpu)) is not None and number in egl:
        wanted["MUJOCO_EGL_DEVICE_ID"] = str(egl[number])
    return {name: value for name, value in wanted.items() if name not in environ}


def worker_environment(worker: int, gpus: Sequence[Gpu], python: str | None) -> dict[str, str]:
    """Returns a worker's environment: the GPU that it renders on, and one thread unless the user says otherwise, as
    there is about one worker a core.

    Args:
        python: the workers' interpreter; None = the launcher's.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    gpu = gpu_of(worker, gpus)
    rendering = render_environment(gpu, {} if gpu is None else egl_indices(), os.environ)
    environment = {**threads, **os.environ, **rendering, "PYTHONUNBUFFERED": "1"}
    if python is not None:  # these are about the launcher's interpreter
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            environment.pop(name, None)
    return environment


@cache
def egl_indices() -> dict[int, int]:
    """Returns EGL's index of each GPU; empty where EGL or the attribute is missing. EGL is asked in another process,
    since a GL library stays loaded."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_EGL], capture_output=True, text=True, timeout=60, encoding="utf-8"
        )
    except subprocess.TimeoutExpired:
        return {}
    return parse_egl(done.stdout) if done.returncode == 0 else {}


def parse_egl(lines: str) -> dict[int, int]:
    """Reads lines of ``EGL index, GPU or −1``; returns the EGL index of each GPU.

    >>> parse_egl("0 1\\n1 0\\n2 -1\\n")
    {1: 0, 0: 1}
    """
    pairs = [tuple(map(int, line.split())) for line in lines.splitlines()]
    return {gpu: index for index, gpu in pairs if gpu >= 0}


def cores_of(worker: int, workers: int, nodes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the cores of a pinned worker: an equal part of one NUMA node's where there are enough, else one core,
    which it may share with other workers.

    Args:
        nodes: the cores of each node that may be used.

    >>> nodes = [[0, 1, 2, 3], [4, 5, 6, 7]]
    >>> [cores_of(worker, 4, nodes) for worker in range(4)]
    [(0, 1), (4, 5), (2, 3), (6, 7)]
    >>> [cores_of(worker, 3, [[0, 1]]) for worker in range(3)]
    [(0,), (1,), (0,)]
    """
    node = nodes[worker % len(nodes)]
    place, sharers = worker // len(nodes), -(-(workers - worker % len(nodes)) // len(nodes))
    if sharers >= len(node):
        return (node[place % len(node)],)
    each = len(node) // sharers
    return tuple(node[place * each : (place + 1) * each])


def numa_nodes(allowed: set[int] | None = None, folder: Path = NODES) -> list[list[int]]:
    """Returns the cores that this process may use, by NUMA node; one node where the kernel does not tell."""
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    files = sorted(folder.glob("node[0-9]*/cpulist"), key=lambda file: int(file.parent.name.removeprefix("node")))
    nodes = [sorted(parse_cpulist(file.read_text(encoding="utf-8")) & allowed) for file in files]
    known = {core for node in nodes for core in node}
    return [node for node in nodes if node] if known == allowed else [sorted(allowed)]


def parse_cpulist(text: str) -> set[int]:
    """Reads the kernel's notation of a set of cores.

    >>> sorted(parse_cpulist("0-2,8\\n"))
    [0, 1, 2, 8]
    """
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def module_folders(python: str | None, sys_path: Sequence[str], prefixes: Sequence[str]) -> tuple[str, ...]:
    """Returns folders of the launcher's ``sys.path`` in which a worker looks for the user's env class, after its own.

    Another interpreter gets project folders alone: the launcher's packages may be built for another version.

    >>> module_folders("/other/bin/python", ["/home/me/project", "/venv/lib/site-packages"], ["/venv"])
    ('/home/me/project',)
    """
    folders = [os.path.abspath(folder) for folder in sys_path]
    if python is None:
        return tuple(folders)
    roots = [os.path.abspath(prefix) for prefix in prefixes]
    return tuple(
        folder
        for folder in folders
        if "site-packages" not in folder
        and "dist-packages" not in folder
        and not any(os.path.commonpath([folder, root]) == root for root in roots)
    )


def slots_of(worker: int, slots: int, workers: int, batch: bool) -> tuple[int, ...]:
    """The slots that a worker hosts. Neighbouring slots lie on different workers, so that each worker has some of any
    first part of the slots. Those of a batch lie together, so that half of the workers make one of two stages."""
    if batch:
        return tuple(range(worker * slots // workers, (worker + 1) * slots // workers))
    return tuple(range(worker, slots, workers))


def slots_by_share(worker: int, slots: int, shares: Sequence[int], batch: bool) -> tuple[int, ...]:
    """The slots that a worker hosts, in proportion to the shares of all workers.

    >>> [slots_by_share(worker, 6, (2, 4), False) for worker in range(2)], slots_by_share(1, 3, (2, 4), True)
    ([(1, 4), (0, 2, 3, 5)], (1, 2))
    """
    owners: list[int] = []
    for _ in range(slots):
        owners.append(min(range(len(shares)), key=lambda one: (owners.count(one) + 1) / shares[one]))
    owners = sorted(owners) if batch else owners
    return tuple(slot for slot, owner in enumerate(owners) if owner == worker)
