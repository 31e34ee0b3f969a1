"""Reads a written program and runs it on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from embodied.errors import CheckpointError, ConfigError, EmbodiedError

from .archive import check_archive
from .facts import FORMATS, OUTPUTS
from .faster import FastProgram


class Program(Protocol):
    """Interface of an exported program: it is called with tensors and returns tensors."""

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run it.

        Args:
            inputs: on the CPU, by name, in the order of :data:`.facts.INPUTS`.

        Returns:
            its outputs by name.
        """
        ...


def open_program(
    kind: str, folder: Path, threads: int | None = None, outputs: Sequence[str] = OUTPUTS
) -> Program:  # fmt: skip
    """Read the program of a folder whose files were compared with its ``program.json``.

    Args:
        kind: a key of :data:`.facts.FORMATS`.
        threads: of onnxruntime; None = as many as torch has. The other formats have torch's.
        outputs: the names of what it returns, in their order.

    Raises:
        CheckpointError: the file is damaged, or holds what a program does not need.
        ConfigError: a package is missing.
    """
    path = folder / FORMATS[kind][0]
    try:
        if kind == "onnx":
            return OnnxProgram(path, torch.get_num_threads() if threads is None else threads, outputs)
        return TracedProgram(path, outputs) if kind == "torch_export" else CompiledProgram(path, outputs)
    except EmbodiedError:
        raise
    except Exception as error:  # each reader has errors of its own
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{path} cannot be read: {type(error).__name__}: {reason}",
            f"export the checkpoint again; torch here is {torch.__version__}",
        ) from error


class TracedProgram:
    """Runs a program of torch.export."""

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        self._outputs = outputs
        check_archive(path)
        # torch.export.load would go on to older formats, which are unpickled.
        from torch.export.pt2_archive._package import load_pt2

        self._run = FastProgram(load_pt2(str(path)).exported_programs["model"])

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._outputs, self._run(inputs), strict=True))


class CompiledProgram:
    """Runs a package of AOTInductor: machine code."""

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        self._outputs = outputs
        import torch._inductor

        self._run: Any = torch._inductor.aoti_load_package(str(path))

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._outputs, self._run(*inputs.values()), strict=True))


class OnnxProgram:
    """Runs a program of ONNX, by onnxruntime."""

    def __init__(self, path: Path, threads: int, outputs: Sequence[str]) -> None:
        self._outputs = [*outputs]
        if importlib.util.find_spec("onnxruntime") is None:
            raise ConfigError(
                f"{path} needs the package onnxruntime", "pip install 'embodied-rl[export]', or onnxruntime alone"
            )
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others use these cores, too
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = self._session.run(self._outputs, {name: values.numpy() for name, values in inputs.items()})
        return {name: torch.from_numpy(values) for name, values in zip(self._outputs, found, strict=True)}
