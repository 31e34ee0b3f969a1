"""Puts the videos of an evaluation side by side in a grid, with a label on each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from embodied.observe.terminal.console import Console
from embodied.observe.video.grid import NAME, Tile, write_grid
from embodied.runtime.signals import StopSignal
from embodied.types import Episode, EpisodeResult


def show_side_by_side(
    results: Iterable[EpisodeResult], folder: Path, console: Console, stop: StopSignal
) -> Path | None:  # fmt: skip
    """Writes the video of recorded episodes side by side, says where it is, and returns its file, if there is one. A
    failure is said and stops nothing; a stop signal ends the work."""
    tiles = [
        Tile(Path(one.episode.video), one.success, _label(one.episode))
        for one in results if one.episode.video and not one.not_run
    ]  # fmt: skip
    if not tiles:
        return None
    try:
        with console.progress("putting the videos side by side", brief=True):
            written = write_grid(tiles, folder / NAME, lambda: not stop.wanted)
    except Exception as error:  # noqa: BLE001  (a picture of results stops no run)
        console.say(f"no grid of the videos: {error}")
        return None
    if not written:
        return None
    console.say(f"videos side by side: {folder / NAME}")
    return folder / NAME


def _label(episode: Episode) -> str:
    start, under = episode.start, episode.perturbed
    disturbed = "" if under is None else f" {under.condition.kind} {under.condition.strength}"
    return f"task {start.task_id} start {start.init_state_id}{disturbed}"
