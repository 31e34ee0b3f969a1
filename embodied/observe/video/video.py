"""Writes episodes as mp4 files that any player shows. Imports no torch: light env workers use it."""

from __future__ import annotations

import os
import subprocess
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embodied.errors import RunFolderError, SpecMismatchError
from embodied.lib.child import Child
from embodied.lib.whole import settle

if TYPE_CHECKING:
    from PIL import Image

READABLE = 256
"""Least pixels of a frame's shorter side: text under a smaller frame cannot be read."""

_BACKGROUND, _TEXT, _SUCCESS = (16, 16, 16), (235, 235, 235), (80, 220, 100)
_MARGIN = 6

# The encoder gets one thread: there may be as many workers as cores.
_ENCODER = ["-preset", "veryfast", "-crf", "23", "-threads", "1"]


@dataclass(frozen=True)
class Video:
    """Settings of an episode's video: file, text on it, frame interval."""

    file: str
    info: bool = True  # instruction, step, return and decision stand below the pictures
    frame_interval: int | None = 1  # control steps between two pictures; None = those that the policy sees

    def absolute(self) -> Video:
        """Returns the same with an absolute path, for simulators that change their process's folder."""
        return replace(self, file=os.path.abspath(self.file))


class VideoWriter:
    """Writes an episode's pictures to an mp4 file (h264, yuv420p, even sizes).

    The file has another name until :meth:`close` renames it, so that a file with the final name is always whole. As a
    context manager, the writer closes after the block and aborts if the block raised.

    Args:
        path: the file, ``….mp4``; folders are made.
        fps: control steps per second.
        instruction: what the robot was told, written under the frames.
        info: write instruction, step, return and success; without it the frames are kept as they are.
        show: given each picture of the video, uint8 [H, W, 3].
        notes: leave a line for the notes of :meth:`add` below that.

    Raises:
        RunFolderError: the folder cannot be made or written.
    """

    def __init__(
        self, path: Path, fps: float, instruction: str, info: bool = True, notes: bool = False,
        show: Callable[[np.ndarray], None] | None = None,
    ) -> None:  # fmt: skip
        self._show = show
        self._path = path
        self._aside = path.with_name(f".{path.stem}.part{path.suffix}")
        self._fps = fps
        self._instruction = instruction
        self._info, self._notes = info, notes
        self._shape: tuple[int, ...] | None = None
        self._strip: _Strip | None = None
        self._encoder: _Encoder | None = None
        self._return = 0.0
        self._success = False
        self._make_folder()

    def add(self, frame: np.ndarray, step: int, reward: float, success: bool, note: str = "") -> None:
        """Appends a picture uint8 [H, W, 3], with step, reward and success as text on it.

        Args:
            frame: uint8 [H, W, 3], of one size throughout the episode.
            step: control step after which it was taken.
            reward: reward of this step; the strip shows the sum so far.
            success: whether the task is solved now; once shown, the mark stays.
            note: a line that stands under this picture alone; needs ``notes``.

        Raises:
            SpecMismatchError: ``frame`` has another type, shape or size.
            RunFolderError: it cannot be written, e.g. because the disk is full.
        """
        self._check(frame)
        self._return += reward
        self._success |= success
        if self._info:
            frame = enlarge(frame)
            if self._strip is None:
                self._strip = _Strip(frame.shape[1], self._instruction, self._notes)
            frame = np.concatenate([frame, self._strip.draw(step, self._return, self._success, note)])
        frame = pad_to_even(frame)
        if self._show is not None:
            self._show(frame)
        self._write(frame)

    def close(self) -> None:
        """Finish the file and give it its name. Without frames there is no file. A second call does nothing.

        Raises:
            RunFolderError: the file could not be finished; nothing is left of it.
        """
        if self._encoder is None:
            return
        with self._guard():
            self._encoder.close()
        self._encoder = None
        if not is_whole(self._aside):
            self.abort()
            raise self._failed("ffmpeg left it unfinished")
        with self._guard():
            settle(self._aside, self._path)

    def abort(self) -> None:
        """Deletes the unfinished file."""
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None
        self._aside.unlink(missing_ok=True)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _make_folder(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # A killed process may have left this file. Its ffmpeg may still write to the unlinked file, not to ours.
            self._aside.unlink(missing_ok=True)
            self._aside.touch()
            self._aside.unlink()
        except OSError as error:
            raise self._failed(error) from error

    def _check(self, frame: np.ndarray) -> None:
        self._shape = self._shape or frame.shape
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != self._shape:
            raise SpecMismatchError(
                f"a frame for the video is {frame.dtype} {list(frame.shape)}, expected uint8 [H, W, 3] of one size "
                f"(the first was {list(self._shape)})",
                "return such an array from the env's frame()",
            )

    def _write(self, frame: np.ndarray) -> None:
        with self._guard():
            if self._encoder is None:
                self._encoder = _Encoder(self._aside, self._fps, frame)
            self._encoder.write(frame)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.abort()
            raise self._failed(error) from error

    def _failed(self, why: object) -> RunFolderError:
        return RunFolderError(
            f"cannot write the video {self._path}: {why}",
            "free space on that disk, set video_cfg.video_base_dir (of env.train and env.eval) to a folder that you "
            "may write to, or set video_cfg.save_video=false",
        )


def enlarge(frame: np.ndarray) -> np.ndarray:
    """``frame`` [H, W, 3] with each pixel repeated until its shorter side has :data:`READABLE` pixels."""
    factor = -(-READABLE // min(frame.shape[:2]))
    return frame.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else frame


def pad_to_even(frame: np.ndarray) -> np.ndarray:
    """``frame`` [H, W, 3] with its last row and column repeated where a side is odd, as yuv420p needs."""
    height, width = frame.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def is_whole(path: Path) -> bool:
    """Whether ``path`` is an mp4 whose index (the ``moov`` box, which ffmpeg writes last) is there in full.

    After a full disk or a killed ffmpeg it is missing, and ffmpeg's exit status does not reach us.
    """
    if not path.is_file():
        return False
    size, offset = path.stat().st_size, 0
    with path.open("rb") as file:
        while offset + 8 <= size:
            file.seek(offset)
            head = file.read(16)
            length, kind = int.from_bytes(head[:4]), head[4:8]
            length = int.from_bytes(head[8:16]) if length == 1 else length
            if kind == b"moov":
                return offset + length <= size
            if length < 8:
                return False
            offset += length
    return False


class _Strip:
    """Picture under a frame: the wrapped instruction, and a line or two that change with each step."""

    def __init__(self, width: int, instruction: str, notes: bool) -> None:
        from PIL import Image, ImageDraw, ImageFont

        self._font = ImageFont.load_default(size=min(28, max(14, width // 24)))
        lines = wrap(instruction, self._font.getlength, width - 2 * _MARGIN)
        line = self._line = int(self._font.getbbox("Ág")[3]) + 3
        self._top = _MARGIN + line * len(lines)
        self._background: Image.Image = Image.new("RGB", (width, self._top + (1 + notes) * line + _MARGIN), _BACKGROUND)
        draw = ImageDraw.Draw(self._background)
        for i, text in enumerate(lines):
            draw.text((_MARGIN, _MARGIN + i * line), text, font=self._font, fill=_TEXT)

    def draw(self, step: int, episode_return: float, success: bool, note: str) -> np.ndarray:
        """Draw the strip: uint8 [h, W, 3]."""
        from PIL import ImageDraw

        picture = self._background.copy()
        draw = ImageDraw.Draw(picture)
        status = f"step {step}   return {episode_return:.2f}   "
        draw.text((_MARGIN, self._top), status, font=self._font, fill=_TEXT)
        if success:
            left = _MARGIN + self._font.getlength(status)
            draw.text((left, self._top), "SUCCESS", font=self._font, fill=_SUCCESS)
        if note:
            draw.text((_MARGIN, self._top + self._line), note, font=self._font, fill=_TEXT)
        return np.asarray(picture)


def wrap(text: str, width_of: Callable[[str], float], limit: float) -> list[str]:
    """``text`` broken at spaces into lines not wider than ``limit``; a single longer word stays whole."""
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}") <= limit:
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(word)
    return lines


class _Encoder:
    """ffmpeg, which reads pictures of one size [H, W, 3] and writes an mp4.

    imageio-ffmpeg's own writer forks this process to start it, which costs one of 500 MB 13 ms more: its page tables
    are copied. A session of its own keeps Ctrl-C from it, as there its process group.

    Its input ends when nobody has it open for writing. So a fork of this process closes its copy: a verifier's helper
    lives for long, and :meth:`close` would wait for it.
    """

    _open: ClassVar[weakref.WeakSet[_Encoder]] = weakref.WeakSet()

    def __init__(self, path: Path, fps: float, frame: np.ndarray) -> None:
        import imageio_ffmpeg

        height, width = frame.shape[:2]
        rate = str(Fraction(fps).limit_denominator())
        raw = ["-f", "rawvideo", "-vcodec", "rawvideo", "-s", f"{width}x{height}", "-pix_fmt", "rgb24", "-r", rate]
        coded = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-v", "error", *_ENCODER]
        self._process = Child(
            [imageio_ffmpeg.get_ffmpeg_exe(), "-y", *raw, "-i", "-", *coded, str(path)],
            stdin=subprocess.PIPE, stderr=None, death=None,  # it ends when its input does
        )  # fmt: skip
        self._open.add(self)

    def write(self, frame: np.ndarray) -> None:
        """Raises OSError if ffmpeg has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(np.ascontiguousarray(frame).data)

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            self._process.stdin.close()
        self._process.wait()

    @classmethod
    def leave_to_parent(cls) -> None:
        """Closes the inputs in a fork, without the bytes that the parent has yet to write."""
        for encoder in cls._open:
            raw = getattr(encoder._process.stdin, "raw", None)
            if raw is not None:
                raw.close()


os.register_at_fork(after_in_child=_Encoder.leave_to_parent)
