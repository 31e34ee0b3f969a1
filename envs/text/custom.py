"""Custom data sets: ``path/to/file.py:Name`` or ``package.module:Name``.

``Name`` is a class or function that is called with ``data_args``. It gives an object with ``__len__`` and
``__getitem__`` (numbers from 0; a mapping per row), which is asked for a row when an episode begins, or anything else
that can be iterated: that is read once, in each process, and kept.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from embodied.errors import ConfigError, DatasetError, EmbodiedError, did_you_mean

from .rows import Row, Rows

KEY = "env.train.data"


@runtime_checkable
class HoldsOut(Protocol):
    """A data set that keeps problems back for evaluations; a custom data set may offer it beside :class:`Rows`."""

    def for_evaluation(self) -> Rows:
        """The rows that evaluations take. Training never sees one of them."""
        ...


def is_custom(where: str) -> bool:
    """Whether this names a custom data set and no file."""
    return re.fullmatch(r".+:[A-Za-z_]\w*", where) is not None and not Path(where).exists()


def load_custom(where: str, arguments: Mapping[str, Any]) -> Rows:
    """Makes a custom data set.

    Args:
        arguments: keyword arguments of the class or function.

    Raises:
        ConfigError: there is no such name, it cannot be imported, or does not take the arguments.
        DatasetError: it raises, or gives something that is no data set.
    """
    make = _find(where)
    _check_arguments(where, make, arguments)
    try:
        found = make(**arguments)
        if isinstance(found, Iterable) and not _by_number(found):
            return Listed(where, found)
    except EmbodiedError:
        raise
    except Exception as error:
        raise DatasetError(f"the data set {where} raised {type(error).__name__}: {error}", "correct it") from error
    if not _by_number(found):
        raise DatasetError(
            f"{where} gave a {type(found).__name__}, expected an object with __len__ and __getitem__, or rows",
            "return a list of mappings, or an object that gives one for each number from 0",
        )
    return Numbered(where, found)


def _by_number(found: Any) -> bool:
    return hasattr(found, "__len__") and hasattr(found, "__getitem__") and not isinstance(found, Mapping)


class Numbered:
    """A custom data set with random access."""

    def __init__(self, where: str, rows: Any) -> None:
        self._where, self._rows = where, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        try:
            row = self._rows[number]
        except EmbodiedError:
            raise
        except Exception as error:
            raise DatasetError(
                f"row {number} of {self._where} raised {type(error).__name__}: {error}", "correct the data set"
            ) from error
        return _checked(self._where, number, row)

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))

    def for_evaluation(self) -> Rows:
        """What the data set holds out; without it, the same rows."""
        return Numbered(self._where, self._rows.for_evaluation()) if isinstance(self._rows, HoldsOut) else self


class Listed:
    """A custom data set that was read to its end."""

    def __init__(self, where: str, rows: Iterable[Any]) -> None:
        self._rows = [_checked(where, number, row) for number, row in enumerate(rows)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        return self._rows[number]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)


def _checked(where: str, number: int, row: Any) -> Row:
    if not isinstance(row, Mapping):
        raise DatasetError(
            f"row {number} of {where} is a {type(row).__name__}, expected a mapping from column to value",
            'give {"prompt": …, "answer": …} for each row',
        )
    return row


def _find(where: str) -> Callable[..., Any]:
    place, _, name = where.rpartition(":")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except EmbodiedError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{KEY}: cannot import {place}: {type(error).__name__}: {error}",
            f"set {KEY} to path/to/file.py:Name or package.module:Name that can be imported, or to a file of problems",
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(
            f"{KEY}: {place} has no class or function '{name}'.{did_you_mean(name, known)}",
            f"set {KEY} to {place}:NAME with one of: {', '.join(known) or 'none is there'}",
        )
    return found


def _module_of_file(path: Path) -> ModuleType:
    """Imports a file under a name of its own, once in a process."""
    if not path.is_file():
        raise ConfigError(f"{KEY}: there is no file {path}", f"set {KEY} to path/to/file.py:Name of a file that exists")
    name = f"embodied_custom_{path.stem}_{hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _check_arguments(where: str, make: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    signature = inspect.signature(make)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"env.train.data_args are {dict(arguments)}, and {where} takes {signature}: {error}",
            "set env.train.data_args to what it takes, e.g. env.train.data_args.seed=0",
        ) from error
