"""Custom data sets: ``path/to/file.py:Name`` or ``package.module:Name``.

``Name`` is a class or function that is called with the arguments of the configuration. It gives an object with
``__len__`` and ``__getitem__`` (numbers from 0; a mapping per row), which is asked for a row when an episode begins, or
anything else that can be iterated: that is read once, in each process, and kept.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from embodied.errors import ConfigError, DatasetError, EmbodiedError, did_you_mean
from embodied.rows.formats import Row, Rows


@dataclass(frozen=True)
class Keys:
    """Names of the keys that a custom data set and its arguments come from, for messages."""

    data: str = "env.train.data"
    arguments: str = "env.train.data_args"


@runtime_checkable
class HoldsOut(Protocol):
    """A data set that keeps problems back for evaluations; a custom data set may offer it beside :class:`Rows`."""

    def for_evaluation(self) -> Rows:
        """Returns the rows that evaluations take. Training never sees one of them."""
        ...


def is_custom(where: str) -> bool:
    """Returns whether ``where`` names a custom data set (``module:Class``) and no file."""
    return re.fullmatch(r".+:[A-Za-z_]\w*", where) is not None and not Path(where).exists()


def load_custom(where: str, arguments: Mapping[str, Any], keys: Keys = Keys()) -> Rows:
    """Imports and constructs the user's data set that ``where`` (``module:Class``) names.

    Args:
        arguments: keyword arguments of the class or function.
        keys: where the user has named it.

    Raises:
        ConfigError: there is no such name, it cannot be imported, or does not take the arguments.
        DatasetError: it raises, or gives something that is no data set.
    """
    make = _find(where, keys.data)
    _check_arguments(where, make, arguments, keys.arguments)
    with _blamed(f"the data set {where}"):
        found = make(**arguments)
        if isinstance(found, Iterable) and not _by_number(found):
            return Listed(where, found)
    return Numbered(where, found)


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Says of errors inside that ``what`` raised them; errors with a fix come through as they are."""
    try:
        yield
    except EmbodiedError:
        raise
    except Exception as error:
        raise DatasetError(f"{what} raised {type(error).__name__}: {error}", "correct the data set") from error


def _by_number(found: Any) -> bool:
    return hasattr(found, "__len__") and hasattr(found, "__getitem__") and not isinstance(found, Mapping)


class Numbered:
    """Rows of a custom data set with random access (``len()`` and ``[number]``). Raises :class:`DatasetError` for what
    has none."""

    def __init__(self, where: str, rows: Any) -> None:
        if not _by_number(rows):
            raise DatasetError(
                f"{where} gave a {type(rows).__name__}, expected an object with __len__ and __getitem__, or rows",
                "return a list of mappings, or an object that gives one for each number from 0",
            )
        self._where, self._rows = where, rows

    def __len__(self) -> int:
        with _blamed(f"the number of rows of {self._where}"):
            return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        with _blamed(f"row {number} of {self._where}"):
            row = self._rows[number]
        return _checked(self._where, number, row)

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))

    def for_evaluation(self) -> Rows:
        """Returns the rows that the data set holds out; without ``for_evaluation`` of its own, the same rows."""
        if not isinstance(self._rows, HoldsOut):
            return self
        with _blamed(f"for_evaluation() of {self._where}"):
            return Numbered(f"for_evaluation() of {self._where}", self._rows.for_evaluation())


class Listed:
    """Rows of a custom data set that can only be iterated: it was read to its end."""

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


def _find(where: str, key: str) -> Callable[..., Any]:
    place, _, name = where.rpartition(":")
    try:
        module = (
            _module_of_file(Path(place).expanduser(), key) if place.endswith(".py") else importlib.import_module(place)
        )
    except EmbodiedError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{key}: cannot import {place}: {type(error).__name__}: {error}",
            f"set {key} to path/to/file.py:Name or package.module:Name that can be imported, or to a file of problems",
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(
            f"{key}: {place} has no class or function '{name}'.{did_you_mean(name, known)}",
            f"set {key} to {place}:NAME with one of: {', '.join(known) or 'none is there'}",
        )
    return found


def _module_of_file(path: Path, key: str) -> ModuleType:
    """Imports a file under a name of its own, once in a process."""
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {path}", f"set {key} to path/to/file.py:Name of a file that exists")
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


def _check_arguments(where: str, make: Callable[..., Any], arguments: Mapping[str, Any], key: str) -> None:
    signature = inspect.signature(make)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"{key} are {dict(arguments)}, and {where} takes {signature}: {error}",
            f"set {key} to what it takes, e.g. {key}.seed=0",
        ) from error
