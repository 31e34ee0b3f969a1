"""Traces a module and writes it as a program."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from embodied.errors import ConfigError

from .facts import FORMATS, INPUTS, OUTPUTS
from .int8 import num_bytes

ONE_FILE = 10**9  # bytes of weights up to which an ONNX program is one file; the format ends at 2 GiB
MOST_ROWS = 4096
LEAST_TOKENS = 4
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def check_tools(kind: str) -> None:
    """Raises ConfigError if this machine lacks the packages that write ``kind``, with what to install."""
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if kind == "onnx" and missing:
        raise ConfigError(f"--format onnx needs the packages {', '.join(missing)}", "pip install 'embodied-rl[export]'")
    compiler = os.environ.get("CXX", "g++")
    if kind == "aoti" and shutil.which(compiler) is None:
        raise ConfigError(
            f"--format aoti compiles the program, and there is no C++ compiler '{compiler}'",
            "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX; torch_export and onnx need none",
        )


def trace(module: nn.Module, inputs: Mapping[str, Tensor], most_tokens: int) -> ExportedProgram:
    """Traces ``module(*inputs)`` for any number of rows and any length of the prompt.

    The module is called once before. So what it keeps between calls (small constants) is made of real tensors.

    Args:
        inputs: by the names of :data:`.facts.INPUTS`, in that order, with at least 2 rows.
    """
    axes = {"batch": Dim("batch", min=1, max=MOST_ROWS), "length": Dim("length", min=LEAST_TOKENS, max=most_tokens)}
    shapes = tuple({place: axes[name] for place, name in enumerate(INPUTS[given])} for given in inputs)
    module.eval().requires_grad_(False)
    with torch.no_grad():
        module(*inputs.values())
        return torch.export.export(module, tuple(inputs.values()), dynamic_shapes=shapes, strict=False)


def write(
    kind: str, module: nn.Module, inputs: Mapping[str, Tensor], most_tokens: int, folder: Path,
    outputs: Sequence[str] = OUTPUTS,
) -> list[str]:  # fmt: skip
    """Traces ``module`` and writes the program; returns the names of the files.

    Args:
        kind: a key of :data:`.facts.FORMATS`.
        outputs: names of the tensors that the module returns.
    """
    program = trace(module, inputs, most_tokens)
    path = folder / FORMATS[kind][0]
    if kind == "torch_export":
        _save(program, path)
    elif kind == "onnx":
        _to_onnx(program, [*inputs], [*outputs], path, num_bytes(module) > ONE_FILE)
    else:
        import torch._inductor

        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return [name for name in FORMATS[kind] if (folder / name).is_file()]


def _save(program: ExportedProgram, path: Path) -> None:
    """Write a file of torch.export that holds no pickle, no code and no paths of this machine."""
    for graph_module in program.graph_module.modules():
        for node in graph_module.graph.nodes if isinstance(graph_module, torch.fx.GraphModule) else ():
            node.meta = {name: value for name, value in node.meta.items() if name == "val"}
    program.example_inputs = None
    program._guards_code = []
    torch.export.save(program, path)


def _to_onnx(program: ExportedProgram, inputs: list[str], outputs: list[str], path: Path, beside: bool) -> None:
    """Write a program of ONNX without the places in the code that it comes from.

    Args:
        beside: put the weights into a file of their own.
    """
    with _quiet():
        found: Any = torch.onnx.export(program, input_names=inputs, output_names=outputs, dynamo=True, verbose=False)
        for node in found.model.graph.all_nodes():
            node.metadata_props.clear()
        found.save(str(path), external_data=beside)


@contextmanager
def _quiet() -> Iterator[None]:
    """Mutes the exporter's warnings of packages that it can do without, and of its own use of deprecated functions."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
