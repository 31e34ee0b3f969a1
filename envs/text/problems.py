"""Sources of problems: each is a task, and each of its problems a start.

    file or custom data set ─ Rows ─▶ survey (which rows are problems) ─▶ order (shuffle, max_samples) ─▶ Source

The survey of a file reads every row once, and is kept beside the file's index. A custom data set with random access is
not surveyed, because its rows may be made when they are asked for: there a row that is no problem is an error.

Evaluations may take a share of the problems, which training then leaves out (:attr:`Selection.part`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from embodied.errors import ConfigError, DatasetError
from embodied.rows.custom import HoldsOut, Numbered, is_custom, load_custom
from embodied.rows.files import SourceFile, cached
from embodied.rows.formats import ArrowCopy, Rows
from embodied.rows.hub import WHOLE, Part, source_of
from embodied.rows.opening import open_source
from embodied.rows.pictures import of_column, pixels

from .reading import Missing, Reading, TooLong, value_of
from .selection import Selection, shuffled
from .survey import Survey, Unreadable, too_long
from .verdict import Problem

_READING = 3  # raised where verifiers come to read other answers: surveys that were kept before are made anew
EVAL_SEEDS = 2**30  # seeds of evaluation starts begin here (embodied.runtime.plan)


@dataclass(frozen=True)
class Source:
    """The problems of one file or data set, as one task of an env with a start for each."""

    name: str  # name of the task
    rows: Rows
    reading: Reading
    numbers: np.ndarray | range  # row number of each start
    notes: tuple[str, ...]  # sentences for the user, said once
    evaluation: Rows  # rows of evaluation starts; the same, unless the data set holds some out
    skipped: int = 0  # rows that are no problems
    pictured: bool = False  # there are problems with pictures
    folder: Path = Path()  # relative paths of pictures start here

    def __len__(self) -> int:
        return len(self.numbers)

    def problem(self, init_state_id: int, seed: int) -> Problem:
        """Reads the problem of a start.

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

    def pixels(self, problem: Problem, size: int) -> np.ndarray:
        """The pictures of a problem, uint8 [n, size, size, 3]. Raises :class:`DatasetError` if one cannot be read."""
        return pixels(problem.pictures, size, self.folder, f"{self.name}, row {problem.number}")


