"""Sources of problems: each is a task, and each of its problems a start.

    file or custom data set ─ Rows ─▶ survey (which rows are problems) ─▶ order (shuffle, max_samples) ─▶ Source

The survey of a file reads every row once, and is kept beside the file's index. A custom data set with random access is
not surveyed, because its rows may be made when they are asked for: there a row that is no problem is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from embodied.errors import ConfigError, DatasetError

from .custom import HoldsOut, Numbered, is_custom, load_custom
from .files import SourceFile, kept
from .reading import Missing, Reading, TooLong, no_column
from .rows import Row, Rows, open_rows
from .verdict import Problem

EVAL_SEEDS = 2**30  # seeds of evaluation starts begin here (embodied.runtime.plan)
_SHOWN = 100  # characters of a skipped row


@dataclass(frozen=True)
class Selection:
    """Which problems of a source are used. Meaning of the fields: :class:`embodied.envs.text.env.MathEnv`."""

    filter_overlong_prompts: bool = False
    shuffle: bool = False
    seed: int = 0
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if self.max_samples is not None and self.max_samples < 1:
            raise ConfigError(
                f"env.train.max_samples is {self.max_samples}, expected 1 or more", "set env.train.max_samples=null"
            )
        if self.seed < 0:
            raise ConfigError(f"env.train.shuffle_seed is {self.seed}, expected 0 or more", "set it to 0")

    def order(self, usable: np.ndarray) -> np.ndarray:
        """The numbers of rows in the order of the starts."""
        if self.shuffle:
            usable = usable[shuffled(len(usable), self.seed)]
        return usable[: self.max_samples]


@dataclass
class Skipped:
    """Rows that are no problems, for one reason."""

    count: int
    first: int  # number of the first one
    shown: str  # its beginning
    missing: Missing | None  # what they lack, if that is the reason


@dataclass
class Survey:
    """What reading all rows found."""

    total: int = 0
    usable: list[int] = field(default_factory=list)  # numbers of rows that are problems
    skipped: dict[str, Skipped] = field(default_factory=dict)  # by reason

    @classmethod
    def of(cls, where: str, rows: Rows, reading: Reading, filter_overlong: bool) -> Survey:
        """Reads all rows.

        Raises:
            DatasetError: no row is a problem, or one is too long and is not to be left out.
        """
        found = cls()
        if filter_overlong:
            reading = replace(reading, truncation="error")  # what is left out is not cut
        for number, row in enumerate(rows):
            found.total += 1
            try:
                reading.problem(row, number)
            except Missing as missing:
                found.skip(f"without {missing}", number, row, missing)
            except TooLong as error:
                if not filter_overlong:
                    raise too_long(where, number, error.size, reading) from None
                found.skip(f"with a prompt of more than {reading.max_prompt_bytes} bytes", number, row)
            else:
                found.usable.append(number)
        found._check(where, rows)
        return found

    def skip(self, why: str, number: int, row: Row, missing: Missing | None = None) -> None:
        """Counts a row that is left out."""
        self.skipped.setdefault(why, Skipped(0, number, str(dict(row))[:_SHOWN], missing)).count += 1

    def _check(self, where: str, rows: Rows) -> None:
        if self.total == 0:
            raise DatasetError(f"{where} has no rows", "give a file with problems in it")
        if self.usable:
            return
        why, skipped = next(iter(self.skipped.items()))
        if skipped.missing:
            raise no_column(where, skipped.missing, next(iter(rows)))
        raise DatasetError(
            f"{where}: all {self.total:,} rows are skipped, {skipped.count:,} of them {why}",
            "raise env.train.max_prompt_bytes and env.eval.max_prompt_bytes",
        )

    @property
    def lines(self) -> list[str]:
        """What was skipped, in words."""
        return [
            f"{one.count:,} of {self.total:,} rows skipped, {why}; the first is row {one.first}: {one.shown}"
            for why, one in self.skipped.items()
        ]


@dataclass(frozen=True)
class Source:
    """Problems of one file or data set, as starts."""

    name: str  # what the task is called
    rows: Rows
    reading: Reading
    numbers: np.ndarray | range  # of the row of each start
    notes: tuple[str, ...]  # what is to be said once
    evaluation: Rows  # rows of evaluation starts; the same, unless the data set holds some out

    def __len__(self) -> int:
        return len(self.numbers)

    def problem(self, init_state_id: int, seed: int) -> Problem:
        """The problem of a start.

        Args:
            seed: of the start; one of an evaluation is :data:`EVAL_SEEDS` or more.

        Raises:
            DatasetError: the row is no problem, or the file has changed.
        """
        rows = self.evaluation if seed >= EVAL_SEEDS else self.rows
        number = int(self.numbers[init_state_id])
        row = rows[number]
        try:
            return self.reading.problem(row, number)
        except Missing as missing:
            raise DatasetError(
                f"row {number} of {self.name} is without {missing}; its columns are: {', '.join(row)}",
                "correct the data set, or set env.train.prompt_key and env.train.answer_key to such columns",
            ) from None
        except TooLong as error:
            raise too_long(self.name, number, error.size, self.reading) from None


def too_long(where: str, number: int, size: int, reading: Reading) -> DatasetError:
    """The error for a prompt that does not fit into an observation."""
    return DatasetError(
        f"{where}, row {number}: the prompt has {size:,} bytes, and {reading.max_prompt_bytes:,} fit "
        "(env.train.max_prompt_bytes)",
        f"set max_prompt_bytes={size} or more for env.train and env.eval, filter_overlong_prompts=true to leave such "
        "rows out, or truncation=left or right to cut them",
    )


def open_sources(
    data: Sequence[str],
    arguments: Mapping[str, Any],
    reading: Reading,
    selection: Selection,
    weights: Sequence[float] | None,
) -> list[Source]:
    """Opens files and custom data sets, each as a source. A second call in a process gives the same objects.

    Args:
        arguments: of the custom data sets.
        weights: shares of the starts, one a source; None = each source has as many as it has problems.

    Raises:
        ConfigError: an option is impossible.
        DatasetError: a file is missing, empty, damaged, or has no such column.
    """
    names = _names(data)
    given = json.dumps(dict(arguments), sort_keys=True, default=str)
    if weights is not None:
        _check_weights(weights, data)
    if arguments and not any(map(is_custom, data)):
        raise ConfigError(
            f"env.train.data_args are {dict(arguments)}, and env.train.data names no custom data set",
            "remove env.train.data_args, or set env.train.data=path/to/file.py:Name",
        )
    found = [
        _open_custom(name, where, given, reading, selection)
        if is_custom(where)
        else _open_file(name, SourceFile.of(Path(where)), reading, selection)
        for name, where in zip(names, data, strict=True)
    ]
    return found if weights is None else _weighted(found, weights, selection)


@lru_cache(maxsize=32)
def _open_file(name: str, file: SourceFile, reading: Reading, selection: Selection) -> Source:
    rows = open_rows(file)
    where, filtered = str(file.path), selection.filter_overlong_prompts

    def make(out: BinaryIO) -> None:
        survey = Survey.of(where, rows, reading, filtered)
        np.savez(out, usable=np.array(survey.usable, np.int32), notes=np.array(json.dumps(survey.lines)))

    def load(path: Path) -> tuple[np.ndarray, list[str]]:
        with np.load(path) as found:
            return found["usable"], json.loads(str(found["notes"]))

    options = json.dumps([asdict(reading), filtered])
    digest = hashlib.sha256(options.encode()).hexdigest()[:16]
    usable, notes = kept(file, f"survey-{digest}.npz", make, load)
    return Source(name, rows, reading, selection.order(usable), tuple(notes), rows)


@lru_cache(maxsize=32)
def _open_custom(name: str, where: str, arguments: str, reading: Reading, selection: Selection) -> Source:
    rows = load_custom(where, json.loads(arguments))
    if isinstance(rows, Numbered):
        return of_numbers(name, rows, reading, selection)
    survey = Survey.of(where, rows, reading, selection.filter_overlong_prompts)
    order = selection.order(np.array(survey.usable, np.int32))
    return Source(name, rows, reading, order, tuple(survey.lines), rows)


def of_numbers(name: str, rows: Rows, reading: Reading, selection: Selection) -> Source:
    """A source of rows that are made when they are asked for, all of which are problems.

    Raises:
        DatasetError: there is none.
    """
    if (count := len(rows)) == 0:
        raise DatasetError(f"{name} has no rows", "give a data set with problems in it")
    everything: np.ndarray | range = range(count)[: selection.max_samples]
    if selection.shuffle:
        everything = shuffled(count, selection.seed)[: selection.max_samples]
    evaluation = rows.for_evaluation() if isinstance(rows, HoldsOut) else rows
    return Source(name, rows, reading, everything, (), evaluation)


def shuffled(count: int, seed: int) -> np.ndarray:
    """A shuffled order, int32 [count]."""
    return np.random.default_rng(seed).permutation(count).astype(np.int32)


def _weighted(sources: list[Source], weights: Sequence[float], selection: Selection) -> list[Source]:
    """Gives each source its share of as many starts as there are problems in all.

    A source with fewer problems than starts repeats them, in order; of one with more, a subset drawn by the seed stays.
    """
    total, whole = sum(map(len, sources)), sum(weights)
    return [
        Source(s.name, s.rows, s.reading, _resized(s.numbers, starts, selection), s.notes, s.evaluation)
        for s, starts in ((s, max(1, round(total * w / whole))) for s, w in zip(sources, weights, strict=True))
    ]


def _resized(numbers: np.ndarray | range, starts: int, selection: Selection) -> np.ndarray:
    all_numbers = np.asarray(numbers, np.int32)
    if starts >= len(all_numbers):
        return np.resize(all_numbers, starts)
    return all_numbers[np.sort(shuffled(len(all_numbers), selection.seed)[:starts])]


def _check_weights(weights: Sequence[float], data: Sequence[str]) -> None:
    if len(weights) != len(data) or not all(0 < weight < float("inf") for weight in weights):
        raise ConfigError(
            f"env.train.weights is {list(weights)}, expected {len(data)} positive numbers, one for each of "
            f"{', '.join(data)}",
            "set env.train.weights=null for as many starts as there are problems",
        )


def _names(data: Sequence[str]) -> Iterator[str]:
    """What each source is called: the file's name, or all of its path where two files have one name."""
    short = [where if is_custom(where) else Path(where).name for where in data]
    for name, where in zip(short, data, strict=True):
        yield name if short.count(name) == 1 else where
