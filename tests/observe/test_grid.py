"""The grid of videos is decoded again: where its tiles stand, what marks them, what they hold, and how large it is."""

import json
import subprocess
import sys

import imageio.v2 as imageio
import numpy as np
import pytest

from embodied.errors import RunFolderError
from embodied.observe.video import grid
from embodied.observe.video.grid import Layout, Tile, spread, write_grid
from embodied.observe.video.video import VideoWriter

NOISE = np.random.default_rng(0)


def record(path, colours, side=64, fps=20.0):
    """A video of one picture of each grey in ``colours``; None = noise."""
    with VideoWriter(path, fps, "go", info=False) as writer:
        for step, grey in enumerate(colours):
            shape = (side, side, 3)
            frame = NOISE.integers(0, 256, shape, np.uint8) if grey is None else np.full(shape, grey, np.uint8)
            writer.add(frame, step, 0.0, False)
    return path


def decode(path):
    with imageio.get_reader(path) as reader:
        return reader.get_meta_data(), np.stack([frame for frame in reader]).astype(int)  # noqa: C416


def test_tiles_are_marked_and_hold_their_last_picture(tmp_path):
    short, long = record(tmp_path / "a.mp4", [60] * 4 + [200]), record(tmp_path / "b.mp4", [100] * 30)
    tiles = [Tile(short, True, "task 0 start 0"), Tile(long, False, "task 1 start 0")]
    assert write_grid(tiles, tmp_path / "grid.mp4")
    facts, frames = decode(tmp_path / "grid.mp4")
    assert (facts["codec"], facts["fps"]) == ("h264", 20.0)
    assert 30 <= len(frames) <= 30 + 21
    layout = Layout.of([(64, 64)] * 2, 1.0)
    (width, height), ((left, top), (right, _)) = layout.size, (layout.at(0), layout.at(1))
    assert frames.shape[1:] == (height, width, 3)
    first, second = (frames[:, top + 8 : top + 56, x + 8 : x + 56].mean(axis=(1, 2, 3)) for x in (left, right))
    assert first[1] == pytest.approx(60, abs=8)
    assert first[[6, 20, -1]] == pytest.approx(200, abs=8)  # its episode has ended
    assert second[[1, 20, -1]] == pytest.approx(100, abs=8)
    # Green and orange frames; and signs that differ without their colour.
    success, failure = (frames[-1, top + 8 : top + 56, x - 3 : x - 1].mean(axis=(0, 1)) for x in (left, right))
    assert success[1] > success[0] + 60
    assert failure[0] > failure[1] + 60
    signs = [frames[-1, top - 18 : top - 2, x : x + 14].mean(axis=2) < 60 for x in (left, right)]
    assert min(sign.sum() for sign in signs) > 15
    assert (signs[0] != signs[1]).sum() > 15
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4", "grid.mp4"]


@pytest.mark.parametrize("count", [1, 17])
def test_it_is_bounded_in_size_and_tiles_whatever_the_videos_show(tmp_path, count, monkeypatch):
    """Noise is the worst that there is. The limits are lowered, since 2 MB of it takes long."""
    monkeypatch.setattr(grid, "MOST_BYTES", 100_000)
    monkeypatch.setattr(grid, "MOST_S", 1.0)
    video = record(tmp_path / "a.mp4", [None] * 30, side=96)
    assert write_grid([Tile(video, True, "")] * count, tmp_path / "grid.mp4")
    assert 1000 < (tmp_path / "grid.mp4").stat().st_size <= 100_000
    facts, frames = decode(tmp_path / "grid.mp4")
    assert facts["duration"] <= 1.0 + grid._HOLD_S + 0.1
    layouts = [Layout.of([(96, 96)] * min(count, 16), share) for share in (1.0, 0.5)]
    assert frames.shape[1:3] in [layout.size[::-1] for layout in layouts]
    assert layouts[0].columns == layouts[0].rows == (4 if count == 17 else 1)


def test_tiles_are_64_to_256_pixels_wide_and_chosen_evenly():
    for count in (1, 2, 4, 5, 9, 16):
        for size in ((32, 32), (640, 480), (960, 540), (224, 300)):
            assert 64 <= Layout.of([size] * count, 1.0).width <= 256
    assert Layout.of([(640, 480)], 1.0) == Layout(1, 1, 256, 192)
    for count in range(1, 17):
        layout = Layout.of([(96, 96)] * count, 1.0)
        assert 0 <= layout.columns - layout.rows <= 1, "as near to a square as can be"
        assert (layout.rows - 1) * layout.columns < count <= layout.rows * layout.columns, "all tiles, and no row empty"
        for number in range(count):
            left, top = layout.at(number)
            assert left + layout.width < layout.size[0]
            assert top + layout.height < layout.size[1]
    tiles = [Tile(f"{number}", True, "") for number in range(40)]
    chosen = [int(tile.video) for tile in spread(tiles, 16)]
    assert (chosen[0], chosen[-1], len(set(chosen))) == (0, 39, 16)
    assert max(np.diff(chosen)) <= 3


def test_an_older_grid_goes_and_what_is_no_video_is_left_out(tmp_path):
    out, broken = tmp_path / "grid.mp4", tmp_path / "broken.mp4"
    out.write_bytes(b"of an earlier evaluation")
    broken.write_bytes(b"no video")
    assert not write_grid([Tile(broken, True, ""), Tile(tmp_path / "missing.mp4", True, "")], out)
    assert not out.exists()
    assert write_grid([Tile(broken, True, ""), Tile(record(tmp_path / "a.mp4", [9] * 3), True, "")], out)
    assert decode(out)[1].shape[1:] == (*Layout.of([(64, 64)], 1.0).size[::-1], 3)


def test_a_failure_is_said_with_the_fix_and_leaves_nothing(tmp_path, monkeypatch):
    video = record(tmp_path / "a.mp4", [9] * 3)
    assert not write_grid([Tile(video, True, "")], tmp_path / "grid.mp4", goes_on=lambda: False)
    monkeypatch.setattr(grid, "LIMIT_S", 0.0)
    with pytest.raises(RunFolderError, match=r"cannot write the grid of videos .*not ready after 0 s") as raised:
        write_grid([Tile(video, True, "")], tmp_path / "grid.mp4")
    assert "env.eval.video_cfg.grid=false" in raised.value.remedy
    monkeypatch.setattr(grid, "LIMIT_S", 60.0)
    monkeypatch.setattr(grid, "MOST_BYTES", 900)
    with pytest.raises(RunFolderError, match="no whole file of at most"):
        write_grid([Tile(video, True, "")], tmp_path / "grid.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_it_needs_no_torch():
    modules = "embodied.observe.video.grid, embodied.runtime.worker.shown"
    code = f"import {modules}, sys, json; print(json.dumps('torch' in sys.modules))"
    assert json.loads(subprocess.check_output([sys.executable, "-c", code])) is False
