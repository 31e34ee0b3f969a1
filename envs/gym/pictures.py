"""Pictures in the forms that envs give them, brought to uint8 [H, W, 3].

The form is found out where there is one right meaning: three channels at either end, one channel or none, numbers from
0 to 255 or from 0 to 1. Four channels are colours with alpha or four grey pictures in time: that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied.errors import ConfigError, SpecMismatchError

from .settings import KEY

RGB, RGBA, GREY, RGB_FRAMES, GREY_FRAMES = LAYOUTS = ("rgb", "rgba", "grey", "rgb_frames", "grey_frames")
Range = tuple[float, float]
BYTES: Range = (0.0, 255.0)
_UNIT: Range = (0.0, 1.0)
_EACH = {RGB: 3, RGBA: 4, GREY: 1, RGB_FRAMES: 3, GREY_FRAMES: 1}  # channels of a picture
_SIDE_OF_BYTES, _SIDE = 8, 24  # pixels; what is smaller is a board or a matrix
_MOST = 16  # pictures, or channels


@dataclass(frozen=True)
class Form:
    """How an array is interpreted as pictures: layout, channels, range of its numbers."""

    layout: str  # one of LAYOUTS
    axis: int | None  # axis of the channels: 0 or 2; None: no channels
    range: Range  # its numbers for black and for white
    frames: int = 1  # pictures in the channels, one after another
    arrays: int = 0  # such arrays one after another, in a first axis; 0 = there is no such axis

    @property
    def count(self) -> int:
        """Number of pictures in the array."""
        return self.frames * (self.arrays or 1)

    def pictures(self, array: np.ndarray, name: str) -> list[np.ndarray]:
        """Converts an array to its pictures: uint8 [H, W, 3] each.

        Raises:
            SpecMismatchError: it has not the form that it had at first, or a number that is not finite.
        """
        if self.arrays:
            if array.ndim != 4 or len(array) != self.arrays:
                raise self._another(array, name)
            return [one for part in array for one in replace(self, arrays=0).pictures(part, name)]
        channels = _split(array, self.axis)
        if channels is None or channels.shape[2] != self._channels:
            raise self._another(array, name)
        shown = _as_bytes(channels, self.range, name)
        if self.layout == RGBA:
            return [shown[:, :, :3]]
        each = self._channels // self.frames
        parts = [shown[:, :, first : first + each] for first in range(0, self._channels, each)]
        return parts if each == 3 else [np.repeat(part, 3, axis=2) for part in parts]

    def size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns H and W of the pictures in an array of this shape."""
        shape = shape[1:] if self.arrays else shape
        height, width = (side for axis, side in enumerate(shape) if axis != self.axis)
        return height, width

    @property
    def _channels(self) -> int:
        return _EACH[self.layout] * self.frames

    def _another(self, array: np.ndarray, name: str) -> SpecMismatchError:
        return SpecMismatchError(
            f"{name} is {array.dtype} {array.shape}, expected a picture as at first: {self}",
            f"name another source in {KEY}.images, or bring it into one form with a wrapper ({KEY}.wrappers)",
        )

    @property
    def plain(self) -> bool:
        """Whether the array is uint8 [H, W, 3] already."""
        return (self.layout, self.axis, self.range, self.arrays) == (RGB, 2, BYTES, 0)

    def __str__(self) -> str:
        where = {None: "without a channel", 0: "channels first", 2: "channels last"}[self.axis]
        of = f", {self.count} pictures one after another" if self.count > 1 else ""
        numbers = "" if self.range == BYTES else f", {self.range[0]:g} is black and {self.range[1]:g} white"
        return f"{self.layout}, {where}{of}{numbers}"


def form_of(shape: Sequence[int], dtype: str, bounds: Range | None) -> Form | str | None:
    """Infers how an entry could be interpreted as pictures.

    Args:
        bounds: of its numbers, as the env's space has them; None = not known.

    Returns:
        The form; or, of what looks like a picture with several meanings, what they are; None = it is no picture.
    """
    if len(shape) == 4:
        found = form_of(shape[1:], dtype, bounds) if 0 < shape[0] <= _MOST else None
        return replace(found, arrays=shape[0]) if isinstance(found, Form) else found
    if dtype == "uint8" and len(shape) == 3 and shape[2] == 3:
        return Form(RGB, 2, BYTES)
    side = _SIDE_OF_BYTES if dtype == "uint8" else _SIDE
    if not _is_large(shape, side) or dtype == "bool" or (dtype == "uint8" and bounds not in (None, BYTES)):
        return None
    axis = _axis(shape)
    channels = 1 if axis is None else shape[axis]
    numbers = _range(dtype, bounds)
    if numbers is None:
        if dtype == "uint16" or channels == 3 or (axis is not None and channels in (1, 4) and dtype.startswith("f")):
            return _unclear_numbers(dtype, bounds)
        return None  # heights, distances, matrices
    if channels == 3:
        return Form(RGB, axis, numbers)
    if channels == 1:
        return Form(GREY, axis, numbers) if dtype == "uint8" else "a grey picture, a depth or a map"
    if channels == 4:
        return f"colours with alpha ({RGBA}) or four grey pictures one after another ({GREY_FRAMES})"
    several = f" or {RGB_FRAMES}" if channels % 3 == 0 else ""
    return f"{channels} channels, which may be pictures one after another ({GREY_FRAMES}{several}) or a map"


