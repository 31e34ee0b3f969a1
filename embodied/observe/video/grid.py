"""Puts videos of episodes side by side into one mp4, with a frame and a sign for success or failure around each.

    tiles ─▶ background (frames, signs, labels) ─▶ ffmpeg lays each video on it ─▶ grid.mp4

A video that ends before the others holds its last picture. Imports no torch.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embodied.errors import RunFolderError
from embodied.lib.child import Child
from embodied.lib.whole import settle
from embodied.observe.video.video import is_whole

if TYPE_CHECKING:
    from PIL import Image

NAME = "grid.mp4"
MOST_TILES = 16
MOST_BYTES = 2_000_000
MOST_S = 60.0
"""Seconds of the grid. It plays longer episodes faster, by one factor."""

LIMIT_S = 120.0  # time limit for ffmpeg
_LOOK_S = 0.05

_BACKGROUND, _TEXT = (16, 16, 16), (235, 235, 235)
_SUCCESS, _FAILURE = (60, 190, 100), (230, 120, 50)
_FRAME, _HEAD, _GAP = 4, 20, 4
_HOLD_S = 1.0  # last picture of the longest episode, before a player begins anew


@dataclass(frozen=True)
class Tile:
    """An episode's video in the grid, with its label and outcome."""

    video: Path
    success: bool
    label: str  # a few words beside the sign


def write_grid(tiles: Sequence[Tile], path: Path, goes_on: Callable[[], bool] = lambda: True) -> bool:
    """Writes a video of up to :data:`MOST_TILES` episodes side by side, spread evenly over ``tiles``, whole or not at
    all; returns whether it was written.

    Tiles are 64 to 256 pixels wide and the file has at most :data:`MOST_BYTES` bytes.

    Args:
        goes_on: asked several times a second; the grid is given up when it says no.

    Returns:
        Whether there is a grid: not if no tile has a whole video, or if it was given up.

    Raises:
        RunFolderError: it cannot be written.
    """
    path.unlink(missing_ok=True)  # one of an earlier evaluation shows other episodes
    shown = spread([tile for tile in tiles if is_whole(tile.video)], MOST_TILES)
    if not shown:
        return False
    aside = path.with_name(f".{path.stem}.part{path.suffix}")
    sizes, seconds, fps = _measured(shown)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for share in (1.0, 0.5):
                layout = Layout.of(sizes, share)
                layout.background(shown).save(Path(folder) / "background.png")
                command = _command(shown, layout, Path(folder) / "background.png", seconds, fps, aside)
                if not _run(command, goes_on):
                    return False
                if is_whole(aside) and aside.stat().st_size <= MOST_BYTES:
                    settle(aside, path)
                    return True
        raise _failed(path, f"it is no whole file of at most {MOST_BYTES / 1e6:g} MB")
    except OSError as error:
        raise _failed(path, error) from error
    finally:
        aside.unlink(missing_ok=True)


def spread(tiles: Sequence[Tile], most: int) -> list[Tile]:
    """At most ``most`` of ``tiles``, from its first to its last, evenly."""
    if len(tiles) <= most:
        return list(tiles)
    return [tiles[round(number * (len(tiles) - 1) / (most - 1))] for number in range(most)]


