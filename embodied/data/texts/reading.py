"""Reads demonstrated answers: of files, of data sets of Hugging Face, or of rows that a function of yours makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied.data.samples import hold_out
from embodied.data.texts.text import Columns, DemonstratedAnswer, answers_by_row
from embodied.random import held_out
from embodied.rows.custom import Keys, is_custom, load_custom
from embodied.rows.hub import WHOLE, Part, source_of
from embodied.rows.opening import open_source

KEYS = Keys("data.train_data_paths", "data.options")


@dataclass(frozen=True)
class Reader:
    """Reads demonstrated prompt-answer pairs from files or data sets; with ``instead`` from the user's own
    data set class.

    A path is ``FILE.jsonl`` (also ``.json``, ``.csv``, ``.parquet``), a folder, a name on the hub, or
    ``package.module:name`` or ``file.py:name`` of a function that gives rows.

    Args:
        options: keyword arguments of functions.
        instead: a function that takes the place of all paths, and gets them as ``data_files``.
        keep: whether what is worked out from files is kept for later starts.

    Every method raises :class:`embodied.errors.DatasetError` for a file that is missing, damaged or empty, or a row
    that lacks a column, and :class:`embodied.errors.ConfigError` for a function that cannot be imported or called.
    """

    columns: Columns
    options: Mapping[str, Any] = field(default_factory=dict)
    instead: str | None = None
    keep: bool = True

    def read(self, paths: Sequence[str], part: Part = WHOLE) -> list[DemonstratedAnswer]:
        """Reads all demonstrated prompt-answer pairs of some paths.

        Args:
            part: of data sets of Hugging Face.
        """
        if self.instead is None:
            return [one for path in paths for row in self._rows(path, part, self.options) for one in row]
        options = {**self.options, **({"data_files": list(paths)} if paths else {})}
        return [one for row in self._rows(self.instead, part, options) for one in row]

    def read_divided(
        self, paths: Sequence[str], part: Part, test_size: float, seed: int
    ) -> tuple[list[DemonstratedAnswer], list[DemonstratedAnswer]]:
        """Reads all demonstrated answers: ``(for training, held out)``.

        Of a file or data set of Hugging Face rows are held out, each with all of its answers. They are those that an
        env of texts holds out of this source (:func:`embodied.random.held_out`). Of what functions give, answers are
        held out, which ``seed`` draws.
        """
        files = [path for path in paths if self.instead is None and not is_custom(path)]
        made = self.read([path for path in paths if path not in files], part)
        train, out = hold_out(made, test_size, seed)
        for path in files:
            rows = self._rows(path, part, {})
            for row, is_out in zip(rows, held_out(len(rows), test_size), strict=True):
                (out if is_out else train).extend(row)
        return train, out

    def _rows(self, path: str, part: Part, options: Mapping[str, Any]) -> list[list[DemonstratedAnswer]]:
        """The demonstrated answers of each row."""
        own = is_custom(path)
        if own:
            return answers_by_row([*load_custom(path, options, KEYS)], self.columns, path)
        source = source_of(path, part, self.keep)
        return answers_by_row([*open_source(source, part)], self.columns, path, source.folder)
