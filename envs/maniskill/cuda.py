"""Finds out whether ManiSkill can simulate on a GPU here, and which GPU a worker should use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from embodied.errors import AssetsMissingError, ConfigError

from ..shared.machine import try_in_process

SIM_BACKENDS = ("auto", "cpu", "gpu")
REMEDY = "set env.train.sim_backend=cpu and env.eval.sim_backend=cpu"
NAMED = ("GPU-", "MIG-")
"""How names of GPUs begin in CUDA_VISIBLE_DEVICES. As for CUDA, another word hides what is behind it."""
_DRIVER = Path("/proc/driver/nvidia/gpus")
_LIBRARY = "libPhysXGpu_64.so"
_TRIAL = f"""
import pathlib
import torch
if not torch.cuda.is_available():
    raise RuntimeError(f"torch {{torch.__version__}} finds no CUDA GPU")
import sapien, sapien.physx
if not hasattr(sapien.physx, "enable_gpu"):
    raise RuntimeError(f"sapien {{sapien.__version__}} has no GPU simulation")
library = pathlib.Path.home() / ".sapien" / "physx" / sapien.physx.version() / "{_LIBRARY}"
if not library.exists():
    raise FileNotFoundError(f"there is no {{library}}")
sapien.physx.enable_gpu()
sapien.Device("cuda")
print("CUDA_DEVICE=" + torch.cuda.get_device_name(0))
"""


def wants_gpu(sim_backend: str, rebuilds: bool, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a task is simulated on a GPU. Imports nothing.

    "auto" says yes if NVIDIA's driver shows a GPU, torch was built for it, and the task can be simulated there.

    Args:
        rebuilds: the task builds another scene for each start.
    """
    if sim_backend != "auto":
        return sim_backend == "gpu"
    visible = _DRIVER.is_dir() and any(_DRIVER.iterdir()) and environ.get("CUDA_VISIBLE_DEVICES", "0").strip() != ""
    return visible and not rebuilds and _torch_has_cuda()


def _torch_has_cuda() -> bool:
    spec = find_spec("torch")
    return spec is not None and spec.origin is not None and any(Path(spec.origin).parent.glob("lib/libtorch_cuda*"))


def check_cuda() -> str:
    """Tries GPU simulation in a child process and returns the GPU's name. Takes some seconds.

    Raises:
        AssetsMissingError: SAPIEN's library for GPU simulation was not downloaded; each worker would do it.
        ConfigError: there is no CUDA GPU, or a version that cannot use it.
    """
    ok, text = try_in_process(_TRIAL, (), {}, "CUDA_DEVICE=")
    if ok:
        return text
    text = text.partition("Error: ")[2] or text
    if text.startswith("there is no"):
        raise AssetsMissingError(
            f"GPU simulation needs PhysX's library: {text}",
            'python -c "import sapien.physx; sapien.physx.enable_gpu()" (downloads it)',
        )
    raise ConfigError(f"ManiSkill cannot simulate on a GPU here: {text}", f"{REMEDY}, or run on a machine with one")


def device_of(environ: Mapping[str, str] = os.environ) -> str:
    """Names the GPU that this worker was given (``EMBODIED_RENDER_GPU``), as torch counts.

    >>> device_of({}), device_of({"EMBODIED_RENDER_GPU": "3"})
    ('cuda:0', 'cuda:3')
    >>> device_of({"EMBODIED_RENDER_GPU": "3", "CUDA_VISIBLE_DEVICES": "2,3"})
    'cuda:1'

    Raises:
        ConfigError: CUDA does not show that GPU.
    """
    gpu, shown = environ.get("EMBODIED_RENDER_GPU", ""), environ.get("CUDA_VISIBLE_DEVICES")
    if not gpu or shown is None:
        return f"cuda:{gpu or 0}"
    visible = list(takewhile(lambda name: name.isdigit() or name[:4] in NAMED, map(str.strip, shown.split(","))))
    if gpu in visible:
        return f"cuda:{visible.index(gpu)}"
    raise ConfigError(
        f"env.render_gpus (or EMBODIED_RENDER_GPU) names GPU {gpu}, and CUDA_VISIBLE_DEVICES={shown} hides it",
        "unset CUDA_VISIBLE_DEVICES, or let it show that GPU" if not visible
        else f"name one of {', '.join(visible)}" if all(map(str.isdigit, visible))
        else "let CUDA_VISIBLE_DEVICES hold nvidia-smi's numbers in place of names, or leave env.render_gpus out",
    )  # fmt: skip


def renderer_of(renderer: str, environ: Mapping[str, str] = os.environ) -> str:
    """Names ManiSkill's render backend on the GPU that this worker was given.

    >>> renderer_of("gpu", {"EMBODIED_RENDER_GPU": "3"}), renderer_of("gpu", {})
    ('sapien_cuda:3', 'gpu')
    >>> renderer_of("cpu", {"EMBODIED_RENDER_GPU": "3"})
    'cpu'
    """
    return f"sapien_{device_of(environ)}" if renderer == "gpu" and environ.get("EMBODIED_RENDER_GPU") else renderer
