"""Compiles each transformer block: the norms, rotations and activations between the matrix products become one kernel
each. Blocks of one kind share their code, so each kind is compiled once, however deep the network is.

A compiled block is made for its shapes. Batches are therefore filled up to the next power of two (:func:`filled`), and
prompts have one length in a run; then a run needs at most one compilation a kind, power of two, and with or without
gradients.
"""

from __future__ import annotations

import os
import shutil

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, unknown_name

VARIANTS = 64  # of one block's code: two widths x gradients or none x powers of two up to 32768


def compile_blocks(module: nn.Module, names: tuple[str, ...], backend: str) -> None:
    """Compiles every submodule whose class is one of ``names``, in place. Parameters keep their names.

    Raises:
        ConfigError: there is no such backend, or no compiler for it.
    """
    _check(backend)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    for block in module.modules():
        if type(block).__name__ in names:
            block.compile(backend=backend, dynamic=False)


def _check(backend: str) -> None:
    known = torch._dynamo.list_backends(exclude_tags=())
    if backend not in known:
        raise unknown_name("torch_compile_backend", backend, known, "actor.model.torch_compile_backend")
    compiler = os.environ.get("CXX", "g++")
    if backend == "inductor" and not torch.cuda.is_available() and shutil.which(compiler) is None:
        raise ConfigError(
            f"actor.model.torch_compile: there is neither a GPU nor the C++ compiler '{compiler}'",
            "set actor.model.torch_compile=false, or install g++ (or set CXX)",
        )


def bucket(rows: int) -> int:
    """Rounds ``rows`` up to a power of two."""
    return 1 << (rows - 1).bit_length()


def filled(values: Tensor, rows: int) -> Tensor:
    """Repeats the last row of ``values`` [B, …]: [rows, …]."""
    missing = rows - len(values)
    return values if missing == 0 else torch.cat([values, values[-1:].expand(missing, *values.shape[1:])])
