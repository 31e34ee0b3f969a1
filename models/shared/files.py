"""Files of a Hugging Face checkpoint folder: weights in one safetensors file or several, JSON, state dicts of torch.

Reading names a file that is damaged, and reads no file that lies outside of the folder (:mod:`embodied.files`).
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
from torch._subclasses.fake_tensor import unset_fake_temporarily

from embodied.errors import CheckpointError
from embodied.files import inside, reading
from embodied.files import read_json as read_json

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Number formats by their names in the configuration."""


def weight_files(folder: Path) -> list[Path]:
    """Lists ``model.safetensors``, or all files of the index. Raises CheckpointError if one is missing, or if a name
    is none of a file in the folder."""
    names = ["model.safetensors"]
    if (index := inside(folder, INDEX)).is_file():
        with reading(index, "it has no map from tensors to files"):
            names = sorted(set(read_json(index)["weight_map"].values()))
    files = [inside(folder, name) for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise CheckpointError(f"{folder} lacks {', '.join(missing) or 'weights'}", "download the folder again")
    return files


def read_safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor with its name, mapped from the file. While a policy is counted without memory, a tensor has
    its size alone. Raises CheckpointError if the file is damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                with unset_fake_temporarily() as mode:  # safetensors cannot read under it
                    tensor = opened.get_tensor(name)
                yield name, tensor if mode is None else mode.from_tensor(tensor)  # type: ignore[attr-defined]
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
        if others := [name for name, value in values.items() if not isinstance(value, Tensor)]:
            raise TypeError(f"{others[0]} is no tensor")
        return {name.removeprefix("module."): tensor for name, tensor in values.items()}
    except Exception as error:  # a cut file raises whatever its reader stumbles over
        raise _damaged(file, error) from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes an indented JSON object."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def cast(name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Casts the tensor called ``name``. Raises CheckpointError if a number of it is too large for ``dtype``."""
    if value.dtype == dtype:
        return value
    cast_value = value.to(dtype)
    if value.isfinite().all() and not cast_value.isfinite().all():
        largest = value.abs().max().item()
        raise CheckpointError(f"{name} has numbers up to {largest:g}, too large for {dtype}", "write bf16 or fp32")
    return cast_value


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
