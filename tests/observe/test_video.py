"""Videos are decoded again: frames, size, codec, what is written on them, and what is left after failures."""

import errno
import os
import subprocess
import sys

import imageio.v2 as imageio
import numpy as np
import pytest

from embodied.errors import RunFolderError, SpecMismatchError
from embodied.observe.video import video
from embodied.observe.video.video import VideoWriter, enlarge, is_whole, pad_to_even, wrap

GREY = np.full((64, 48, 3), 128, np.uint8)


def decode(path):
    with imageio.get_reader(path) as reader:
        return reader.get_meta_data(), [frame for frame in reader]  # noqa: C416 (its length is infinite)


def files(folder):
    return sorted(p.name for p in folder.iterdir())


def test_frames_size_codec_and_overlay(tmp_path):
    path = tmp_path / "new" / "episode.mp4"
    with VideoWriter(path, 20.0, "pick up the black bowl and place it on the plate") as writer:
        for step in range(1, 13):
            writer.add(GREY, step, reward=0.25, success=step >= 10)
        assert files(path.parent) == [".episode.part.mp4"]
    assert files(path.parent) == ["episode.mp4"]
    facts, frames = decode(path)
    assert len(frames) == 12
    assert (facts["codec"], facts["fps"], facts["duration"]) == ("h264", 20.0, 0.6)
    assert facts["pix_fmt"].startswith("yuv420p")
    # 48 → 288 by the factor ⌈256/48⌉ = 6, and 64 → 384; the strip below it makes the rest.
    height, width, _ = frames[0].shape
    assert width == 288
    assert height % 2 == 0
    assert 384 + 2 * 14 < height < 384 + 120
    # The picture is as it was (encoding may move a level or two) …
    assert np.abs(frames[0][:380].astype(int) - 128).max() <= 4
    # … and the strip is dark with light text, differs between steps, and is green only after success.
    strips = [frame[386:].astype(int) for frame in frames]
    assert np.median(strips[0]) < 40
    assert strips[0].max() > 180
    assert (np.abs(strips[0] - strips[7]) > 60).sum() > 20
    green = [((s[..., 1] - s[..., 0] > 60) & (s[..., 1] > 120)).sum() for s in strips]
    assert max(green[:9]) == 0
    assert min(green[9:]) > 50


def test_success_stays_once_it_was(tmp_path):
    strips = []
    for successes in ([True, False], [True, True], [False, False]):
        with VideoWriter(tmp_path / "e.mp4", 10, "go") as writer:
            for step, success in enumerate(successes):
                writer.add(GREY, step, 0.0, success)
        strips.append(decode(tmp_path / "e.mp4")[1][-1][386:])
    assert np.array_equal(strips[0], strips[1])
    assert not np.array_equal(strips[0], strips[2])


def test_without_info_frames_stay_as_they_are_but_for_odd_sides(tmp_path):
    rows = np.linspace(0, 250, 33).astype(np.uint8)
    frame = np.broadcast_to(rows[:, None, None], (33, 47, 3))
    with VideoWriter(tmp_path / "e.mp4", 12.5, "go", info=False) as writer:
        writer.add(frame, 1, 0.0, False)
    facts, frames = decode(tmp_path / "e.mp4")
    assert facts["fps"] == 12.5
    assert frames[0].shape == (34, 48, 3)
    assert np.abs(frames[0][:33, :47].astype(int) - frame).max() <= 16


@pytest.mark.parametrize("end", ["abort", "raise"])
def test_a_broken_episode_leaves_nothing(tmp_path, end):
    path = tmp_path / "e.mp4"
    if end == "abort":
        writer = VideoWriter(path, 20, "go")
        writer.add(GREY, 1, 0.0, False)
        writer.abort()
        writer.close()
    else:

        def fail(writer):
            writer.add(GREY, 1, 0.0, False)
            raise KeyError

        with pytest.raises(KeyError), VideoWriter(path, 20, "go") as writer:
            fail(writer)
    assert files(tmp_path) == []


def test_no_frames_no_file_and_closing_twice_is_fine(tmp_path):
    writer = VideoWriter(tmp_path / "e.mp4", 20, "go")
    writer.close()
    writer.close()
    assert files(tmp_path) == []


def test_an_earlier_video_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "e.mp4"
    path.write_bytes(b"earlier")
    (tmp_path / ".e.part.mp4").write_bytes(b"left by a killed worker")
    writer = VideoWriter(path, 20, "go")
    writer.add(GREY, 1, 0.0, False)
    assert path.read_bytes() == b"earlier"
    writer.close()
    assert len(decode(path)[1]) == 1
    assert files(tmp_path) == ["e.mp4"]


