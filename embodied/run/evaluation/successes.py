"""Success of an evaluation: a row for each task and one over all, and the failures by how far they got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from embodied.errors import EvaluationError
from embodied.observe.statistics import wilson
from embodied.protocols import Cell
from embodied.run.build.action_kind import ROBOT
from embodied.run.evaluation.conditions import Conditions
from embodied.types import EpisodeResult, Start

SHOWN_FAILURES = 10
"""Failures in the console's table; the file has all of them."""


@dataclass(frozen=True)
class TaskSuccess:
    """Success on one task, or on all (``task_id`` −1), with the Wilson 95 % interval, and mean lengths in
    control steps."""

    task_id: int
    instruction: str
    successes: int
    episodes: int
    success_rate: float
    low: float
    high: float
    steps_mean: float  # control steps of an episode
    steps_to_success: float | None  # control steps until the first success, median of the episodes that have one
    not_run: int = 0  # planned episodes that could not be run; they count nowhere else


def facts(result: EpisodeResult) -> dict[str, object]:
    """Makes an episode's entry in the evaluation's results file. One that could not be run has no success."""
    start = {"start": asdict(result.episode.start)}
    if result.not_run:
        return {**start, "success": None, "return": None, "steps": None, "video": None, "not_run": result.not_run}
    return {
        **start,
        "success": result.success,
        "return": result.episode_return,
        "steps": result.num_steps,
        "progress": result.progress,
        "steps_to_success": result.solved_at or None,
        "video": result.episode.video,
    }


def failures(results: Sequence[EpisodeResult]) -> list[dict[str, object]]:
    """Lists the failed episodes, those with the most progress first, by the env's own reward."""
    failed = sorted((r for r in results if not r.success), key=lambda r: (-r.progress, r.episode.episode_id))
    return [
        {"start": asdict(r.episode.start), "progress": r.progress, "steps": r.num_steps, "video": r.episode.video}
        for r in failed
    ]


def split_run(episodes: Sequence[EpisodeResult]) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
    """Splits planned episodes into those that were run and those that could not be.

    Raises:
        EvaluationError: none was run.
    """
    without = [result for result in episodes if result.not_run]
    if len(without) == len(episodes):
        raise EvaluationError(
            f"none of {len(episodes)} episodes could be run; the first: {without[0].not_run}",
            "correct what that says; the workers' logs are in logs/ of the run folder",
        )
    return [result for result in episodes if not result.not_run], without


def not_run_note(episodes: Sequence[EpisodeResult]) -> str | None:
    """Says how many episodes could not be run, and why; None if ``episodes``, which were not run, is empty."""
    if not episodes:
        return None
    return (
        f"{len(episodes)} planned episodes could not be run, and count neither as success nor as failure; the first: "
        f"{episodes[0].not_run}"
    )


def summarise(
    tasks: Sequence[str], results: Sequence[EpisodeResult], origin: Callable[[EpisodeResult], Start] = ROBOT.origin,
    not_run: Sequence[EpisodeResult] = (),
) -> list[TaskSuccess]:  # fmt: skip
    """Returns one row for each task that was run, then one over all.

    Args:
        origin: what is the same for episodes that are no independent trials.
    """
    rows, of_task = [], defaultdict[int, list[EpisodeResult]](list, {-1: list(results)})
    for result in results:
        of_task[result.episode.start.task_id].append(result)
    for task_id, instruction in [*enumerate(tasks), (-1, "all tasks")]:
        chosen = of_task[task_id]
        own = [r.success for r in chosen]
        if own:
            starts = len({origin(r) for r in chosen})  # episodes of one start are no independent trials
            low, high = wilson(sum(own) * starts / len(own), starts)
            solved = [r.solved_at for r in chosen if r.solved_at]
            lost = sum(task_id in (-1, r.episode.start.task_id) for r in not_run)
            rows.append(TaskSuccess(
                task_id, instruction, sum(own), len(own), sum(own) / len(own), low, high,
                mean(r.num_steps for r in chosen), median(solved) if solved else None, lost,
            ))  # fmt: skip
    return rows


def metrics(
    rows: Sequence[TaskSuccess], results: Sequence[EpisodeResult], under: Conditions, steps: bool = True
) -> dict[str, float]:  # fmt: skip
    """Returns the ``eval/`` metrics of ``results``, which ``rows`` sum up.

    Args:
        steps: with lengths of episodes; texts have none.
    """
    total = rows[-1]
    solved = [result.solved_at for result in results if result.solved_at]
    lengths = {"eval/episode_length_mean": total.steps_mean}
    lengths |= {"eval/progress_mean": mean(result.progress for result in results)}
    if solved:
        lengths |= {"eval/time_to_success_mean": mean(solved), "eval/time_to_success_min": min(solved)}
    return {
        "eval/success_rate": total.success_rate,
        "eval/success_low": total.low,
        "eval/success_high": total.high,
        "eval/return_mean": sum(r.episode_return for r in results) / len(results),
        "eval/episodes": total.episodes,
        "eval/max_steps": under.max_steps,
        "eval/env_max_steps": under.env_max_steps,
        **(lengths if steps else {}),
        **{f"eval/task/{row.task_id}/success_rate": row.success_rate for row in rows[:-1]},
    }


def cells(rows: Sequence[TaskSuccess], steps: bool = True) -> list[list[str]]:
    """Formats the success table for the console.

    Args:
        steps: with lengths of episodes; texts have none.
    """
    lengths = ["mean length", "to success, median"] if steps else []
    lost = ["not run"] if rows[-1].not_run else []
    return [
        ["task", "success", "95 % interval", *lost, *lengths, "instruction"],
        *(
            [
                "all" if row.task_id < 0 else str(row.task_id),
                f"{row.successes}/{row.episodes} ({row.success_rate:.0%})",
                f"{row.low:.0%} to {row.high:.0%}",
                *([str(row.not_run)] if lost else []),
                *([f"{row.steps_mean:.0f}", _steps(row.steps_to_success)] if steps else []),
                row.instruction,
            ]
            for row in rows
        ),
    ]


def table(rows: Sequence[TaskSuccess], protocol: Mapping[str, str | None]) -> tuple[list[str], list[list[Cell]]]:
    """Makes the success table for trackers: its columns, and a row for each task and one over all.

    Args:
        protocol: name and hash; trackers show tables of several runs side by side.
    """
    columns = ["instruction", "successes", "episodes", "success_rate", "low", "high", "not_run"]
    named = [protocol["name"] or "", protocol["hash"] or ""]
    return ["task", *columns, "protocol", "protocol_hash"], [
        ["all" if row.task_id < 0 else str(row.task_id), *(getattr(row, name) for name in columns), *named]
        for row in rows
    ]


def _steps(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def shown_failures(failed: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Selects the failures that the console shows: those with a video first, each by how far they got."""
    return sorted(failed, key=lambda failure: not failure["video"])[:SHOWN_FAILURES]


def failure_cells(shown: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> list[list[str]]:
    """Formats the console's table of failures.

    Args:
        names: of the env's tasks, if they have some.
    """
    head = ["task", "initial state", "seed", "progress", "steps", "video", *(["name"] if names else [])]
    return [
        head,
        *(
            [
                *(str(one["start"][key]) for key in ("task_id", "init_state_id", "seed")),
                f"{one['progress']:.2f}", str(one["steps"]), one["video"] or "",
                *([names[one["start"]["task_id"]]] if names else []),
            ]
            for one in shown
        ),
    ]  # fmt: skip
