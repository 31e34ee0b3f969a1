"""What a LeRobot data set says of itself: ``meta/`` of the layouts v2.0, v2.1 and v3.x.

| | v2.0, v2.1 | v3.x |
|---|---|---|
| instructions | ``meta/tasks.jsonl`` | ``meta/tasks.parquet`` |
| an episode's length and tasks | ``meta/episodes.jsonl`` | ``meta/episodes/chunk-000/file-000.parquet`` |
| its rows | a file of its own | part of a file, which its row names |

All of it comes from other programs, so each value is checked when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.data.arrow_columns import open_parquet, read_parquet
from embodied.errors import DatasetError

RESTORE = "restore that file from where it came from"
V2_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
NUMBERS = ("float", "int", "uint", "bool")  # beginnings of dtypes


@dataclass(frozen=True)
class Feature:
    """A column of a LeRobot data set as meta/info.json declares it."""

    dtype: str
    shape: tuple[int, ...]
    names: Any = None

    @property
    def is_picture(self) -> bool:
        """Whether the column holds pictures or video frames."""
        return self.dtype in ("image", "video")

    @property
    def is_numeric(self) -> bool:
        """Whether the column holds numbers."""
        return self.dtype.startswith(NUMBERS)

    @property
    def picture_size(self) -> tuple[int, int] | None:
        """Height and width of a picture; None if the shape does not say them."""
        if len(self.shape) != 3:
            return None
        names = [str(name) for name in self.names] if isinstance(self.names, list) else []
        first = names[:1] in (["channel"], ["channels"]) or (
            self.shape[0] in (1, 3, 4) and self.shape[2] not in (1, 3, 4)
        )
        height, width = self.shape[1:] if first else self.shape[:2]
        return height, width


@dataclass(frozen=True)
class EpisodeRow:
    """An episode of a LeRobot data set, as meta/episodes lists it."""

    index: int
    length: int
    tasks: tuple[str, ...]  # instructions; empty if it names none
    file: Path  # parquet file with its rows
    first: int | None  # index of its first row in the whole data set, where it is said


@dataclass(frozen=True)
class Meta:
    """The metadata of a LeRobot data set: everything under ``meta/``."""

    folder: Path
    info: Mapping[str, Any]
    features: Mapping[str, Feature]
    fps: float
    episodes: Sequence[EpisodeRow]  # sorted by index
    tasks: Mapping[int, str]  # task_index → instruction; empty if there is no such file


def read_meta(folder: Path) -> Meta:
    """Reads and checks the metadata of a LeRobot data set. Raises :class:`DatasetError` for an unknown layout or wrong
    values."""
    path = folder / "meta" / "info.json"
    info = read_json(path)
    version = str(info.get("codebase_version", "(none)"))
    if not version.startswith(("v2.", "v3.")):
        raise DatasetError(
            f"{folder} has LeRobot's layout {version}, and v2.0, v2.1 and v3.x are read",
            "convert it with the scripts of LeRobot, or download a newer version of the data set",
        )
    new = version.startswith("v3.")
    episodes = [*(_episodes_v3 if new else _episodes_v2)(folder, info)]
    _check_all_there(path, info, episodes)
    return Meta(folder, info, _features(path, info), _fps(path, info), episodes, _tasks(folder, new))


def _check_all_there(path: Path, info: Mapping[str, Any], episodes: Sequence[EpisodeRow]) -> None:
    indices = [row.index for row in episodes]
    if twice := {index for index in indices if indices.count(index) > 1} if len(set(indices)) < len(indices) else ():
        raise DatasetError(
            f"{path.parent} lists episode {min(twice)} more than once", "restore meta/episodes from where it came from"
        )
    total = info.get("total_episodes")
    if isinstance(total, int) and len(episodes) < total:
        raise DatasetError(
            f"{path} says {total} episodes, and {len(episodes)} are listed in {path.parent}",
            "restore what is missing of meta/episodes, or correct total_episodes if they were removed on purpose",
        )


def _features(path: Path, info: Mapping[str, Any]) -> dict[str, Feature]:
    declared = info.get("features")
    if not isinstance(declared, dict) or not declared:
        raise DatasetError(f"{path} has no 'features', which say what the columns are", RESTORE)
    return {name: _feature(path, name, feature) for name, feature in declared.items()}


def _feature(path: Path, name: str, declared: Any) -> Feature:
    dtype, shape = (declared.get("dtype"), declared.get("shape")) if isinstance(declared, dict) else (None, None)
    shape = [] if shape is None else shape
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise DatasetError(
            f"{path} describes the feature '{name}' as {str(declared)[:80]}, expected a dtype and a shape of whole "
            "numbers",
            "correct it, or restore that file from where it came from",
        )
    return Feature(dtype, tuple(shape), declared.get("names"))


def _fps(path: Path, info: Mapping[str, Any]) -> float:
    fps = info.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < float("inf"):
        raise DatasetError(
            f"{path} says fps {fps!r}, expected a number above 0", "set it to the control steps a second of the data"
        )
    return float(fps)


def _episodes_v3(folder: Path, info: Mapping[str, Any]) -> Iterator[EpisodeRow]:
    for row in episode_rows(folder):
        first = row.get("dataset_from_index")
        yield _row(folder, row, file_of(info, row, folder), first if isinstance(first, int) else None)


def _episodes_v2(folder: Path, info: Mapping[str, Any]) -> Iterator[EpisodeRow]:
    path = folder / "meta" / "episodes.jsonl"
    size = info.get("chunks_size")
    size = size if type(size) is int and size > 0 else 1000
    template = info.get("data_path") or V2_PATH
    for row in sorted_rows(read_lines(path), path):
        index = row["episode_index"]
        yield _row(folder, row, _formatted(folder, template, episode_chunk=index // size, episode_index=index), None)


def _row(folder: Path, row: Mapping[str, Any], file: str, first: int | None) -> EpisodeRow:
    length = row.get("length")
    if type(length) is not int or length < 0:
        raise DatasetError(
            f"{folder / 'meta'}: episode {row['episode_index']} has the length {length!r}", "restore meta/episodes"
        )
    tasks = row.get("tasks")
    tasks = [tasks] if isinstance(tasks, str) else tasks if isinstance(tasks, list) else []
    named = tuple(task for task in tasks if isinstance(task, str) and task.strip())
    return EpisodeRow(row["episode_index"], length, named, folder / file, first)


def episode_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of meta/episodes of the layout v3, by episode. Raises :class:`DatasetError`."""
    rows: list[dict[str, Any]] = []
    for file in sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        names = [name for name in _names(file) if not name.startswith("stats/")]
        rows += sorted_rows(read_parquet(file, names).to_pylist(), file)
    return sorted(rows, key=lambda row: row["episode_index"])


