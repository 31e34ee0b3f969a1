"""CUDA, flash-attn and NCCL. Imports torch, so it runs in a process of its own."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from embodied.doctor.findings import Finding, gib
from embodied.lib.child import Child, how_it_ended, reap
from embodied.runtime.pool.placement import NVIDIA

CUDA_TORCH = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
FLASH_ATTN = "pip install --force-reinstall --no-build-isolation flash-attn"
NO_GPU = "torch finds no GPU here"
BUSY = 0.1  # share of a GPU's memory that others may hold
PEERS_S = 40.0


def devices(wanted: str = "auto", asked_flash: bool = False) -> Iterator[Finding]:
    """Checks everything that needs a GPU: driver, torch, memory, flash-attn, NCCL.

    Args:
        wanted: ``runner.device``.
        asked_flash: whether the configuration asks for the package flash-attn.
    """
    import torch

    yield from cuda(torch, wanted, NVIDIA.is_dir() and any(NVIDIA.iterdir()))
    yield from flash_attention(torch, asked_flash)
    yield from peers(torch)


def cuda(torch: Any, wanted: str, driver: bool) -> Iterator[Finding]:
    """Checks whether torch computes on each GPU, and whether other processes hold their memory.

    Args:
        driver: whether NVIDIA's driver shows a GPU.
    """
    version, built = torch.__version__, torch.version.cuda
    if wanted == "cpu":
        yield Finding("CUDA", "skipped", f"runner.device is cpu; torch {version}")
        return
    if not torch.cuda.is_available():
        if driver and not built:
            yield Finding(
                "CUDA", "fail", f"this machine has a GPU, and torch {version} is a build for CPUs", CUDA_TORCH
            )
        elif driver:
            fix = f"install a driver for CUDA {built} or newer (nvidia-smi says its own), or an older build of torch"
            found = f"this machine has a GPU, and torch {version} (CUDA {built}) finds none"
            if (shown := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
                found += f"; CUDA_VISIBLE_DEVICES is '{shown}'"
                fix = f"unset CUDA_VISIBLE_DEVICES, or name GPUs that nvidia-smi -L lists; else {fix}"
            yield Finding("CUDA", "fail", found, fix)
        elif wanted.startswith("cuda"):
            fix = "set runner.device=auto, or run on a machine with a GPU and its driver"
            yield Finding("CUDA", "fail", f"runner.device is {wanted}, and this machine has no GPU", fix)
        else:
            yield Finding("CUDA", "skipped", f"this machine has no GPU (no {NVIDIA}); torch {version} uses the CPU")
        return
    for number in range(torch.cuda.device_count()):
        yield _gpu(torch, number)


def _gpu(torch: Any, number: int) -> Finding:
    about = torch.cuda.get_device_properties(number)
    name, said = f"GPU {number}", f"{about.name}, capability {about.major}.{about.minor}"
    try:
        ones = torch.ones(64, 64, device=f"cuda:{number}")
        right = float((ones @ ones).sum()) == 64**3
        free, total = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        wrong = f"{said}: {str(error).splitlines()[0]}"
        fix = f"install a torch that is built for it ({CUDA_TORCH}); if it is in use or broken, see nvidia-smi"
        return Finding(name, "fail", wrong, fix)
    if not right:
        fix = "take this GPU out (CUDA_VISIBLE_DEVICES), and look for its errors: nvidia-smi -q, dmesg"
        return Finding(name, "fail", f"{said} computes wrong numbers", fix)
    said += f", {gib(free)} of {gib(total)} free"
    if free < (1 - BUSY) * total:
        fix = "end the processes that nvidia-smi lists, or choose another GPU: CUDA_VISIBLE_DEVICES=N"
        return Finding(name, "warn", f"{said}: others hold the rest", fix)
    return Finding(name, "ok", f"{said}, torch {torch.__version__} (CUDA {torch.version.cuda})")


def flash_attention(torch: Any, asked: bool, installed: bool | None = None) -> Iterator[Finding]:
    """Checks whether the package flash-attn computes."""
    installed = find_spec("flash_attn") is not None if installed is None else installed
    if asked and not installed:
        fix = "pip install flash-attn --no-build-isolation; or set actor.model.attn_implementation=sdpa"
        yield Finding("flash-attn", "fail", "actor.model.attn_implementation asks for it; it is not installed", fix)
    elif not torch.cuda.is_available():
        what = "is installed" if installed else "is not installed"
        yield Finding("flash-attn", "skipped", f"{NO_GPU}, and it needs one; it {what}")
    elif not installed:
        yield Finding("flash-attn", "ok", "not installed and not needed: sdpa has a flash kernel, too")
    else:
        yield _flash_kernel(torch)


def _flash_kernel(torch: Any) -> Finding:
    try:
        package = importlib.import_module("flash_attn")
        x = torch.ones(1, 16, 2, 64, dtype=torch.bfloat16, device="cuda")
        package.flash_attn_func(x, x, x)
        torch.cuda.synchronize()
    except (ImportError, RuntimeError) as error:
        fix = f"build it anew for this torch: {FLASH_ATTN}; or set actor.model.attn_implementation=sdpa"
        return Finding("flash-attn", "fail", f"it does not work: {str(error).splitlines()[0]}", fix)
    return Finding("flash-attn", "ok", f"version {package.__version__} computes")


def peers(torch: Any, backend: str = "nccl") -> Iterator[Finding]:
    """Checks whether the GPUs of this machine reach each other, and add numbers up over NCCL."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        yield Finding("NCCL", "skipped", NO_GPU if not count else "there is one GPU, which has no peer")
        return
    if not torch.distributed.is_nccl_available():
        yield Finding("NCCL", "fail", f"torch {torch.__version__} was built without it", CUDA_TORCH)
        return
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    apart = [f"{a}–{b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    if apart:
        fix = "nvidia-smi topo -m says how they are connected; peer access may be forbidden by IOMMU or ACS"
        yield Finding("GPU peers", "warn", f"GPUs {', '.join(apart)} exchange through the host's memory", fix)
    yield together(count, backend)


def together(count: int, backend: str, limit_s: float = PEERS_S) -> Finding:
    """Checks collectives: starts a process for each GPU, which add their ranks up
    (:mod:`embodied.doctor.checks.peers`)."""
    with tempfile.TemporaryDirectory() as folder:
        meeting, started = Path(folder) / "meeting", []
        for rank in range(count):
            with (Path(folder) / f"{rank}.log").open("wb") as log:
                command = [
                    sys.executable,
                    "-m",
                    "embodied.doctor.checks.peers",
                    str(rank),
                    str(count),
                    str(meeting),
                    backend,
                ]
                started.append(Child(command, session=False, stdout=log, stderr=log))  # the check ends it, too
        until = time.monotonic() + limit_s
        try:
            codes: list[int | None] = [process.wait(max(0.0, until - time.monotonic())) for process in started]
        except TimeoutExpired:
            codes = [process.poll() for process in started]
        finally:
            for process in started:
                process.kill()
            reap(started)
        return _met(codes, backend, [Path(folder) / f"{rank}.log" for rank in range(count)], limit_s)


def _met(codes: Sequence[int | None], backend: str, logs: Sequence[Path], limit_s: float) -> Finding:
    wrong = [rank for rank, code in enumerate(codes) if code != 0]
    if not wrong:
        return Finding("NCCL", "ok", f"{len(codes)} processes added numbers up over {backend}")
    failed = [rank for rank in wrong if codes[rank] is not None] or wrong
    code, lines = codes[failed[0]], logs[failed[0]].read_text(errors="replace", encoding="utf-8").strip().splitlines()
    how = f"did not answer within {limit_s:g} s" if code is None else how_it_ended(code)
    return Finding(
        "NCCL", "fail", f"rank {failed[0]} of {len(codes)} over {backend} {how}: {lines[-1] if lines else 'no word'}",
        "see why with NCCL_DEBUG=INFO; often /dev/shm is small (docker run --shm-size=8g), or a virtual machine "
        "forbids peer access (NCCL_P2P_DISABLE=1)",
    )  # fmt: skip
