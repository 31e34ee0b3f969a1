"""Pictures of an episode, checked when they are decoded: a damaged one is named by file, episode and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embodied.errors import DatasetError, EmbodiedError

REDO = "write the pictures of the data set anew as 8-bit RGB of one size"


@dataclass(frozen=True)
class Camera:
    """One camera's pictures in an episode: their number, size (H, W), and a function that decodes picture t."""

    name: str  # name of the column in the file
    count: int
    size: tuple[int, int] | None  # height and width that the file declares; None = it declares none
    read: Callable[[int], np.ndarray]  # step → uint8 [H, W, 3]; may raise anything
    stored: Callable[[int], bytes] | None = None  # step → its file, the same whatever decodes it; None = pixels


@dataclass(frozen=True)
class Frames:
    """Decodes the pictures of step t: t → uint8 [C, H, W, 3], in the order of the cameras.

    Raises:
        DatasetError: one is damaged, no 8-bit RGB, or of another size than it should be.
    """

    where: str  # file and episode, for messages
    cameras: Sequence[Camera]

    def __call__(self, t: int) -> np.ndarray:
        seen = [self._one(camera, t) for camera in self.cameras]
        if len({picture.shape for picture in seen}) > 1:
            shown = ", ".join(f"{c.name} {_shown(p.shape)}" for c, p in zip(self.cameras, seen, strict=True))
            raise DatasetError(f"{self.where}, step {t}: the cameras' pictures have several sizes: {shown}", REDO)
        return np.stack(seen)

    def stored(self, t: int) -> list[bytes]:
        """Returns the bytes of the pictures of step t as they are stored, one a camera.

        Raises:
            DatasetError: pixels are stored, and are damaged.
        """
        return [camera.stored(t) if camera.stored else self._one(camera, t).tobytes() for camera in self.cameras]

    def _one(self, camera: Camera, t: int) -> np.ndarray:
        where = f"{self.where}, step {t}: the picture of '{camera.name}'"
        try:
            picture = camera.read(t)
        except EmbodiedError as error:
            raise DatasetError(f"{where} {error.message}", error.remedy) from error
        except Exception as error:  # each decoder raises errors of its own
            said = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise DatasetError(
                f"{where} cannot be decoded: {said}", "restore the file from where it came from, or remove the episode"
            ) from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise DatasetError(
                f"{where} is {picture.dtype} {list(picture.shape)}, expected uint8 [height, width, 3]", REDO
            )
        if camera.size is not None and picture.shape[:2] != camera.size:
            raise DatasetError(
                f"{where} is {_shown(picture.shape)}, and the others of this camera are {_shown(camera.size)}", REDO
            )
        return picture

    def check_counts(self, length: int) -> None:
        """Raises :class:`DatasetError` unless every camera has a picture for each of ``length`` steps."""
        for camera in self.cameras:
            if camera.count != length:
                raise DatasetError(
                    f"{self.where} has {camera.count} pictures of '{camera.name}', and {length} actions",
                    "restore the file from where it came from, or remove the episode",
                )


def _shown(size: Sequence[int]) -> str:
    return f"{size[0]}×{size[1]}"