@dataclass(frozen=True)
class Layout:
    """Grid layout of a video of episodes side by side. All sizes in pixels, and even."""

    columns: int
    rows: int
    width: int  # width of a video in its tile
    height: int

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]], share: float) -> Layout:
        """Computes the layout for videos of these (width, height).

        Args:
            share: 1.0 = as large as can be.
        """
        columns = math.ceil(math.sqrt(len(sizes)))
        widest = min(256, max(64, 640 // columns))
        width = _even(max(64, min(widest, max(width for width, _ in sizes)) * share))
        tallest = max(height / wide for wide, height in sizes)
        return cls(columns, math.ceil(len(sizes) / columns), width, _even(min(2 * width, max(32, width * tallest))))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the grid."""
        across, down = self.step
        return self.columns * across + _GAP, self.rows * down + _GAP

    @property
    def step(self) -> tuple[int, int]:
        """Pixels from one tile to the next, (x, y)."""
        return self.width + 2 * _FRAME + _GAP, self.height + _HEAD + _FRAME + _GAP

    def at(self, number: int) -> tuple[int, int]:
        """Returns left and top, pixels, of the video of tile ``number``."""
        across, down = self.step
        row, column = divmod(number, self.columns)
        return _GAP + column * across + _FRAME, _GAP + row * down + _HEAD

    def background(self, tiles: Sequence[Tile]) -> Image.Image:
        """Draws what stands around the videos: a frame and a head in the outcome's colour, with its sign
        and the label."""
        from PIL import Image, ImageDraw, ImageFont

        picture = Image.new("RGB", self.size, _BACKGROUND)
        draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=12)
        for number, tile in enumerate(tiles):
            left, top = self.at(number)
            right, bottom = left + self.width, top + self.height
            colour = _SUCCESS if tile.success else _FAILURE
            draw.rectangle((left - _FRAME, top - _HEAD, right + _FRAME - 1, bottom + _FRAME - 1), fill=colour)
            draw.rectangle((left + 16, top - _HEAD + _FRAME, right - 1, top - 1), fill=_BACKGROUND)
            draw.rectangle((left, top, right - 1, bottom - 1), fill=_BACKGROUND)
            _sign(draw, left, top - _HEAD + 4, tile.success)
            label = tile.label
            while label and font.getlength(label) > self.width - 22:
                label = label[:-1]
            draw.text((left + 20, top - _HEAD + 4), label, font=font, fill=_TEXT)
        return picture


def _sign(draw: object, left: int, top: int, success: bool) -> None:
    """Draws a tick or a cross of 12 pixels."""
    lines = [[(1, 6), (5, 10), (12, 1)]] if success else [[(2, 1), (11, 10)], [(2, 10), (11, 1)]]
    for line in lines:
        draw.line([(left + x, top + y) for x, y in line], fill=(0, 0, 0), width=3)  # type: ignore[attr-defined]


def _even(pixels: float) -> int:
    return 2 * round(pixels / 2)


def _measured(tiles: Sequence[Tile]) -> tuple[list[tuple[int, int]], float, float]:
    """(Width, height) of each video, seconds of the longest, and pictures a second."""
    import imageio_ffmpeg

    found = []
    for tile in tiles:
        frames = imageio_ffmpeg.read_frames(tile.video)
        found.append(next(frames))
        frames.close()
    sizes = [(int(facts["source_size"][0]), int(facts["source_size"][1])) for facts in found]
    return sizes, max(float(facts["duration"]) for facts in found), max(float(facts["fps"]) for facts in found)


def _command(
    tiles: Sequence[Tile], layout: Layout, background: Path, seconds: float, fps: float, out: Path
) -> list[str]:
    """The call of ffmpeg: an input and a filter a tile."""
    import imageio_ffmpeg

    faster = max(1.0, seconds / MOST_S)
    lasts = seconds / faster + _HOLD_S
    fps = min(fps, 30.0)
    rate = int(0.9 * MOST_BYTES * 8 / (lasts + 1))  # a buffer of a second comes on top
    inputs = ["-loop", "1", "-framerate", f"{fps:g}", "-t", f"{lasts:.3f}", "-i", str(background)]
    filters, last = [], "0:v"
    for number, tile in enumerate(tiles):
        left, top = layout.at(number)
        inputs += ["-threads", "1", "-i", str(tile.video)]
        fit = f"scale={layout.width}:{layout.height}:force_original_aspect_ratio=decrease:flags=area"
        filters.append(f"[{number + 1}:v]setpts=PTS/{faster:.6f},fps={fps:g},{fit}[v{number}]")
        place = f"{left}+({layout.width}-w)/2:{top}+({layout.height}-h)/2"
        filters.append(f"[{last}][v{number}]overlay={place}:eof_action=repeat[o{number}]")
        last = f"o{number}"
    return [
        imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-y", "-loglevel", "error", "-filter_complex_threads", "1",
        *inputs, "-filter_complex", ";".join(filters), "-map", f"[{last}]", "-c:v", "libx264", "-preset", "veryfast",
        "-crf", "26", "-maxrate", str(rate), "-bufsize", str(rate), "-pix_fmt", "yuv420p", "-threads", "1",
        "-f", "mp4", str(out),
    ]  # fmt: skip


def _run(command: Sequence[str], goes_on: Callable[[], bool]) -> bool:
    """Runs ffmpeg in a session of its own, so that a Ctrl-C meant for the run does not reach it. Returns False if it
    was given up.

    Raises:
        OSError: it failed, or took too long.
    """
    process, began = Child(command, kept="stderr"), time.monotonic()
    try:
        while process.runs():
            if not goes_on():
                return False
            if time.monotonic() - began > LIMIT_S:
                raise OSError(f"ffmpeg was not ready after {LIMIT_S:g} s")
            time.sleep(_LOOK_S)
    finally:
        if process.runs():
            process.end()
    if process.returncode:
        lines = process.lines()
        raise OSError(lines[-1] if lines else f"ffmpeg ended with status {process.returncode}")
    return True


def _failed(path: Path, why: object) -> RunFolderError:
    return RunFolderError(
        f"cannot write the grid of videos {path}: {why}",
        "free space on that disk, or set env.eval.video_cfg.grid=false",
    )
