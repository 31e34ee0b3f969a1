"""Reads LeRobot's data set layouts v2.0, v2.1 and v3.x; ``lerobot_writer.py`` writes v3.0.

    meta/info.json                                features, sizes; ours adds "embodied", a record of how it was made
    meta/tasks.parquet                            instructions
    meta/episodes/chunk-000/file-000007.parquet   one row an episode: length, task, where its rows are
    meta/stats.json                               range, mean, standard deviation and quantiles of each feature
    data/chunk-000/file-000007.parquet            one row a control step: state, action, pictures (png bytes) …

The rows of an episode are those with its ``episode_index``, in the order of ``frame_index``, wherever they stand in
their file. Source: ``lerobot`` 0.4.4, ``datasets/utils.py`` and ``lerobot_dataset.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied import instructions
from embodied.data import pictures
from embodied.data.arrow_columns import numbers_of, read_parquet
from embodied.data.checking.frames import Camera, Frames
from embodied.data.demonstrations import (
    Demonstration,
    DemonstrationStream,
    FieldSelection,
    PendingEpisode,
    camera_names,
    choices,
    no_actions,
    no_camera,
    package,
)
from embodied.data.lerobot.meta import EpisodeRow, Feature, Meta, read_meta
from embodied.errors import DatasetError, SpecMismatchError

VERSION = "v3.0"
CAMERA, FIELD, ACTION = "observation.images.", "observation.", "action"
COUNTERS = ("frame_index", "index", "timestamp", "task_index")
RESTORE = "restore that file from where it came from"
JITTER = 0.1  # share of a control step by which the time between two rows may differ from it


def open_set(folder: Path, selection: FieldSelection) -> DemonstrationStream:
    """Opens a LeRobot data set, recorded by this library or by another program. Pictures stay encoded in memory.

    Raises:
        DatasetError: it has another version of the layout or pictures as videos, or its ``meta/`` is damaged.
        SpecMismatchError: a wanted camera or state is missing.
    """
    meta = read_meta(folder)
    columns = _columns(folder, meta.features, selection)
    made = meta.info.get("embodied")
    env = made.get("env") if isinstance(made, dict) else None
    made_with = choices(env) if isinstance(env, dict) else {}
    known = [name for name, feature in meta.features.items() if feature.is_numeric or feature.is_picture]
    return DemonstrationStream(_pending(meta, columns, selection), len(meta.episodes), made_with, meta.fps, known)


def _pending(meta: Meta, columns: _Columns, wanted: FieldSelection) -> Iterator[PendingEpisode]:
    """The episodes, those of one file after another, so that each file is read once."""
    by_file: dict[Path, list[EpisodeRow]] = defaultdict(list)
    for row in meta.episodes:
        by_file[row.file].append(row)
    for path, rows in by_file.items():
        file = _File(path, rows, meta, columns, wanted.instruction)
        for row in file.rows:
            yield PendingEpisode(f"{path}, episode {row.index}", partial(file.episode, row))


@dataclass(frozen=True)
class _Columns:
    """The columns of a file that are read, and what they become."""

    cameras: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]  # observation field → columns to concatenate
    action: str

    @cached_property
    def numeric(self) -> list[str]:
        return list(dict.fromkeys([*(key for keys in self.fields.values() for key in keys), self.action]))


def _columns(folder: Path, features: Mapping[str, Feature], wanted: FieldSelection) -> _Columns:
    known = [name for name, feature in features.items() if feature.is_picture]
    if wanted.cameras is None and wanted.camera_keys is None:
        cameras = tuple(known)
    else:
        cameras = tuple(_camera(folder, features, known, *names) for names in camera_names(wanted))
    if videos := [camera for camera in cameras if features[camera].dtype == "video"]:
        raise DatasetError(
            f"{folder} has the pictures of '{videos[0]}' as videos, and only pictures in the parquet files are read",
            "make or convert the data set with use_videos=False (dtype image)",
        )
    numeric = [name for name, feature in features.items() if feature.is_numeric]
    plain: dict[str, tuple[str, ...]] = {
        name.removeprefix(FIELD): (name,) for name in numeric if name.startswith(FIELD)
    }
    if wanted.state_keys:
        plain["state"] = tuple(wanted.state_keys)
    for name in [key for keys in plain.values() for key in keys if key not in numeric]:
        raise SpecMismatchError(f"{folder} has no '{name}'", f"choose data.state_keys from: {', '.join(numeric)}")
    action = wanted.action_key or ACTION
    if action not in numeric:
        raise no_actions(str(folder), action, list(features))
    return _Columns(cameras, plain, action)


def _camera(folder: Path, features: Mapping[str, Feature], known: Sequence[str], camera: str, name: str) -> str:
    key = name if name in features else CAMERA + name
    if key not in known:
        raise no_camera(folder, camera, known)
    return key


@dataclass(frozen=True)
class _File:
    """A parquet file with the rows of some episodes."""

    path: Path
    rows: Sequence[EpisodeRow]
    meta: Meta
    columns: _Columns
    instruction: str | None  # instruction for episodes without one
    _tables: list[Any] = field(default_factory=list)

    def episode(self, row: EpisodeRow) -> Demonstration:
        """Read one of its episodes. Raises :class:`DatasetError`."""
        where = f"{self.path}, episode {row.index}"
        part = self._rows_of(row, where)
        features = self.meta.features
        numbers = {
            name: numbers_of(part[name].combine_chunks(), features[name].shape, where, name)
            for name in self.columns.numeric
        }
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, which is refused
            fields = {
                name: np.concatenate([numbers[key].reshape(row.length, -1) for key in keys], axis=1).astype(np.float32)
                for name, keys in self.columns.fields.items()
            }
            actions = _actions(numbers[self.columns.action], where)
        cameras = [self._camera(part[name].combine_chunks(), name, where) for name in self.columns.cameras]
        told = self._told(part, row, where)
        if len({*told}) > 1 and instructions.FIELD not in fields:  # which says it of our own envs
            fields[instructions.FIELD] = _texts(told)
        return Demonstration(told[0], actions, fields, Frames(where, cameras) if cameras else None, where)

    @property
    def _table(self) -> Any:
        """Its columns, read once. Raises :class:`DatasetError` if rows belong to no episode of it."""
        if not self._tables:
            table = read_parquet(self.path, [*self.columns.cameras, *self.columns.numeric, "episode_index"], COUNTERS)
            owners = _whole(table["episode_index"], f"{self.path}", "episode_index")
            listed = [row.index for row in self.rows]
            if len(strange := owners[~np.isin(owners, listed)]):
                raise DatasetError(
                    f"{self.path} has rows of episode {strange[0]}, which meta/episodes does not list for it",
                    "restore meta/episodes from where it came from, or remove these rows",
                )
            self._tables.append((table, owners))
        return self._tables[0]

    def _rows_of(self, row: EpisodeRow, where: str) -> Any:
        """The rows of an episode, in the order of its steps."""
        table, owners = self._table
        (own,) = np.nonzero(owners == row.index)
        if len(own) != row.length:
            raise DatasetError(
                f"{self.path} has {len(own)} rows of episode {row.index}, and meta/episodes says {row.length}",
                RESTORE,
            )
        if not len(own):
            raise DatasetError(f"{where} has no step", "record it again, or remove it from the data set")
        if own[-1] - own[0] + 1 == len(own):
            part = table.slice(own[0], len(own))
        else:
            part = table.take(_places(own))
        if "frame_index" in part.column_names:
            frames = _whole(part["frame_index"], where, "frame_index")
            if not np.array_equal(frames, np.arange(len(own))):
                part = part.take(_places(_sorted(frames, where)))
        _check_counters(part, row, self.meta.fps, where)
        return part

    def _camera(self, column: Any, name: str, where: str) -> Camera:
        kind = str(column.type)
        if kind.startswith("struct") and column.type.get_field_index("bytes") >= 0:
            if column.null_count:
                raise DatasetError(f"{where}, step {_first_null(column)}: '{name}' is null", RESTORE)
            column = column.field("bytes")
        elif kind not in ("binary", "large_binary"):
            raise DatasetError(
                f"{where} has {kind[:40]} as '{name}', expected picture files (png or jpeg)",
                "write the data set anew with pictures of dtype image",
            )
        if column.null_count:
            raise DatasetError(
                f"{where}, step {_first_null(column)}: the picture of '{name}' is not in the parquet file",
                "embed the pictures in the parquet files",
            )
        return Camera(
            name, len(column), self.meta.features[name].picture_size, partial(_decode, column), partial(_stored, column)
        )

    def _told(self, part: Any, row: EpisodeRow, where: str) -> list[str]:
        """The instruction of each step; one alone if it does not change."""
        if not row.tasks:
            if self.instruction is None:
                raise DatasetError(
                    f"{where} has no task in meta/episodes, so no instruction",
                    "set data.instruction to the instruction of the task that it shows, or restore meta/episodes",
                )
            return [self.instruction]
        if "task_index" not in part.column_names or not self.meta.tasks:
            if len(row.tasks) == 1:
                return [row.tasks[0]]
            raise DatasetError(
                f"{where} has {len(row.tasks)} tasks, and nothing says which step belongs to which",
                "restore the column task_index and the file meta/tasks, or divide the episode",
            )
        tasks = _whole(part["task_index"], where, "task_index")
        for number in np.unique(tasks).tolist():
            said, step = self.meta.tasks.get(number), int(np.argmax(tasks == number))
            if said is None or said.strip() not in [task.strip() for task in row.tasks]:
                shown = "no task of meta/tasks" if said is None else f"'{said}'"
                raise DatasetError(
                    f"{where}, step {step}: task_index {number} is {shown}, and meta/episodes says "
                    f"{', '.join(map(repr, row.tasks))}",
                    "restore meta/tasks and meta/episodes from where they came from; they belong together",
                )
        if (tasks == tasks[0]).all():
            return [self.meta.tasks[int(tasks[0])]]
        return [self.meta.tasks[number] for number in tasks.tolist()]


def _places(rows: np.ndarray) -> Any:
    """int64 [n] → an arrow array."""
    return package("pyarrow").array(rows)


def _sorted(frames: np.ndarray, where: str) -> np.ndarray:
    """Places of the rows in the order of their steps. Raises :class:`DatasetError` for a step that is missing."""
    order = np.argsort(frames, kind="stable")
    wrong = np.flatnonzero(frames[order] != np.arange(len(frames)))
    if len(wrong):
        step, got = int(wrong[0]), frames[order][wrong[0]]
        said = f"has frame_index {got} twice" if step and got == step - 1 else f"has no row with frame_index {step}"
        raise DatasetError(f"{where} {said}; its {len(frames)} rows must be numbered from 0", RESTORE)
    return order


def _check_counters(part: Any, row: EpisodeRow, fps: float, where: str) -> None:
    """Compare ``index`` and ``timestamp`` with the order of the steps, which they must follow."""
    names, steps = part.column_names, np.arange(row.length)
    if "index" in names:
        index = _whole(part["index"], where, "index")
        first = index[0] if row.first is None else row.first
        if len(wrong := np.flatnonzero(index != first + steps)):
            raise DatasetError(
                f"{where}, step {wrong[0]}: 'index' is {index[wrong[0]]}, expected {first + wrong[0]}",
                "restore data/ and meta/episodes from where they came from; they belong together",
            )
    if "timestamp" in names:
        times = numbers_of(part["timestamp"].combine_chunks(), (), where, "timestamp").astype(np.float64)
        gaps = np.diff(times) * fps
        wrong = np.flatnonzero(~(np.abs(gaps - 1) <= JITTER))
        if len(wrong) or not np.isfinite(times).all():
            step = int(wrong[0]) + 1 if len(wrong) else 0
            before = f" after {times[step - 1]:g} s" if step else ""
            raise DatasetError(
                f"{where}, step {step}: the timestamp is {times[step]:g} s{before}, and meta/info.json says {fps:g} "
                "control steps a second (fps)",
                "correct fps in meta/info.json if that is wrong, else restore the file or remove the episode",
            )


def _whole(column: Any, where: str, name: str) -> np.ndarray:
    """Column of whole numbers → int64 [L]."""
    values = numbers_of(column.combine_chunks(), (), where, name)
    if not np.issubdtype(values.dtype, np.integer):
        raise DatasetError(f"{where} has {values.dtype} as '{name}', expected whole numbers", RESTORE)
    return values.astype(np.int64)


def _first_null(column: Any) -> int:
    return int(column.is_null().to_numpy(zero_copy_only=False).argmax())


def _stored(column: Any, t: int) -> bytes:
    found: bytes = column[t].as_py()
    return found


def _decode(column: Any, t: int) -> np.ndarray:
    return pictures.decode(_stored(column, t))


def _texts(told: Sequence[str]) -> np.ndarray:
    """L texts → uint8 [L, n], as :func:`embodied.instructions.read` reads them."""
    longest = max(len(text.encode(errors="replace")) for text in told)
    out = np.zeros((len(told), longest), np.uint8)
    for text, row in zip(told, out, strict=True):
        instructions.write(text, row)
    return out


def _actions(values: np.ndarray, where: str) -> np.ndarray:
    """float32 [L, A]; int32 [L] if each step has one whole number, the index of a discrete action."""
    if np.issubdtype(values.dtype, np.integer) and values.shape[1:] in ((), (1,)):
        if len(values) and np.abs(values.astype(np.int64)).max() > np.iinfo(np.int32).max:
            raise DatasetError(f"{where} has an action beyond 32 bits", RESTORE)
        return values.reshape(-1).astype(np.int32)
    return values.reshape(len(values), -1).astype(np.float32)
