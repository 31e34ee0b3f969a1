"""LeRobot data sets with one oddity each, made from one that the project has recorded."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CAMERA = "observation.images.camera0"
FIRST = "data/chunk-000/file-000.parquet"
Change = Callable[[pa.Table], pa.Table]


def each(folder: Path, change: Change, part: str = "data") -> None:
    for file in sorted((folder / part).glob("**/*.parquet")):
        pq.write_table(change(pq.read_table(file)), file)


def put(name: str, values: Callable[[pa.Table], Sequence[Any]], kind: Any = None) -> Change:
    """Replaces a column; its type stays unless ``kind`` says another."""

    def change(table: pa.Table) -> pa.Table:
        column = pa.array(values(table), kind or table[name].type)
        return table.set_column(table.column_names.index(name), name, column)

    return change


def at(name: str, step: int, value: Any, kind: Any = None) -> Callable[[Path], None]:
    """Replaces the value of one step in each episode."""

    def values(table: pa.Table) -> list[Any]:
        found = table[name].to_pylist()
        found[step] = value
        return found

    return lambda folder: each(folder, put(name, values, kind))


def picture(change: Callable[[Image.Image], Image.Image], step: int = 1) -> Callable[[Path], None]:
    """Replaces the picture of a step by what ``change`` makes of it."""

    def values(table: pa.Table) -> list[Any]:
        found = table[CAMERA].to_pylist()
        changed, out = change(Image.open(io.BytesIO(found[step]["bytes"]))), io.BytesIO()
        changed.save(out, "png")
        found[step]["bytes"] = out.getvalue()
        return found

    return lambda folder: each(folder, put(CAMERA, values))


def picture_bytes(change: Callable[[bytes], bytes | None], step: int = 1) -> Callable[[Path], None]:
    def values(table: pa.Table) -> list[Any]:
        found = table[CAMERA].to_pylist()
        found[step]["bytes"] = change(found[step]["bytes"])
        return found

    return lambda folder: each(folder, put(CAMERA, values))


def info(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Changes meta/info.json in place, or replaces it by what ``change`` returns."""

    def made(folder: Path) -> None:
        file = folder / "meta/info.json"
        said = json.loads(file.read_text(encoding="utf-8"))
        other = change(said)
        file.write_text(json.dumps(said if other is None else other), encoding="utf-8")

    return made


def rows(name: str, values: Callable[[pa.Table], Sequence[Any]], kind: Any = None) -> Callable[[Path], None]:
    """Replaces a column of meta/episodes."""
    return lambda folder: each(folder, put(name, values, kind), "meta/episodes")


def in_one_file(order: Callable[[pa.Table], Sequence[int]]) -> Callable[[Path], None]:
    """All rows in one file, in another order."""

    def made(folder: Path) -> None:
        files = sorted((folder / "data").glob("**/*.parquet"))
        whole = pa.concat_tables(map(pq.read_table, files))
        for file in files:
            file.unlink()
        pq.write_table(whole.take(pa.array(list(order(whole)))), folder / FIRST)
        each(folder, put("data/file_index", lambda table: [0] * len(table)), "meta/episodes")

    return made


def by_step(table: pa.Table) -> list[int]:
    """First the first step of every episode, then the second ones …"""
    keys = [table["episode_index"].to_numpy(), table["frame_index"].to_numpy()]
    return list(np.lexsort(keys))


def drawn(table: pa.Table) -> list[int]:
    return list(np.random.default_rng(0).permutation(len(table)))


def turned(folder: Path) -> None:
    each(folder, lambda table: table.take(pa.array(list(range(len(table)))[::-1])))


def rename_action(folder: Path) -> None:
    info(lambda said: said["features"].update(actions=said["features"].pop("action")))(folder)
    each(folder, lambda t: t.rename_columns(["actions" if name == "action" else name for name in t.column_names]))


def two_tasks(folder: Path) -> None:
    """The second half of each episode shows the other task."""
    each(folder, put("task_index", lambda table: [int(2 * i >= len(table)) for i in range(len(table))]))
    names = tasks_of(folder)
    each(folder, put("tasks", lambda table: [names] * len(table)), "meta/episodes")


def tasks_of(folder: Path) -> list[str]:
    return pq.read_table(folder / "meta/tasks.parquet")["__index_level_0__"].to_pylist()


def as_v2(folder: Path) -> None:
    """The same data set in the layout v2.1, each episode in a file of its own."""
    files = sorted((folder / "meta/episodes").rglob("*.parquet"))
    listed = [row for file in files for row in pq.read_table(file).to_pylist()]
    kept = [{name: row[name] for name in ("episode_index", "tasks", "length")} for row in listed]
    _lines(folder / "meta/episodes.jsonl", kept)
    _lines(folder / "meta/tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(tasks_of(folder))])
    for file in sorted((folder / "data").rglob("*.parquet")):
        file.rename(file.with_name(f"episode_{int(file.stem.partition('-')[2]):06d}.parquet"))
    for file in [folder / "meta/tasks.parquet", *files]:
        file.unlink()
    path = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info(lambda said: said.update(codebase_version="v2.1", data_path=path))(folder)


def _lines(path: Path, values: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
