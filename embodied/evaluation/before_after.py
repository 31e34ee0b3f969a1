"""Success before a training and after it, for the last lines that a training prints."""

from __future__ import annotations

from pathlib import Path

from embodied.errors import EvaluationError
from embodied.evaluation.compare import REMARKS, Rate, Row, compare
from embodied.evaluation.results import evaluation_files, read


def gain(run: Path) -> list[list[str]]:
    """Returns a table of success before and after a training and of the difference on the same starts, each with its 95
    % interval. It is empty unless the run was evaluated before its first iteration and later
    (``runner.val_before_train``, ``runner.val_check_interval``)."""
    files = evaluation_files(run)
    if len(files) < 2 or int(files[0].stem) != 0:
        return []
    try:
        found = compare(read(str(files[0])), read(str(files[-1])))
    except EvaluationError:  # other starts or tasks than before: the run went on with another env
        return []
    if others := [one.key for one in found.differing if one.key not in REMARKS]:
        return [["not compared", f"the evaluations' conditions differ: {', '.join(others)}"]]
    row = found.over_all
    return [
        [found.first.called("before"), *_rate(row.first)],
        [found.second.called(f"after {int(files[-1].stem)} iterations"), *_rate(row.second)],
        ["difference", f"{row.difference:+.1%}", f"{row.low:+.1%} to {row.high:+.1%}", _verdict(row, found.differ)],
    ]


def _rate(rate: Rate) -> list[str]:
    return [f"{rate.successes}/{rate.episodes} = {rate.rate:.1%}", f"{rate.low:.1%} to {rate.high:.1%}"]


def _verdict(row: Row, differ: bool) -> str:
    return ("a rise" if row.difference > 0 else "a fall") if differ else "may be chance"
