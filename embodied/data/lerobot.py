"""LeRobot's data set layout, version 3.0, and its reader; ``lerobot_writer.py`` writes it.

    meta/info.json                                features, sizes; ours adds "embodied", a record of how it was made
    meta/tasks.parquet                            instructions
    meta/episodes/chunk-000/file-000007.parquet   one row an episode: length, task, where its rows are
    meta/stats.json                               range, mean, standard deviation and quantiles of each feature
    data/chunk-000/file-000007.parquet            one row a control step: state, action, pictures (png bytes) …

Source: ``lerobot`` 0.4.4, ``datasets/utils.py`` and ``lerobot_dataset.py``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data import pictures
from embodied.data.demonstrations import Demonstration, Demonstrations, Wanted, choices, no_camera, package
from embodied.errors import DatasetError, SpecMismatchError

VERSION = "v3.0"
CAMERA, FIELD = "observation.images.", "observation."


def read(folder: Path, wanted: Wanted) -> Demonstrations:
    """Read every episode of a data set, ours or another program's. Pictures stay encoded in memory.

    Raises:
        DatasetError: it has another version of the layout or pictures as videos, or it is damaged.
        SpecMismatchError: a wanted camera is missing.
    """
    info = read_json(folder / "meta" / "info.json")
    version = str(info.get("codebase_version", "(none)"))
    if not version.startswith("v3."):
        raise DatasetError(
            f"{folder} has LeRobot's layout {version}, and {VERSION} is read",
            "convert it with lerobot's own script: python -m lerobot.datasets.v30.convert_dataset_v21_to_v30",
        )
    columns = _columns(folder, info["features"], wanted)
    by_file: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in episode_rows(folder):
        by_file[file_of(info, row)].append(row)
    episodes = []
    for name, rows in by_file.items():
        episodes += _read_file(folder / name, rows, info["features"], columns)
    env = info.get("embodied", {}).get("env")
    return Demonstrations(folder, episodes, choices(env) if env else {})


@dataclass(frozen=True)
class _Columns:
    """The columns of a file that are read, and what they become."""

    cameras: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]  # observation field → columns to concatenate


def _columns(folder: Path, features: Mapping[str, Any], wanted: Wanted) -> _Columns:
    known = [name for name, feature in features.items() if feature["dtype"] in ("image", "video")]
    cameras = []
    for i, camera in enumerate(wanted.cameras):
        name = wanted.camera_keys[i] if wanted.camera_keys is not None else camera
        key = name if name in features else CAMERA + name
        if key not in known:
            raise no_camera(folder, camera, known)
        if features[key]["dtype"] == "video":
            raise DatasetError(
                f"{folder} has the pictures of '{key}' as videos, and only pictures within the parquet files are read",
                "make or convert the data set with use_videos=False (dtype image)",
            )
        cameras.append(key)
    plain: dict[str, tuple[str, ...]] = {
        name.removeprefix(FIELD): (name,)
        for name, feature in features.items()
        if name.startswith(FIELD) and feature["dtype"] not in ("image", "video", "string")
    }
    if wanted.state_keys is not None:
        plain["state"] = tuple(wanted.state_keys)
    for name in [key for keys in plain.values() for key in keys if key not in features]:
        raise SpecMismatchError(f"{folder} has no '{name}'", f"choose data.state_keys from: {', '.join(features)}")
    return _Columns(tuple(cameras), plain)


def _read_file(
    path: Path, rows: Sequence[Mapping[str, Any]], features: Mapping[str, Any], columns: _Columns
) -> list[Demonstration]:
    pa, parquet = package("pyarrow"), package("pyarrow.parquet")
    names = list(dict.fromkeys([*columns.cameras, *(k for keys in columns.fields.values() for k in keys), "action"]))
    try:
        table = parquet.read_table(path, columns=[*names, "episode_index"])
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"{path} cannot be read: {error}", "restore that file from where it came from") from error
    owners = table["episode_index"].to_numpy()
    found = []
    for row in rows:
        (own,) = np.nonzero(owners == row["episode_index"])
        if len(own) != row["length"] or not len(own):
            raise DatasetError(
                f"{path} has {len(own)} rows of episode {row['episode_index']}, and meta/episodes says {row['length']}",
                "restore that file from where it came from",
            )
        part = {name: table[name].slice(own[0], len(own)).combine_chunks() for name in names}
        numbers = {
            name: numbers_of(part[name], features[name]["shape"]) for name in part if name not in columns.cameras
        }
        fields = {
            name: np.concatenate([numbers[key].reshape(len(own), -1) for key in keys], axis=1).astype(np.float32)
            for name, keys in columns.fields.items()
        }
        files = [part[camera].field("bytes") for camera in columns.cameras]
        actions, seen = _actions(numbers["action"]), _Pictures(path, files) if files else None
        found.append(Demonstration(row["tasks"][0], actions, fields, seen))
    return found


def _actions(values: np.ndarray) -> np.ndarray:
    """float32 [L, A]; int32 [L] if each step has one whole number, the index of a discrete action."""
    if np.issubdtype(values.dtype, np.integer) and values.shape[1:] == (1,):
        return values.reshape(-1).astype(np.int32)
    return values.astype(np.float32)


@dataclass(frozen=True)
class _Pictures:
    """Decodes the pictures of step t: t → uint8 [C, H, W, 3]."""

    path: Path
    files: Sequence[Any]  # one binary arrow array per camera

    def __call__(self, t: int) -> np.ndarray:
        encoded = [column[t].as_py() for column in self.files]
        if None in encoded:
            raise DatasetError(f"{self.path} refers to pictures outside of it", "embed them in the parquet files")
        return np.stack([pictures.decode(data) for data in encoded])


def numbers_of(column: Any, shape: Sequence[int]) -> np.ndarray:
    """Arrow array of L numbers or lists of numbers → [L, …]."""
    while not hasattr(column, "to_numpy") or "list" in str(column.type):
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False).reshape(-1, *shape)


def episode_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of meta/episodes, by episode."""
    parquet = package("pyarrow.parquet")
    rows: list[dict[str, Any]] = []
    for file in sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        names = [name for name in parquet.read_schema(file).names if not name.startswith("stats/")]
        rows += parquet.read_table(file, columns=names).to_pylist()
    return sorted(rows, key=lambda row: row["episode_index"])


def file_of(info: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    return info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read: {error}", "restore that file, or start a new folder") from error
