"""A greedy and a sampled evaluation from the same starts (``algorithm.val_sampling_params.do_sample=both``).

    greedy  ─▶ eval/000000.json         ┐
    sampled ─▶ eval/000000-sampled.json ┴▶ evaluation/compare.py ─▶ a table

Each is the evaluation that ``do_sample=false`` or ``true`` makes, to the bit, with a protocol and a hash of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embodied.errors import EvaluationError
from embodied.evaluation.compare import compare
from embodied.evaluation.comparison_text import lines, table
from embodied.evaluation.results import SAMPLED, read
from embodied.observe.terminal.console import Console
from embodied.schema.compose.compose import Composed

NAMES = ("greedy", "sampled")


def evaluations(composed: Composed) -> dict[str, Composed]:
    """Splits the evaluation into those that ``do_sample: both`` asks for, greedy and sampled: ending of their files'
    names → configuration."""
    if composed.config.algorithm.val_sampling_params.do_sample != "both":
        return {"": composed}
    return {"": _drawn(composed, sampled=False), SAMPLED: _drawn(composed, sampled=True)}


def _drawn(composed: Composed, sampled: bool) -> Composed:
    """Greedy episodes of a start are usually all equal, so one is run of each."""
    algorithm, resolved = composed.config.algorithm, composed.resolved
    drawn = algorithm.val_sampling_params.model_copy(update={"do_sample": sampled})
    own = {"val_group_size": algorithm.val_group_size if sampled else 1}
    config = composed.config.model_copy(
        update={"algorithm": algorithm.model_copy(update={**own, "val_sampling_params": drawn})}
    )
    of_draw = {**resolved["algorithm"]["val_sampling_params"], "do_sample": sampled}
    section = {**resolved["algorithm"], **own, "val_sampling_params": of_draw}
    return replace(composed, config=config, resolved={**resolved, "algorithm": section})


def planned(evaluations: Sequence[Composed]) -> list[list[str]]:
    """Makes the summary's row that announces a greedy and a sampled evaluation; none for a single one."""
    if len(evaluations) < 2:
        return []
    group = evaluations[-1].config.algorithm.val_group_size
    several = f", {group} of each start" if group > 1 else ""
    return [["evaluations", f"two from the same starts: greedy, then sampled{several}"]]


def show(console: Console, greedy: Path) -> None:
    """Prints the comparison of a greedy and a sampled evaluation: success by task, and the verdict.

    Args:
        greedy: its file; that of the sampled one lies beside it.
    """
    try:
        one = compare(read(str(greedy)), read(str(greedy.with_stem(greedy.stem + SAMPLED))))
    except EvaluationError as error:  # they have no start that both have run
        console.say(f"greedy and sampled were not compared: {error.message}")
        return
    temperature = one.second.conditions["sampling"]["temperature"]
    title = f"greedy, and sampled at temperature {temperature:g}, from the same starts"
    console.table(title, table(one, NAMES))
    meant = ("sampling.", "group_size")
    for line in lines(replace(one, differing=[row for row in one.differing if not row.key.startswith(meant)]), NAMES):
        console.say(line)
