"""Files of a Hugging Face checkpoint folder: weights in one safetensors file or several, JSON, state dicts of torch.

Reading names a file that is damaged, and reads no file that lies outside of the folder (:mod:`embodied.lib.files`).
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.lib.files import AGAIN, check_content
from embodied.lib.files import read_json as read_json
from embodied.weights.header import read_header
from embodied.weights.listing import INDEX
from embodied.weights.naming import plain_name

from .weights.finite import check_numbers

CODE = re.compile(r"GLOBAL ([\w.]+)")
"""What torch says of a pickle that names a class or a function."""
SHARD_BYTES = 5 * 10**9
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Number formats by their names in the configuration."""


def read_safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor with its name, mapped from the file. While a policy is counted without memory, a tensor has
    its size alone.

    Raises:
        CheckpointError: the file may not be read, or numbers are not finite.
        DamagedCheckpointError: the file is damaged.
    """
    read_header(file)
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                with unset_fake_temporarily() as mode:  # safetensors cannot read under it
                    tensor = opened.get_tensor(name)
                    if mode is None:
                        check_numbers(tensor, name, file)
                yield name, tensor if mode is None else mode.from_tensor(tensor)  # type: ignore[attr-defined]
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def read_pt(file: Path) -> dict[str, Tensor]:
    """Reads a state dict that torch saved: tensors by their plain names (:func:`embodied.weights.naming.plain_name`).
    They are mapped from the file where its format permits it.

    No code in the file is run.

    Raises:
        CheckpointError: the file holds other things than tensors, or numbers that are not finite.
        DamagedCheckpointError: the file is damaged.
    """
    check_content(file)
    try:
        values = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # a cut file raises whatever its reader stumbles over
        if code := CODE.search(str(error)):
            raise CheckpointError(
                f"{file} holds more than tensors: it names {code[1]}, which is not run",
                "save the tensors alone (`torch.save(model.state_dict(), FILE)`, or safetensors); if it comes from "
                "strangers, do not use it",
            ) from error
        raise _damaged(file, error) from error
    if not isinstance(values, Mapping) or not all(isinstance(value, Tensor) for value in values.values()):
        raise DamagedCheckpointError(
            f"{file} is damaged: it holds no tensors by name, {_other(values)}",
            "save the state dict itself: torch.save(model.state_dict(), FILE)",
        )
    for name, tensor in values.items():
        check_numbers(tensor, str(name), file)
    return {plain_name(str(name)): tensor for name, tensor in values.items()}


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


def _other(values: Any) -> str:
    if not isinstance(values, Mapping):
        return f"it is a {type(values).__name__}"
    return f"{next(name for name, value in values.items() if not isinstance(value, Tensor))!r} is no tensor"


def _damaged(file: Path, error: Exception) -> DamagedCheckpointError:
    shown = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return DamagedCheckpointError(f"{file} is damaged: {shown[:200]}", AGAIN)