def _names(file: Path) -> list[str]:
    with open_parquet(file) as opened:
        return list(opened.schema_arrow.names)


def sorted_rows(rows: Sequence[Any], path: Path) -> list[dict[str, Any]]:
    """Rows by ``episode_index``. Raises :class:`DatasetError` for one that has none."""
    for number, row in enumerate(rows):
        index = row.get("episode_index") if isinstance(row, dict) else None
        if type(index) is not int or index < 0:
            raise DatasetError(f"{path}, row {number} has the episode_index {index!r}", RESTORE)
    return sorted(rows, key=lambda row: row["episode_index"])


def file_of(info: Mapping[str, Any], row: Mapping[str, Any], folder: Path = Path()) -> str:
    """Returns the path, within a LeRobot v3 data set, of the file with an episode's rows."""
    place = {name: row.get(f"data/{name}") for name in ("chunk_index", "file_index")}
    if wrong := [name for name, value in place.items() if type(value) is not int]:
        raise DatasetError(
            f"{folder / 'meta' / 'episodes'}: episode {row['episode_index']} has 'data/{wrong[0]}' {place[wrong[0]]!r}",
            "restore meta/episodes from where it came from",
        )
    return _formatted(folder, info.get("data_path"), **place)


def _formatted(folder: Path, template: Any, **place: Any) -> str:
    try:
        if not isinstance(template, str):
            raise TypeError(f"it is {template!r}")
        return template.format(**place)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{folder / 'meta' / 'info.json'}: data_path {template!r} does not lead to files: {error}",
            f"correct it; it may use {', '.join('{' + name + '}' for name in place)}",
        ) from error


def _tasks(folder: Path, new: bool) -> dict[int, str]:
    path = folder / "meta" / ("tasks.parquet" if new else "tasks.jsonl")
    if not path.is_file():
        return {}
    rows = read_parquet(path).to_pylist() if new else read_lines(path)
    tasks: dict[int, str] = {}
    for number, row in enumerate(rows):
        named = row if isinstance(row, dict) else {}
        index = named.get("task_index")
        said = next((text for name, text in named.items() if name != "task_index" and isinstance(text, str)), None)
        if type(index) is not int or said is None or tasks.get(index, said) != said:
            raise DatasetError(
                f"{path}, row {number} is {str(row)[:80]}, expected a task_index of its own and an instruction", RESTORE
            )
        tasks[index] = said
    return tasks


def read_lines(path: Path) -> list[Any]:
    """Reads a JSON-lines file. Raises :class:`DatasetError` with the line that is no JSON."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may have other ends of lines within
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read: {error}", RESTORE) from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise DatasetError(f"{path}, line {number} is no JSON: {error}", RESTORE) from error
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object. Raises :class:`DatasetError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} cannot be read: {error}", "restore that file, or start a new folder") from error
    if not isinstance(found, dict):
        raise DatasetError(
            f"{path} holds a JSON {type(found).__name__}, expected an object",
            "restore that file, or start a new folder",
        )
    return found
