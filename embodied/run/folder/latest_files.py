"""Finds the latest files of a run for its panel: checkpoint, video, answers, and metrics of earlier iterations."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from embodied.learn.checkpoint.checkpoint import NAME, place
from embodied.observe.terminal.screen import Look
from embodied.schema import VideoConfig

MOST_BYTES = 1 << 26
"""A larger ``metrics.jsonl`` is not read for the panel."""


def newest_of(folder: Path, recorded: Iterable[VideoConfig]) -> Look:
    """Makes a function that finds the newest checkpoint, video and answers of the training in ``folder``, as far as
    there are any.

    Args:
        recorded: the videos of both sides.
    """
    videos = {Path(video.video_base_dir) for video in recorded if video.save_video}

    def look() -> Mapping[str, Path]:
        files = {
            "checkpoint": newest_checkpoint(folder / "checkpoints"), "video": newest_video(videos),
            "answers": max((folder / "generations").glob("[0-9]*.jsonl"), default=None),
        }  # fmt: skip
        return {kind: file for kind, file in files.items() if file is not None}

    return look


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the furthest complete checkpoint in a folder."""
    found = sorted((path for path in folder.glob("[0-9]*") if NAME.fullmatch(path.name)), key=place, reverse=True)
    return next((path for path in found if (path / "meta.json").is_file()), None)


def newest_video(folders: set[Path]) -> Path | None:
    """Returns the newest whole video in ``folders``; of folders beside each other only the newest is searched."""
    found = [file for folder in folders for file in _videos(folder)]
    return Path(max(found, key=lambda entry: entry.stat().st_mtime)) if found else None


def _videos(folder: Path | os.DirEntry[str]) -> Iterator[os.DirEntry[str]]:
    """The newest video of a folder, and of the newest folder in it, and so on. A file that is being written has a dot
    before its name."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
        files = [entry for entry in shown if entry.name.endswith(".mp4")]
        folders = [entry for entry in shown if entry.is_dir(follow_symlinks=False)]
        if files:
            yield max(files, key=lambda entry: entry.stat().st_mtime)
        if folders:
            yield from _videos(max(folders, key=lambda entry: entry.stat().st_mtime))
    except OSError:  # it is not there yet, or was deleted in between
        return


def earlier(folder: Path, iterations: int) -> list[dict[str, float]]:
    """Reads the metrics of a run's first ``iterations`` iterations from ``metrics.jsonl``. What cannot be read is left
    out."""
    file = folder / "metrics.jsonl"
    try:
        if iterations == 0 or file.stat().st_size > MOST_BYTES:
            return []
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: list[dict[str, float]] = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int) and row["step"] <= iterations:
            found.append({name: float(value) for name, value in row.items() if isinstance(value, (int, float))})
    return found
