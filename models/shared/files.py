"""Files of a Hugging Face checkpoint folder: weights in one safetensors file or several, JSON, state dicts of torch.

Reading names a file that is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from embodied.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9


def weight_files(folder: Path) -> list[Path]:
    """Lists ``model.safetensors``, or all files of the index. Raises CheckpointError if one is missing."""
    if (folder / INDEX).is_file():
        names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}", "download the folder again")
    return [folder / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises CheckpointError if the file cannot be read."""
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise _damaged(path, error) from error


def read_safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor with its name, mapped from the file. Raises CheckpointError if the file is damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            yield from ((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def read_shapes(file: Path) -> Iterator[tuple[str, list[int]]]:
    """Yields every tensor's name and shape from the file's header alone. Raises CheckpointError as above."""
    try:
        with safe_open(file, framework="pt") as opened:
            yield from ((name, opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def read_pt(file: Path) -> dict[str, Tensor]:
    """Reads a state dict that torch saved: tensors by name without DDP's prefix ``module.``, mapped from the file.

    No code in the file is run.

    Raises:
        CheckpointError: the file is damaged or holds other things than tensors.
    """
    try:
        values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return {name.removeprefix("module."): tensor for name, tensor in values.items()}
    except Exception as error:  # a cut file raises whatever its reader stumbles over
        raise _damaged(file, error) from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes an indented JSON object."""
    path.write_text(json.dumps(values, indent=2) + "\n")


def write_weights(state: dict[str, Tensor], folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes contiguous tensors as ``model.safetensors``; beyond ``shard_bytes`` as several files with an index."""
    shards = _shards(state, shard_bytes)
    if len(shards) == 1:
        save_file(shards[0], str(folder / "model.safetensors"), metadata={"format": "pt"})
        return
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, str(folder / name), metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in state.values())
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(state: dict[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in state.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _damaged(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{file} is damaged: {error}", "download or copy it again")
