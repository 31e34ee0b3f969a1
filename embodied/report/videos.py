"""Which recorded episodes go into the page: as many as fit, from every evaluation, task and outcome in turn. The
grid of the newest evaluation comes first."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embodied.observe.video.grid import NAME as GRID
from embodied.observe.video.video import is_whole
from embodied.report.reading import RecordedEpisode, Run

TIMES_TOLD = 24
"""Bytes of the page for each byte of a task's name: it stands there four times, and a character may be escaped."""


@dataclass(frozen=True)
class Video:
    """A recorded episode that is embedded in the page, as base64."""

    run: str
    episode: RecordedEpisode
    base64: str


@dataclass(frozen=True)
class Grid:
    """The video of an evaluation's episodes side by side that is embedded in the page, as base64."""

    run: str
    iteration: int
    base64: str


@dataclass(frozen=True)
class EmbeddedVideos:
    """The videos that a report embeds, and counts of those that it leaves out."""

    videos: Sequence[Video]
    recorded: int  # episodes that have a video
    episodes: int  # all of the evaluations
    too_many: int  # left out because the page would be too large
    missing: int  # files that are gone, or no whole videos
    grids: Sequence[Grid] = ()  # grids of the newest evaluations, at most one a run


def choose(runs: Sequence[Run], most_bytes: int, around: int = 0) -> EmbeddedVideos:
    """Chooses the videos that a report embeds, ``most_bytes`` at most, and reads them.

    Newest evaluations come first, then first ones, then those between. Of each, tasks and outcomes take turns.

    Args:
        around: bytes that each takes beside its own.
    """
    files, missing = [], 0
    for run in runs:
        for episode in run.recorded:
            file = find(run, episode.video)
            if file is None:
                missing += 1
            else:
                files.append((run, episode, file))
    chosen, left = [], most_bytes
    grids = []
    for grid, needed in _grids(runs, around):
        if needed <= left:
            left -= needed
            grids.append(grid)
    for run, episode, file in _in_turns(files):
        try:
            needed = -(-file.stat().st_size // 3) * 4 + around + len(episode.task.encode()) * TIMES_TOLD
            if needed > left:
                continue
            data = base64.b64encode(file.read_bytes()).decode()
        except OSError:
            missing += 1
            continue
        left -= needed
        chosen.append(Video(run.name, episode, data))
    recorded = sum(len(run.recorded) for run in runs)
    ordered = _by_progress(sorted(chosen, key=lambda one: -one.episode.iteration))
    episodes, too_many = sum(run.episodes for run in runs), recorded - missing - len(chosen)
    return EmbeddedVideos(ordered, recorded, episodes, too_many, missing, grids)


def _by_progress(videos: Sequence[Video]) -> list[Video]:
    """Puts failures of each evaluation, where failures stand, in the order of how far they got. Successes stay."""
    failed: dict[int, list[Video]] = {}
    for one in videos:
        if not one.episode.success:
            failed.setdefault(one.episode.iteration, []).append(one)
    farthest_first = {
        iteration: iter(sorted(own, key=lambda one: -_progress(one.episode))) for iteration, own in failed.items()
    }
    return [one if one.episode.success else next(farthest_first[one.episode.iteration]) for one in videos]


def _progress(episode: RecordedEpisode) -> float:
    return -1.0 if episode.progress is None else episode.progress


def _grids(runs: Sequence[Run], around: int) -> Iterator[tuple[Grid, int]]:
    """Yields the grid of each run's newest evaluation that has videos, and the bytes that it takes of the page."""
    for run in runs:
        newest = max((episode.iteration for episode in run.recorded), default=None)
        names = {str(Path(one.video).with_name(GRID)) for one in run.recorded if one.iteration == newest}
        for file in filter(None, (find(run, name) for name in sorted(names))):
            try:
                data = base64.b64encode(file.read_bytes()).decode()
            except OSError:
                continue
            assert newest is not None
            yield Grid(run.name, newest, data), len(data) + around
            break


def find(run: Run, name: str) -> Path | None:
    """Locates the mp4 file of a recorded episode, whose name is relative to the folder of the command; None if it is
    nowhere, or no whole mp4. A run that was moved with its videos is looked for beside its own folder."""
    given = Path(name)
    if given.suffix != ".mp4":
        return None
    places = [given] if given.is_absolute() else [folder / given for folder in (*run.folder.absolute().parents, Path())]
    try:
        return next((place for place in places if is_whole(place)), None)
    except (OSError, ValueError):
        return None


_Found = tuple[Run, RecordedEpisode, Path]


def _in_turns(files: Sequence[_Found]) -> Iterator[_Found]:
    """Yields one of each evaluation, task and outcome, then a second of each, and so on; the important ones first."""
    turns: dict[tuple[int, str, int, str, bool], list[_Found]] = {}
    for run, episode, file in files:
        key = (_rank(run, episode.iteration), run.name, episode.iteration, episode.task, episode.success)
        turns.setdefault(key, []).append((run, episode, file))
    for key, several in turns.items():
        if not key[-1]:  # failures that got farthest come first
            several.sort(key=lambda one: -_progress(one[1]))
    ordered = [turns[key] for key in sorted(turns, key=lambda key: key[0])]
    for wanted in (0, 1, 2):
        own = [files for files in ordered if _rank(files[0][0], files[0][1].iteration) == wanted]
        for turn in range(max(map(len, own), default=0)):
            yield from (files[turn] for files in own if turn < len(files))


def _rank(run: Run, iteration: int) -> int:
    """0 of the newest evaluation, 1 of the first, 2 of others."""
    return 0 if iteration == max(run.evaluations) else 1 if iteration == min(run.evaluations) else 2
