"""Writes LeRobot's data set layout (described in ``lerobot.py``).

The layout lets a file hold any number of episodes. Here each episode has its own file, so appending one touches no
other. An episode exists once its row in ``meta/episodes`` does; that file is renamed into place after all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data import pictures
from embodied.data.arrow_columns import numbers_of, read_parquet
from embodied.data.demonstrations import package
from embodied.data.lerobot.meta import episode_rows, file_of, read_json
from embodied.data.lerobot.reading import CAMERA, FIELD, VERSION
from embodied.errors import DatasetError
from embodied.lib.whole import write_whole
from embodied.types import EnvSpec, Start

FILES_PER_CHUNK = 1000
PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH, EPISODES_PATH = f"data/{PLACE}", f"meta/episodes/{PLACE}"
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
STATS_PICTURES = 200  # pictures per camera that the statistics use


@dataclass(frozen=True)
class Recording:
    """A finished episode of L control steps, ready to be appended."""

    start: Start
    attempt: int  # index of its start in the plan
    pictures: Sequence[Sequence[bytes]]  # [C][L], png
    fields: Mapping[str, np.ndarray]  # other observation fields, float32 [L, …]
    actions: np.ndarray  # float32 [L, A], or int32 [L] of a discrete env
    rewards: np.ndarray  # float32 [L]
    successes: np.ndarray  # bool [L]


class Writer:
    """Appends recorded episodes to a LeRobot data set in a new or existing folder.

    Args:
        env: spec of the env that the episodes come from.
        made_with: a record of how they are made (JSON).

    Raises:
        DatasetError: the folder holds a data set with other features.
    """

    def __init__(self, folder: Path, env: EnvSpec, made_with: Mapping[str, Any]) -> None:
        package("pyarrow")
        self._folder, self._env = folder, env
        self._info = _info(env, made_with)
        self._episodes = episode_rows(folder) if folder.is_dir() else []
        self._check_same()
        if not (folder / "meta" / "tasks.parquet").is_file():
            _write_tasks(folder / "meta" / "tasks.parquet", env.tasks)
        self._write_info()

    def __len__(self) -> int:
        """Number of episodes in the folder."""
        return len(self._episodes)

    @property
    def attempts(self) -> list[int]:
        """Places in the recording's plan of the starts that episodes were recorded from."""
        return [row["attempt"] for row in self._episodes]

    def append(self, recording: Recording) -> None:
        """Write an episode, completely or not at all."""
        number, length = len(self._episodes), len(recording.actions)
        first = self._episodes[-1]["dataset_to_index"] if self._episodes else 0
        place = dict(zip(("chunk_index", "file_index"), divmod(number, FILES_PER_CHUNK), strict=True))
        table = _table(recording, self._env, number, first, round(self._env.control_hz))
        _write_parquet(self._folder / DATA_PATH.format(**place), table)
        row = {
            "episode_index": number,
            "tasks": [self._env.tasks[recording.start.task_id]],
            "length": length,
            "dataset_from_index": first,
            "dataset_to_index": first + length,
            **{f"data/{key}": value for key, value in place.items()},
            **{f"meta/episodes/{key}": value for key, value in place.items()},
            "attempt": recording.attempt,
            "init_state_id": recording.start.init_state_id,
            "seed": recording.start.seed,
        }
        pa = package("pyarrow")
        _write_parquet(self._folder / EPISODES_PATH.format(**place), pa.Table.from_pylist([row]))
        self._episodes.append(row)
        self._write_info()

    def finish(self) -> None:
        """Write the statistics of all episodes."""
        _write_json(self._folder / "meta" / "stats.json", _statistics(self._folder, self._info, self._episodes))

    def _check_same(self) -> None:
        file = self._folder / "meta" / "info.json"
        if not file.is_file():
            return
        there = read_json(file)
        if there.get("features") != json.loads(json.dumps(self._info["features"])):
            raise DatasetError(
                f"{self._folder} holds demonstrations with other features: {_shown(there.get('features', {}))} there, "
                f"{_shown(self._info['features'])} now",
                "set demos.path to another folder",
            )

    def _write_info(self) -> None:
        frames = self._episodes[-1]["dataset_to_index"] if self._episodes else 0
        totals = {"total_episodes": len(self), "total_frames": frames, "splits": {"train": f"0:{len(self)}"}}
        _write_json(self._folder / "meta" / "info.json", {**self._info, **totals})


def _info(env: EnvSpec, made_with: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "codebase_version": VERSION,
        "robot_type": None,
        "total_episodes": 0,
        "total_frames": 0,
        "total_tasks": len(env.tasks),
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": round(env.control_hz),
        "splits": {},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": _features(env),
        "embodied": dict(made_with),
    }