def open_sources(
    data: Sequence[str],
    arguments: Mapping[str, Any],
    reading: Reading,
    selection: Selection,
    weights: Sequence[float] | None,
    part: Part = WHOLE,
    verifier: str = "",
    keep: bool = True,
) -> list[Source]:
    """Opens files, data sets of Hugging Face and custom ones, each as a source. A second call in a process gives the
    same objects.

    Args:
        arguments: of the custom data sets.
        weights: shares of the starts, one a source; None = each source has as many as it has problems.
        part: of the data sets of Hugging Face.
        verifier: parts of a verifier as JSON; problems whose answers it cannot read are left out. "" = keep them.
        keep: whether what is worked out from files is kept for other processes and later starts.

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
    if part != WHOLE and any(map(is_custom, data)):
        raise ConfigError(
            f"env.train.data names a custom data set, which has no{part}: that is of data sets of Hugging Face",
            "leave out env.train.subset, split and revision, and data.train_subset, train_split and train_revision",
        )
    found = [
        _open_custom(name, where, given, reading, selection, verifier)
        if is_custom(where)
        else _open_file(name, source_of(where, part, keep), part, reading, selection, verifier)
        for name, where in zip(names, data, strict=True)
    ]
    return found if weights is None else _weighted(found, weights, selection)


@lru_cache(maxsize=32)
def _open_file(
    name: str, file: SourceFile, part: Part, reading: Reading, selection: Selection, verifier: str
) -> Source:  # fmt: skip
    rows, where, limit = open_source(file, part), f"{file.path}{part}", selection.token_limit
    filtered = selection.filter_overlong_prompts

    def make(out: BinaryIO) -> None:
        survey = Survey.of(where, rows, reading, filtered, limit, _unreadable(verifier))
        notes = np.array(json.dumps(survey.lines))
        np.savez(out, usable=np.array(survey.usable, np.int32), notes=notes, pictured=np.array(survey.pictured))

    def load(path: Path) -> tuple[np.ndarray, list[str], bool]:
        with np.load(path) as found:
            return found["usable"], json.loads(str(found["notes"])), bool(found["pictured"])

    copy = [len(rows), *rows.copy_state] if isinstance(rows, ArrowCopy) else []
    options = json.dumps([asdict(reading), filtered, str(part), limit and limit.identity, verifier, _READING, *copy])
    digest = hashlib.sha256(options.encode()).hexdigest()[:16]
    usable, notes, pictured = cached(file, f"survey-{digest}.npz", make, load)
    skipped, order = int(len(rows) - len(usable)), selection.order(usable, len(rows))
    return Source(name, rows, reading, order, tuple(notes), rows, skipped, pictured, file.folder)


@lru_cache(maxsize=32)
def _open_custom(
    name: str, where: str, arguments: str, reading: Reading, selection: Selection, verifier: str
) -> Source:  # fmt: skip
    rows = load_custom(where, json.loads(arguments))
    if isinstance(rows, Numbered):
        return of_numbers(name, rows, reading, selection)
    filtered, limit = selection.filter_overlong_prompts, selection.token_limit
    survey = Survey.of(where, rows, reading, filtered, limit, _unreadable(verifier))
    order = selection.order(np.array(survey.usable, np.int32), survey.total)
    skipped = survey.total - len(survey.usable)
    return Source(name, rows, reading, order, tuple(survey.lines), rows, skipped, survey.pictured > 0)


def _unreadable(verifier: str) -> Unreadable | None:
    from .verifiers import make_verifier

    return make_verifier(json.loads(verifier)).unreadable if verifier else None


def of_numbers(name: str, rows: Rows, reading: Reading, selection: Selection) -> Source:
    """Makes a source of rows that are generated on demand, all of which are problems.

    Raises:
        DatasetError: there is none, or evaluations have another number of them.
        ConfigError: long prompts are to be left out, which takes reading all rows.
    """
    if selection.filter_overlong_prompts:
        raise ConfigError(
            f"data.filter_overlong_prompts is true, and {name} makes its rows when they are asked for: which are too "
            "long is not known before",
            "leave it out, or let the data set be a function that yields its rows: these are read once at the start",
        )
    if (count := len(rows)) == 0:
        raise DatasetError(f"{name} has no rows", "give a data set with problems in it")
    evaluation = rows.for_evaluation() if isinstance(rows, HoldsOut) else rows
    if evaluation is not rows:  # it keeps problems back itself
        selection = replace(selection, part="all")
        if len(evaluation) != count:
            raise DatasetError(
                f"{name} has {count} rows for training, and its for_evaluation() gives {len(evaluation)}: starts of "
                "evaluations have the same numbers",
                "give equally many rows, or evaluate another data set: data.val_data_paths (env.eval.data)",
            )
    everything: np.ndarray | range = range(count)[: selection.max_samples]
    if selection.shuffle or selection.part != "all":
        everything = selection.order(np.arange(count, dtype=np.int32), count)
    key = reading.image_key
    pictured = key is not None and bool(of_column(value_of(rows[0], key)))  # the first row speaks for all
    return Source(name, rows, reading, everything, (), evaluation, pictured=pictured)


def _weighted(sources: list[Source], weights: Sequence[float], selection: Selection) -> list[Source]:
    """Gives each source its share of as many starts as there are problems in all.

    A source with fewer problems than starts repeats them, in order; of one with more, a subset drawn by the seed stays.
    """
    total, whole = sum(map(len, sources)), sum(weights)
    return [
        replace(s, numbers=_resized(s.numbers, starts, selection))
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
