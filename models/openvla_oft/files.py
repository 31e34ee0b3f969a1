"""Reading the files of a checkpoint folder; a damaged one is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from embodied.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """Raises CheckpointError if it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise _damaged(path, error) from error


def read_safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by name, mapped from the file. Raises CheckpointError if it is cut off or no such file."""
    try:
        with safe_open(file, framework="pt") as opened:
            yield from ((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def read_shapes(file: Path) -> Iterator[tuple[str, list[int]]]:
    """Shape of every tensor of a safetensors file by name, from its header alone. Raises as above."""
    try:
        with safe_open(file, framework="pt") as opened:
            yield from ((name, opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def read_pt(file: Path) -> dict[str, Tensor]:
    """The state dicts that OFT writes beside the weights: tensors by name without DDP's prefix ``module.``, mapped from
    the file; no code in it is run.

    Raises:
        CheckpointError: the file is damaged or holds other things than tensors.
    """
    try:
        values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return {name.removeprefix("module."): tensor for name, tensor in values.items()}
    except Exception as error:  # a cut file raises whatever its reader stumbles over
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{file} is damaged: {error}", "download or copy it again")
