"""Reads demonstrated answers: JSONL, JSON, CSV, Parquet, or rows that a function of yours makes."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.data.text import Columns, Written, answers
from embodied.errors import AssetsMissingError, ConfigError, DatasetError
from embodied.targets import load_target

Rows = Sequence[Mapping[str, Any]]


def read(path: str, columns: Columns, options: Mapping[str, Any]) -> list[Written]:
    """Reads the demonstrated answers of a file, or of a function.

    Args:
        path: ``FILE.jsonl`` (also ``.json``, ``.csv``, ``.parquet``), or ``package.module:name`` or ``file.py:name`` of
            a function that gives rows.
        options: keyword arguments of the function.

    Raises:
        DatasetError: there is no such file, it is damaged or empty, or a row lacks a column.
        ConfigError: the function cannot be imported or called.
    """
    source, colon, name = path.rpartition(":")
    rows = _made(source, name, options) if colon and "/" not in name else _read_file(Path(path))
    return answers(rows, columns, path)


def _read_file(path: Path) -> Rows:
    if not path.is_file():
        raise DatasetError(f"no file {path}", "give data=PATH that exists, or module:function for rows of your own")
    readers: dict[str, Callable[[Path], Rows]] = {
        ".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet
    }  # fmt: skip
    if path.suffix not in readers:
        raise DatasetError(
            f"{path} is no file of a known kind", f"give a file that ends in {', '.join(readers)}, or module:function"
        )
    return readers[path.suffix](path)


def _jsonl(path: Path) -> Rows:
    with path.open(encoding="utf-8") as lines:
        return [_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise DatasetError(f"{where} is no JSON: {error}", "correct the line, or write the file again") from error
    if not isinstance(found, dict):
        raise DatasetError(f"{where} is no JSON object: {text[:60].strip()}", "write one object a line")
    return found


def _json(path: Path) -> Rows:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path} is no JSON: {error}", "correct it, or write one object a line as .jsonl") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise DatasetError(f"{path} is no list of objects", "write [{…}, {…}], or one object a line as .jsonl")
    return found


def _csv(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def _parquet(path: Path) -> Rows:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise AssetsMissingError(f"{path} needs pyarrow", "run pip install 'embodied-rl[data]'") from error
    try:
        rows: Rows = read_table(path).to_pylist()
    except (ArrowInvalid, OSError) as error:
        raise DatasetError(f"{path} cannot be read: {error}", "write or download it again") from error
    return rows


def _made(source: str, name: str, options: Mapping[str, Any]) -> Rows:
    where = f"{source}:{name}"
    function = _from_file(Path(source), name) if source.endswith(".py") else load_target(f"{source}.{name}", "data")
    try:
        made: Iterable[Mapping[str, Any]] = function(**options)
    except TypeError as error:
        raise ConfigError(f"{where} cannot be called with {dict(options)}: {error}", "correct data.options") from error
    return [*made]


def _from_file(file: Path, name: str) -> Callable[..., Any]:
    if not file.is_file():
        raise DatasetError(f"no file {file}", "correct the path before the colon")
    spec = importlib.util.spec_from_file_location(f"embodied_data_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look themselves up there
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ConfigError(f"{file} has no '{name}'", "correct the name after the colon")
    found: Callable[..., Any] = getattr(module, name)
    return found
