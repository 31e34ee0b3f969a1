"""Names and shapes of weights in the files of a checkpoint, without reading the weights. Needs no torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def weight_files(folder: Any) -> list[Path]:
    """Returns the files with weights in a checkpoint's folder; none if it is no folder."""
    return sorted(Path(folder).glob("*.safetensors")) if isinstance(folder, str) and Path(folder).is_dir() else []


def shapes(file: Path) -> Mapping[str, Sequence[int]]:
    """Returns the shape of each tensor in a file of safetensors, by name."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}
