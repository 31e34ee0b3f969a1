"""Pictures of a request: arrays as they are, JPEG and PNG files decoded, with a limit before any pixel exists."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from embodied.errors import RequestError

FORMATS = ("JPEG", "PNG")
BAD_FILE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error)
"""What Pillow raises for files that are damaged."""


def read(value: Any, key: str, size: tuple[int, int], max_pixels: int, resize: bool) -> np.ndarray:
    """Decodes a picture in a request, an array or an encoded file, to uint8 [H, W, 3].

    Args:
        value: uint8 [H, W, 3], or the bytes of a JPEG or PNG file.
        key: of the request, for errors.
        size: (H, W) that the policy takes.
        resize: scale pictures of another size (Lanczos) instead of refusing them.

    Raises:
        RequestError: it is no picture, damaged, of another size, or has more than ``max_pixels``.
    """
    if isinstance(value, bytes | memoryview):
        return _decode(value, key, size, max_pixels, resize)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
        raise _no_picture(key, _shown(value), size)
    if value.shape[:2] == size:
        return value
    _check_size(key, (value.shape[0], value.shape[1]), size, max_pixels, resize)
    return _resized(Image.fromarray(value), size)


def _decode(data: bytes | memoryview, key: str, size: tuple[int, int], max_pixels: int, resize: bool) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            got = (image.height, image.width)  # size in the file's head: no pixel is decoded yet
            if got != size:
                _check_size(key, got, size, max_pixels, resize)
            image.load()
            picture = image if image.mode == "RGB" else image.convert("RGB")
    except (*BAD_FILE, Image.DecompressionBombError) as error:
        what = f"{len(data)} bytes that are no JPEG or PNG file, or a damaged one ({type(error).__name__})"
        raise _no_picture(key, what, size) from error
    if got != size:
        return _resized(picture, size)
    return np.frombuffer(picture.tobytes(), np.uint8).reshape(*size, 3)  # np.asarray(picture) takes twice the time


def _check_size(key: str, got: tuple[int, int], size: tuple[int, int], max_pixels: int, resize: bool) -> None:
    """Raises RequestError unless a picture of size ``got`` may be scaled."""
    if not resize:
        raise RequestError(
            f"the picture '{key}' has {got[0]} × {got[1]} pixels (height × width), expected {size[0]} × {size[1]}",
            "resize it as the training data was, or let the server do it: --resize",
        )
    if 0 in got or got[0] * got[1] > max_pixels:
        raise RequestError(
            f"the picture '{key}' has {got[0]} × {got[1]} pixels, at most {max_pixels} are read", "send a smaller one"
        )


def _resized(picture: Image.Image, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(picture.resize((size[1], size[0]), Image.Resampling.LANCZOS))


def _no_picture(key: str, got: str, size: tuple[int, int]) -> RequestError:
    return RequestError(
        f"the picture '{key}' is {got}, expected uint8 [{size[0]}, {size[1]}, 3] or the bytes of a JPEG or PNG file",
        "send pixels from 0 to 255 as uint8, height first, colours last (red, green, blue)",
    )


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