def test_an_encoder_that_fails_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "_ENCODER", ["-preset", "nonsense"])
    writer = VideoWriter(tmp_path / "e.mp4", 20, "go")

    def record():
        for step in range(50):
            writer.add(GREY, step, 0.0, False)
        writer.close()

    with pytest.raises(RunFolderError, match=r"cannot write the video .*e\.mp4"):
        record()
    assert files(tmp_path) == []


def test_a_disk_that_fails_at_the_end_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(aside, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(video, "settle", full)
    writer = VideoWriter(tmp_path / "e.mp4", 20, "go")
    writer.add(GREY, 1, 0.0, False)
    with pytest.raises(RunFolderError, match=r"cannot write the video .*e\.mp4"):
        writer.close()
    assert files(tmp_path) == []


def test_ffmpeg_is_started_without_a_copy_of_this_process_and_gets_no_ctrl_c(tmp_path, monkeypatch):
    """A preexec_fn makes subprocess fork; a process group of its own needs none."""
    started, start = [], subprocess.Popen.__init__

    def recorded(self, command, **how):
        start(self, command, **how)
        started.append((os.path.basename(command[0])[:6], how.get("preexec_fn"), os.getpgid(self.pid) == self.pid))

    with VideoWriter(tmp_path / "e.mp4", 20, "go") as writer:
        monkeypatch.setattr(subprocess.Popen, "__init__", recorded)
        writer.add(GREY, 0, 0.0, False)
    assert started[-1] == ("ffmpeg", None, True)


def test_a_file_without_its_end_is_not_whole(tmp_path):
    path, cut = tmp_path / "e.mp4", tmp_path / "cut.mp4"
    with VideoWriter(path, 20, "go") as writer:
        for step in range(5):
            writer.add(GREY, step, 0.0, False)
    data = path.read_bytes()
    assert is_whole(path)
    for length in (len(data) - 1, len(data) // 2, 10, 0):
        cut.write_bytes(data[:length])
        assert not is_whole(cut)
    cut.write_bytes(b"\x00" * 64)
    assert not is_whole(cut)
    assert not is_whole(tmp_path / "missing.mp4")


def test_a_folder_that_cannot_be_made_is_said_with_the_fix(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError) as raised:
        VideoWriter(tmp_path / "file" / "e.mp4", 20, "go")
    assert "cannot write the video" in raised.value.message
    assert "video_cfg.video_base_dir" in raised.value.remedy


@pytest.mark.parametrize(
    "frame", [GREY.astype(np.float32), GREY[..., :1], GREY[0], np.zeros((64, 50, 3), np.uint8)], ids=str
)
def test_a_frame_of_another_kind_is_said(tmp_path, frame):
    with VideoWriter(tmp_path / "e.mp4", 20, "go") as writer:
        writer.add(GREY, 1, 0.0, False)
        with pytest.raises(SpecMismatchError, match=r"expected uint8 \[H, W, 3\] of one size"):
            writer.add(frame, 2, 0.0, False)


def test_enlarging_repeats_pixels_by_a_whole_factor():
    small = np.arange(2 * 128 * 3, dtype=np.uint8).reshape(2, 128, 3)
    # The shorter side is 2, so the factor is 128: too small to matter in life, simple to check.
    assert enlarge(small).shape == (256, 128 * 128, 3)
    assert enlarge(np.zeros((224, 300, 3), np.uint8)).shape == (448, 600, 3)
    assert enlarge(np.zeros((256, 256, 3), np.uint8)).shape == (256, 256, 3)
    two = enlarge(np.arange(128 * 128 * 3).reshape(128, 128, 3).astype(np.uint8))
    assert (two[0, 0] == two[1, 1]).all()
    assert (two[0, 0] != two[0, 2]).any()


def test_padding_repeats_the_last_row_and_column():
    frame = np.arange(9, dtype=np.uint8).reshape(3, 3, 1)
    # 0 1 2 / 3 4 5 / 6 7 8 → a fourth column 2 5 8 8 and a fourth row 6 7 8 8.
    assert pad_to_even(frame)[..., 0].tolist() == [[0, 1, 2, 2], [3, 4, 5, 5], [6, 7, 8, 8], [6, 7, 8, 8]]
    assert pad_to_even(GREY) is GREY


def test_wrapping_at_spaces():
    # Every letter is 1 wide: "pick up" is 7, "the bowl" is 8.
    assert wrap("pick up  the bowl\nnow", len, 8) == ["pick up", "the bowl", "now"]
    assert wrap("incredibly big", len, 4) == ["incredibly", "big"]
    assert wrap("", len, 4) == []


@pytest.mark.parametrize(
    "module", ["video.video", "metrics", "statistics", "timing", "trackers.trackers", "terminal.console"]
)
def test_importing_brings_in_neither_torch_nor_pictures(module):
    code = (
        f"import sys, embodied.observe.{module}; "
        "print([m for m in ('torch', 'imageio', 'imageio_ffmpeg', 'PIL', 'tensorboard') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, encoding="utf-8") == "[]\n"
