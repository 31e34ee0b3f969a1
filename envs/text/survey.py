"""Reads all rows of a source once: which of them are problems, and why the others are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from embodied.errors import DatasetError
from embodied.rows.formats import Row, Rows

from .reading import Missing, Reading, TooLong, no_column, text_of
from .tokens import TokenLimit
from .verdict import Problem

_SHOWN = 100  # characters of a skipped row

Unreadable = Callable[[Problem], str | None]


@dataclass
class Skipped:
    """Counts rows of a data file that are no problems, for one reason, with the first of them as example."""

    count: int
    first: int  # number of the first one
    shown: str  # its beginning
    missing: Missing | None  # the thing they lack, if that is the reason
    reason: str = ""  # reason of the first one

    @property
    def because(self) -> str:
        """The reason, with the first row as example."""
        return f" ({self.reason})" if self.reason else ""


@dataclass
class Survey:
    """The result of reading all rows of a data file: which are problems, which were skipped and why."""

    total: int = 0
    usable: list[int] = field(default_factory=list)  # numbers of rows that are problems
    pictured: int = 0  # how many of these rows have pictures
    skipped: dict[str, Skipped] = field(default_factory=dict)  # keys are reasons

    @classmethod
    def of(
        cls, where: str, rows: Rows, reading: Reading, filter_overlong: bool, limit: TokenLimit | None = None,
        unreadable: Unreadable | None = None,
    ) -> Survey:  # fmt: skip
        """Reads all rows of a data file, and notes which are problems.

        Args:
            limit: prompts with more tokens are left out.
            unreadable: says of a problem why no response could be verified; such problems are left out.

        Raises:
            DatasetError: no row is a problem, or one is too long and is not to be left out.
            EmbodiedError: tokens cannot be counted.
        """
        found = cls()
        if filter_overlong:
            reading = replace(reading, truncation="error")  # a row that is left out is not cut
        for number, row in enumerate(rows):
            found.total += 1
            try:
                problem = reading.problem(row, number)
            except Missing as missing:
                found.skip(f"without {missing}", number, row, missing)
            except TooLong as error:
                if not filter_overlong:
                    raise too_long(where, number, error.size, reading) from None
                found.skip(f"with a prompt of more than {reading.max_prompt_bytes} bytes", number, row)
            else:
                if unreadable is not None and (reason := unreadable(problem)) is not None:
                    found.skip("with an answer that the verifier cannot read", number, row, reason=reason)
                    continue
                found.usable.append(number)
                found.pictured += bool(problem.pictures)
        if limit is not None and found.usable:
            found._leave_out(rows, reading, limit)
        found._check(where, rows)
        return found

    def _leave_out(self, rows: Rows, reading: Reading, limit: TokenLimit) -> None:
        """Skips the problems whose prompts have too many tokens."""
        numbers, self.usable = self.usable, []
        prompts = (text_of(reading.problem(rows[number], number).prompt) for number in numbers)
        for number, length in zip(numbers, limit.lengths(prompts), strict=True):
            if length <= limit.most:
                self.usable.append(number)
            else:
                self.skip(f"with a prompt of more than {limit.most} tokens", number, rows[number])

    def skip(self, why: str, number: int, row: Row, missing: Missing | None = None, reason: str = "") -> None:
        """Counts a row that is skipped for the reason ``why``.

        Args:
            why: the same for all rows that are counted together.
            reason: of this row.
        """
        if why not in self.skipped:
            self.skipped[why] = Skipped(0, number, str(dict(row))[:_SHOWN], missing, reason)
        self.skipped[why].count += 1

    def _check(self, where: str, rows: Rows) -> None:
        if self.total == 0:
            raise DatasetError(f"{where} has no rows", "give a file with problems in it")
        if self.usable:
            return
        why, skipped = next(iter(self.skipped.items()))
        if skipped.missing:
            raise no_column(where, skipped.missing, next(iter(rows)))
        raise DatasetError(
            f"{where}: all {self.total:,} rows are skipped, {skipped.count:,} of them {why}{skipped.because}",
            "raise env.train.max_prompt_bytes and env.eval.max_prompt_bytes, or data.max_prompt_length; choose a "
            "verifier for such answers (env.train.verifier, env.eval.verifier), or another data.answer_key",
        )

    @property
    def lines(self) -> list[str]:
        """Reports in words which rows were skipped."""
        return [
            f"{one.count:,} of {self.total:,} rows skipped, {why}; the first is row {one.first}: {one.shown}"
            f"{one.because}"
            for why, one in self.skipped.items()
        ]


def too_long(where: str, number: int, size: int, reading: Reading) -> DatasetError:
    """Makes the error for a prompt that does not fit into an observation."""
    return DatasetError(
        f"{where}, row {number}: the prompt has {size:,} bytes, and {reading.max_prompt_bytes:,} fit "
        "(env.train.max_prompt_bytes)",
        f"set max_prompt_bytes={size} or more for env.train and env.eval, data.filter_overlong_prompts=true to leave "
        "such rows out, or data.truncation=left or right to cut them",
    )
