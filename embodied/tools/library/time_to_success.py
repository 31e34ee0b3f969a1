"""``python -m embodied.tools.report --time-to-success RUN …``: what trainings took until they succeeded; or the check
of rows that others send."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from embodied import report
from embodied.errors import ConfigError
from embodied.observe.terminal.console import make_console
from embodied.report.time_to_success import text
from embodied.report.time_to_success.measure import rows_of
from embodied.report.time_to_success.rows import Row, Rows, check


def main(given: argparse.Namespace) -> int:
    """Returns the exit status 0.

    Raises:
        EmbodiedError: a folder has no evaluations, or a file's rows are not as they must be.
    """
    if bool(given.runs) == (given.check is not None):
        raise ConfigError(
            "--time-to-success takes either runs or, with --check, a file of rows",
            "write embodied report --time-to-success runs/A runs/B, or --time-to-success --check FILE",
        )
    if given.check is not None:
        rows = check(Path(given.check))
        print(f"{given.check}: {len(rows)} rows, as they must be", file=sys.stderr)
    else:
        rows = _of_runs(given.runs, given.protocol)
    if given.json:
        print(Rows(format=1, rows=rows).model_dump_json(indent=1))
    elif given.markdown:
        print("\n\n".join(map(text.markdown, (text.facts(rows), text.times(rows)))))
    else:
        _show(rows)
    return 0


def _of_runs(names: Sequence[str], protocol: str | None) -> list[Row]:
    runs = [report.read(name) for name in names]
    for run in runs:
        if run.state:
            print(f"{run.name}: {run.state}", file=sys.stderr)
    return rows_of(runs, protocol)


def _show(rows: Sequence[Row]) -> None:
    console = make_console()
    for row in text.facts(rows)[1:]:
        console.table(row[0], [list(pair) for pair in zip(text.HEAD[1:], row[1:], strict=True)])
    console.table("time to success", text.times(rows))
    if any(training.wall_is_least for row in rows for training in row.trainings):
        console.say("≥: start-up, or what an interrupted launch did, was not recorded")
