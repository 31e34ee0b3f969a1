"""Pictures in a column of a data set: which there are, and their pixels in one size.

A picture is an image of PIL, ``{"bytes": …, "path": …}`` as the package ``datasets`` stores it, or a path. A column
holds one, a list of them, or nothing.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import DatasetError


def of_column(value: Any) -> tuple[Any, ...]:
    """Lists the pictures in a value of a column: none if it is empty, one, or several."""
    if value is None or value == "":
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def pixels(pictures: Sequence[Any], size: int, folder: Path, where: str) -> np.ndarray:
    """Pixels of n pictures, uint8 [n, size, size, 3]: RGB, enlarged or reduced (bicubic) until the longer side fits, in
    the middle of a black square.

    Args:
        folder: from which paths lead.
        where: of the pictures, for messages.

    Raises:
        DatasetError: one cannot be read.
    """
    found = np.zeros((len(pictures), size, size, 3), np.uint8)
    for number, picture in enumerate(pictures):
        try:
            found[number] = _squared(picture, size, folder)
        except Exception as error:  # each format of PIL raises errors of its own
            told = next(iter(str(error).splitlines()), "")
            raise DatasetError(
                f"{where}: picture {number} cannot be read ({type(error).__name__}: {told})",
                "give images of PIL, {bytes: …, path: …}, or paths that lead from the folder of the data file",
            ) from error
    return found


def _squared(picture: Any, size: int, folder: Path) -> np.ndarray:
    from PIL import Image, ImageOps

    with _opened(picture, folder) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    square = Image.new("RGB", (size, size))
    square.paste(image.resize((width, height), Image.Resampling.BICUBIC), ((size - width) // 2, (size - height) // 2))
    return np.asarray(square)


def _opened(picture: Any, folder: Path) -> Any:
    from PIL import Image

    if isinstance(picture, Image.Image):
        return picture.copy()
    if isinstance(picture, Mapping):
        picture = picture.get("bytes") or picture.get("path")
    if isinstance(picture, bytes):
        return Image.open(io.BytesIO(picture))
    if not isinstance(picture, str | Path):
        raise TypeError(f"it is a {type(picture).__name__}")
    return Image.open(folder / Path(picture).expanduser())