def declared_form(
    shape: Sequence[int], dtype: str, bounds: Range | None, layout: str | None, numbers: Range | None
) -> Form | str:
    """Determines how an entry is interpreted as pictures where the user said that it is one.

    Args:
        layout: one of :data:`LAYOUTS`; None = found out.
        numbers: of black and white; None = found out.

    Returns:
        The form, or why it cannot be read so.
    """
    if len(shape) == 4 and shape[0] > 0:
        found = declared_form(shape[1:], dtype, bounds, layout, numbers)
        return replace(found, arrays=shape[0]) if isinstance(found, Form) else found
    if len(shape) not in (2, 3) or 0 in shape:
        return "no picture by its shape"
    numbers = numbers or _range(dtype, bounds)
    if numbers is None:
        return _unclear_numbers(dtype, bounds)
    axis = _axis(shape)
    channels = 1 if axis is None else shape[axis]
    layout = layout or {1: GREY, 3: RGB}.get(channels)
    if layout is None:
        return f"of {channels} channels, whose meaning is not said"
    each = _EACH[layout]
    if channels % each or (channels != each and not layout.endswith("frames")):
        return f"of {channels} channels, which are not {layout}"
    return Form(layout, axis, numbers, channels // each)


def rendered(picture: Any) -> np.ndarray:
    """Converts what ``render()`` returned to uint8 [H, W, 3]. Alpha, grey and channels first have one meaning here.

    Raises:
        ConfigError: it is no picture.
    """
    array = np.asarray(picture)
    if array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] in (3, 4):
        return array[:, :, :3]
    form: Form | str = "no picture"
    if array.dtype.kind in "uif" and array.ndim in (2, 3) and array.size:
        numbers = BYTES if array.dtype.kind != "f" or array.max() > 1 else _UNIT
        four = array.ndim == 3 and array.shape[0 if _axis(array.shape) == 0 else 2] == 4
        form = declared_form(array.shape, str(array.dtype), None, RGBA if four else None, numbers)
    if not isinstance(form, Form) or form.count > 1 or min(form.size(array.shape)) < 4:
        raise ConfigError(
            f"render() is {array.dtype} {array.shape}, expected uint8 (H, W, 3)",
            f"name another source in {KEY}.images, or bring it into this form with a wrapper ({KEY}.wrappers)",
        )
    return form.pictures(array, "render()")[0]


def _axis(shape: Sequence[int]) -> int | None:
    """The axis of the channels: that of the fewest, else the last; None of a picture without."""
    if len(shape) == 2:
        return None
    return 0 if shape[0] < shape[2] else 2


def _is_large(shape: Sequence[int], side: int) -> bool:
    """Whether it is as large as a picture, and as flat."""
    if len(shape) not in (2, 3):
        return False
    axis = _axis(shape)
    sides = [length for place, length in enumerate(shape) if place != axis]
    return min(sides) >= side and (axis is None or 0 < shape[axis] <= _MOST)


def _range(dtype: str, bounds: Range | None) -> Range | None:
    """The numbers of black and white, where they are known."""
    if dtype == "uint8":
        return BYTES if bounds in (None, BYTES) else None
    return bounds if bounds in (BYTES, _UNIT) else None


def _unclear_numbers(dtype: str, bounds: Range | None) -> str:
    known = bounds is not None and np.isfinite(bounds).all()
    of = f"from {bounds[0]:g} to {bounds[1]:g}" if bounds is not None and known else "without bounds"
    return f"a picture or a depth of {dtype} {of}: which numbers are black and white is not said"


def _split(array: np.ndarray, axis: int | None) -> np.ndarray | None:
    """The array as [H, W, channels]."""
    if array.ndim != (2 if axis is None else 3) or array.dtype.kind not in "buif" or not array.size:
        return None
    if axis is None:
        return array[:, :, None]
    return np.moveaxis(array, 0, 2) if axis == 0 else array


def _as_bytes(channels: np.ndarray, numbers: Range, name: str) -> np.ndarray:
    if channels.dtype == np.uint8 and numbers == BYTES:
        return channels
    wide = channels.astype(np.float64)
    if not np.isfinite(wide).all():
        raise SpecMismatchError(
            f"{name} of an observation is a picture with numbers that are not finite",
            f"correct the env, or replace them in a wrapper ({KEY}.wrappers)",
        )
    low, high = numbers
    return np.rint(np.clip((wide - low) / (high - low), 0.0, 1.0) * 255.0).astype(np.uint8)
