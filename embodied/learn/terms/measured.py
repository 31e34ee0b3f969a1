"""Lists the metrics that terms measure: each has one row in the table and one term that measures it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from embodied.errors import ConfigError
from embodied.learn.terms.term import Term
from embodied.observe.metrics import Metric, is_documented

NAME = re.compile(r"train/[A-Za-z0-9_./-]+")
DECLARE = 'Metric("train/NAME", "MEANING", "UNIT", "lower") of embodied.observe.metrics in the metrics of its class'


def names_of(term: Term) -> list[str]:
    """Lists the names of the metrics that a loss term may measure."""
    return [row.name if isinstance(row, Metric) else row for row in term.metrics]


def rows_of(terms: Mapping[str, Term]) -> list[Metric]:
    """Returns the rows of the metrics table (name, meaning, unit) that the user's loss terms bring along.

    Args:
        terms: by the name that messages have.

    Raises:
        ConfigError: a metric has no row, or two rows, or two terms measure it.
    """
    rows: list[Metric] = []
    owners: dict[str, str] = {}
    for owner, term in terms.items():
        for row, name in zip(term.metrics, names_of(term), strict=True):
            _check_row(owner, row)
            if name in owners:
                raise ConfigError(
                    f"{owner} measures {name}, and so does {owners[name]}",
                    "give the metric of one of them another name",
                )
            owners[name] = owner
            if isinstance(row, Metric):
                rows.append(row)
    return rows


def _check_row(owner: str, row: str | Metric) -> None:
    if not isinstance(row, Metric):
        if not (isinstance(row, str) and is_documented(row)):
            raise ConfigError(f"{owner} measures {row!r}, which has no row in the table of metrics", f"give {DECLARE}")
    elif not NAME.fullmatch(str(row.name)):
        raise ConfigError(f"{owner} measures {row.name!r}, and a term's metrics are train/…", f"give {DECLARE}")
    elif is_documented(row.name):
        raise ConfigError(f"{owner} measures {row.name}, which is a metric of every run", "give it another name")
    elif not row.meaning:
        raise ConfigError(f"{owner} measures {row.name} and does not say what it means", f"give {DECLARE}")
