"""Compiles each transformer block: the norms, rotations and activations between the matrix products become one kernel
each. Blocks of one kind share their code, so each kind is compiled once, however deep the network is.

A compiled block is made for its shapes. Batches are therefore filled up to the next power of two (:func:`filled`), and
prompts have one length in a run; then a run needs at most one compilation a kind, power of two, and with or without
gradients.

Acting and learning may differ in whether they are compiled. Blocks rest as learning calls them, because a backward pass
calls them again to recompute activations; acting switches them for the length of a call.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, unknown_name

VARIANTS = 64  # variants of one block's code: two widths x gradients or none x powers of two up to 32768


class CompiledBlocks:
    """Compiles every submodule whose class is one of ``names``, in place. Parameters keep their names.

    Args:
        on: whether calls outside :meth:`switched` run compiled.

    Raises:
        ConfigError: there is no such backend, or no compiler for it.
    """

    def __init__(self, module: nn.Module, names: tuple[str, ...], backend: str, on: bool) -> None:
        _check(backend)
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
        self._blocks = [block for block in module.modules() if type(block).__name__ in names]
        for block in self._blocks:
            block.compile(backend=backend, dynamic=False)
        self._calls = [block._compiled_call_impl for block in self._blocks]
        self._on = True
        self._set(on)

    @property
    def on(self) -> bool:
        """Whether calls run compiled now."""
        return self._on

    @contextmanager
    def switched(self, on: bool) -> Iterator[None]:
        """Context in which calls run compiled, or as they are."""
        before = self._on
        self._set(on)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, on: bool) -> None:
        if on != self._on:
            for block, call in zip(self._blocks, self._calls, strict=True):
                block._compiled_call_impl = call if on else None
        self._on = on


def _check(backend: str) -> None:
    known = torch._dynamo.list_backends(exclude_tags=())
    if backend not in known:
        raise unknown_name("torch_compile_backend", backend, known, "actor.model.torch_compile_backend")
    compiler = os.environ.get("CXX", "g++")
    if backend == "inductor" and not torch.cuda.is_available() and shutil.which(compiler) is None:
        raise ConfigError(
            f"layers cannot be compiled: there is neither a GPU nor the C++ compiler '{compiler}'",
            "set actor.model.torch_compile=false rollout.use_torch_compile=false, or install g++ (or set CXX)",
        )


def bucket(rows: int) -> int:
    """Rounds a number of rows up to a power of two."""
    return 1 << (rows - 1).bit_length()


def filled(values: Tensor, rows: int) -> Tensor:
    """Pads ``values`` [B, …] by its last row: [rows, …]."""
    missing = rows - len(values)
    return values if missing == 0 else torch.cat([values, values[-1:].expand(missing, *values.shape[1:])])
