"""Writes rows of times to success as tables: one of what was trained, one of what it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embodied.report.time_to_success.rows import Row, Spread, Training, first_passing

HEAD = (
    "run",
    "task",
    "protocol",
    "policy, parameters trained of all",
    "algorithm",
    "begins from",
    "hardware",
    "seeds",
    "evaluated after iterations",
)
TIMES = ("run", "lower bound above", "trainings", "wall clock", "CPU time", "env steps", "episodes")
UNKNOWN = "not known"

_Shown = Callable[[float], str]


def facts(rows: Sequence[Row]) -> list[list[str]]:
    """Makes the table of what was trained: a head, then each row."""
    return [[*HEAD], *(_facts(row) for row in rows)]


def _facts(row: Row) -> list[str]:
    tasks = row.task.instructions
    sizes = [UNKNOWN if one is None else f"{one:,}" for one in (row.policy.trained, row.policy.parameters)]
    return [
        row.name, f"{row.task.env}: {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}",
        row.protocol.name or (", ".join(row.protocol.hashes) or "not recorded"),
        f"{row.policy.name}, {sizes[0]} of {sizes[1]}", row.algorithm, row.policy.begins_from,
        row.hardware or UNKNOWN, ", ".join(map(_seed, row.trainings)), _evaluated(row.trainings),
    ]  # fmt: skip


def _seed(training: Training) -> str:
    return f"{training.seed}" + ("" if training.seen is None else f" (seen until iteration {training.seen} only)")


def _evaluated(trainings: Sequence[Training]) -> str:
    """Says how often was looked, which is how exactly the times are known."""
    made = {(one.iteration, one.episodes) for training in trainings for one in training.evaluations}
    counts = sorted({episodes for _, episodes in made})
    return f"{', '.join(map(str, sorted({at for at, _ in made})))} ({' or '.join(map(str, counts))} episodes)"


def times(rows: Sequence[Row]) -> list[list[str]]:
    """Makes the table of times to success: a head, then a line for each level of each row."""
    return [[*TIMES], *(_times(row, int(level)) for row in rows for level in sorted(row.until))]


def _times(row: Row, level: int) -> list[str]:
    found, count = next(own for name, own in row.until.items() if int(name) == level), len(row.trainings)
    early = sum(training.seen is not None and first_passing(training, level) is None for training in row.trainings)
    more = f", {early} of them not trained to the end" if early else ""
    if not found.reached:
        return [row.name, f"{level} %", f"not reached: {_most(row.trainings)}{more}", "", "", "", ""]
    least = "≥ " if any(training.wall_is_least for training in row.trainings) else ""
    return [
        row.name, f"{level} %", f"{found.reached} of {count}{more}",
        _cell(found.wall_s, _minutes, least), _cell(found.cpu_s, _minutes, least),
        _cell(found.env_steps, _whole), _cell(found.training_episodes, _whole),
    ]  # fmt: skip


def _most(trainings: Sequence[Training]) -> str:
    best = max((one for training in trainings for one in training.evaluations), key=lambda one: one.low)
    return f"at most {best.rate:.0%} ({best.low:.0%} to {best.high:.0%})"


def _cell(spread: Spread | None, shown: _Shown, least: str = "") -> str:
    if spread is None:
        return UNKNOWN
    middle = "not reached" if spread.median is None else least + shown(spread.median)
    if spread.low == spread.high:
        return middle
    ends = [shown(one) if one is not None else "not reached" for one in (spread.low, spread.high)]
    return f"{middle} ({ends[0]} to {ends[1]})"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _whole(count: float) -> str:
    return f"{count:,.0f}"


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Writes a table as Markdown."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])