def _features(env: EnvSpec) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for name, spec in env.obs.items():
        if name == "images":
            height, width = spec.shape[1:3]
            for camera in env.cameras:
                features[CAMERA + camera] = {
                    "dtype": "image",
                    "shape": [height, width, 3],
                    "names": ["height", "width", "channels"],
                }
        else:
            features[FIELD + name] = {"dtype": spec.dtype, "shape": list(spec.shape), "names": None}
    action = env.action.field(1)
    features["action"] = {"dtype": action.dtype, "shape": list(action.shape[1:]) or [1], "names": None}
    features["next.reward"] = {"dtype": "float32", "shape": [1], "names": None}
    features["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    for name in COUNTERS:
        dtype = "float32" if name == "timestamp" else "int64"
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    return features


def _table(recording: Recording, env: EnvSpec, number: int, first: int, fps: int) -> Any:
    pa = package("pyarrow")
    length = len(recording.actions)
    frames = np.arange(length)
    columns: dict[str, Any] = {}
    for camera, files in zip(env.cameras, recording.pictures, strict=True):
        names = [f"frame-{t:06d}.png" for t in range(length)]
        columns[CAMERA + camera] = pa.StructArray.from_arrays(
            [pa.array(files, pa.binary()), pa.array(names)], ["bytes", "path"]
        )
    columns |= {FIELD + name: _rows(values) for name, values in recording.fields.items()}
    columns |= {
        "action": _rows(recording.actions.reshape(length, -1)),
        "next.reward": pa.array(recording.rewards.astype(np.float32)),
        "next.success": pa.array(recording.successes.astype(bool)),
        "timestamp": pa.array((frames / fps).astype(np.float32)),
        "frame_index": pa.array(frames),
        "episode_index": pa.array(np.full(length, number)),
        "index": pa.array(first + frames),
        "task_index": pa.array(np.full(length, recording.start.task_id)),
    }
    return pa.table(columns)


def _rows(values: np.ndarray) -> Any:
    """[L, n] → an arrow array of L lists of n numbers."""
    pa = package("pyarrow")
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _write_parquet(path: Path, table: Any) -> None:
    parquet = package("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: parquet.write_table(table, file))


def _write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write a pandas frame with the instruction as index, as LeRobot reads it. Hand-made metadata replace pandas."""
    pa = package("pyarrow")
    index = "__index_level_0__"
    columns: list[dict[str, str | None]] = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"},
    ]
    described = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [{**column, "metadata": None} for column in columns],
        "pandas_version": "2.0.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), index: pa.array(list(tasks))})
    _write_parquet(path, table.replace_schema_metadata({"pandas": json.dumps(described)}))


def _write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(values, indent=1) + "\n")


def _statistics(folder: Path, info: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics of each feature over all episodes. For pictures: per channel, in [0, 1], over some of them."""
    files = [folder / file_of(info, row, folder) for row in episodes]
    stats: dict[str, Any] = {}
    for name, feature in info["features"].items():
        columns = [read_parquet(file, [name])[name].combine_chunks() for file in files]
        if not columns:
            continue
        if feature["dtype"] == "image":
            stats[name] = _picture_statistics(columns)
        else:
            shape, named = feature["shape"], zip(files, columns, strict=True)
            values = np.concatenate([numbers_of(column, shape, str(file), name) for file, column in named])
            stats[name] = _describe(values.astype(np.float64), axis=0, count=len(values))
    return stats


def _picture_statistics(columns: Sequence[Any]) -> dict[str, Any]:
    every = max(1, sum(map(len, columns)) // STATS_PICTURES)
    files = [file for column in columns for file in column.field("bytes")][::every]
    values = np.stack([pictures.decode(file.as_py()) for file in files]) / 255.0
    flat = _describe(values.reshape(-1, 3), axis=0, count=len(files))
    return {key: [[[v]] for v in value] if key != "count" else value for key, value in flat.items()}  # [3, 1, 1]


def _describe(values: np.ndarray, axis: int, count: int) -> dict[str, Any]:
    found = {"min": values.min(axis), "max": values.max(axis), "mean": values.mean(axis), "std": values.std(axis)}
    found |= {name: np.quantile(values, q, axis=axis) for name, q in QUANTILES.items()}
    return {**{name: value.tolist() for name, value in found.items()}, "count": [count]}


def _shown(features: Mapping[str, Any]) -> str:
    shown = [f"{name} {feature['shape']}" for name, feature in features.items() if name not in COUNTERS]
    return ", ".join(shown)
