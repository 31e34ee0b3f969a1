"""``python -m embodied.tools.report RUN|EVAL …``: one HTML file that shows what runs and evaluations have left.

    RUN, EVAL … ─▶ report/reading.py: files ─▶ report/page.py: charts, tables, videos ─▶ report.html

Nothing is run: it reads files, and says on the page what of them is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from embodied import report
from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, printed
from embodied.observe.terminal.console import make_console
from embodied.report.reading import Run
from embodied.run.folder.beside.reports import FILE
from embodied.tools.library import time_to_success


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an explained error."""
    given = _arguments().parse_args(argv)
    try:
        if given.time_to_success:
            return time_to_success.main(given)
        if not given.runs or given.check or given.json or given.markdown or given.protocol:
            raise ConfigError(
                "no run is named"
                if not given.runs
                else "--check, --json, --markdown and --protocol are of --time-to-success",
                "name a run: embodied report runs/NAME"
                if not given.runs
                else "add --time-to-success, or leave them out",
            )
        if not given.size > 0:
            raise ConfigError(f"--size is {given.size:g}", "give the most megabytes that the file may have, e.g. 30")
        console = make_console(sys.stderr)
        with console.progress("reading", brief=True):
            runs = [report.read(name, given.ended) for name in given.runs]
        file = Path(given.out) if given.out else place(runs)
        with console.progress("writing the report", brief=True):
            chosen = report.write(runs, file, given.size)
    except EmbodiedError as error:
        print(_printable(printed(error)), file=sys.stderr)
        return 2
    for run in runs:
        for line in (*filter(None, [run.state]), *run.problems):
            print(_printable(f"{run.name}: {line}"))
    left = f", {chosen.too_many} more do not fit in {given.size:g} MB (--size)" if chosen.too_many else ""
    print(_printable(f"{file}: {file.stat().st_size / 1e6:.1f} MB, {len(chosen.videos)} videos{left}"))
    return 0


def _printable(text: str) -> str:
    """A name of a file may hold bytes that are no text."""
    return text.encode("utf-8", errors="replace").decode()


def place(runs: Sequence[Run]) -> Path:
    """Chooses the report's file: in the folder of a single run, else in the current folder."""
    only = runs[0]
    if len(runs) == 1 and not only.evaluation_alone and (only.folder / "config.yaml").is_file():
        return only.folder / FILE
    return Path(FILE)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.report", description="Write one HTML file that shows runs and evaluations."
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN|EVAL",
        help="runs/NAME (a whole run), or one evaluation: runs/NAME@10 (after 10 iterations), a file "
        "runs/NAME/eval/000010.json; several are drawn over each other and compared in pairs",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="default: report.html in the folder of a single run, else here")
    parser.add_argument(
        "--size", type=float, default=30.0, metavar="MB",
        help="most megabytes of the file; videos are left out until it fits (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--ended", action="store_true", help="the run has ended, although its process is still there (its last report)"
    )
    times = parser.add_argument_group("time to success, in place of the HTML file")
    times.add_argument(
        "--time-to-success", action="store_true",
        help="what trainings took until the lower bound of an evaluation passed 50, 70, 85 %%; a RUN may be the folder "
        "of an evaluation (embodied eval) of another RUN's checkpoint",
    )  # fmt: skip
    times.add_argument("--protocol", metavar="NAME|HASH", help="count the evaluations of this protocol alone")
    times.add_argument("--json", action="store_true", help="print the rows as JSON")
    times.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    times.add_argument("--check", metavar="FILE", help="check the rows in a JSON file, and print their tables")
    return parser


if __name__ == "__main__":
    sys.exit(piped(main))
