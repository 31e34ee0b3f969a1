"""Evaluation: k episodes of each task, success with its interval, videos."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from embodied.observe.statistics import wilson
from embodied.random import Stream
from embodied.run.barrier import in_order, meet
from embodied.run.build import Parts, sampling
from embodied.run.collector import Collector
from embodied.run.conditions import Conditions, conditions
from embodied.run.device_memory import explained
from embodied.run.reporter import counting_successes
from embodied.runtime.plan import eval_plan, with_videos
from embodied.runtime.rollout import Job
from embodied.runtime.signals import StopSignal
from embodied.schema import EnvEvalConfig
from embodied.types import Episode, EpisodeResult


@dataclass(frozen=True)
class TaskSuccess:
    """Success on one task, or on all (``task_id`` −1), with the Wilson 95 % interval."""

    task_id: int
    instruction: str
    successes: int
    episodes: int
    success_rate: float
    low: float
    high: float


def evaluate(parts: Parts, iteration: int, collector: Collector | None, stop: StopSignal) -> dict[str, float]:
    """Evaluate after ``iteration`` training iterations, on ``collector`` if its workers fit, else on new ones. Each
    rank runs its share of the episodes; all get all results.

    Writes ``<run>/eval/<iteration>.json``; returns the ``eval/`` metrics.

    Raises:
        Stopped: on all ranks; a signal has ended the share of one.
    """
    plan = _plan(parts, iteration)
    with ExitStack() as opened, explained(parts, "rollout"), parts.parallel.acting():
        shares = meet(parts, stop, lambda: _collect(parts, parts.world.share(plan), collector, opened))
    results = in_order(plan, [results for results, _ in shares])
    return {**report(parts, iteration, results), "eval/worker_restarts": sum(restarts for _, restarts in shares)}


def _collect(
    parts: Parts, plan: Sequence[Episode], collector: Collector | None, opened: ExitStack
) -> tuple[list[EpisodeResult], int]:
    """Results, and how many workers were replaced. Workers that it starts end with ``opened``."""
    side = parts.checked.eval
    if collector is not None and collector.identity == side.identity:
        return _run(parts, plan, collector)
    own = parts.open_collector(side, 2 * parts.world.divide(side.config.total_num_envs))
    opened.callback(own.close)
    return _run(parts, plan, own)


def _plan(parts: Parts, iteration: int) -> list[Episode]:
    side, config = parts.checked.eval, parts.config
    assert isinstance(side.config, EnvEvalConfig)
    plan = eval_plan(
        side.spec, episodes_per_task=side.config.episodes_per_task, env_seed=side.config.seed,
        fixed_states=side.config.use_fixed_reset_state_ids, seed=config.runner.seed,
    )  # fmt: skip
    video = side.config.video_cfg
    if video.save_video:
        plan = with_videos(plan, video_folder(parts, iteration), video.max_videos)
    return plan


def _run(parts: Parts, plan: Sequence[Episode], collector: Collector) -> tuple[list[EpisodeResult], int]:
    side, config = parts.checked.eval, parts.config
    job = Job(
        sampling(config.algorithm.val_sampling_params), config.runner.seed, Stream.EVAL_NOISE,
        parts.trainer.weight_version, side.max_steps, keep_records=False,
        num_slots=parts.world.divide(side.config.total_num_envs),
        ignore_terminations=side.config.ignore_terminations, auto_reset=side.config.auto_reset,
    )  # fmt: skip
    with parts.console.progress(f"evaluation{parts.world.share_note}", len(plan)) as bar:
        results, stats = collector.rollout.collect(plan, job, counting_successes(bar), bar.at)
    return results, stats.worker_restarts


def video_folder(parts: Parts, iteration: int) -> Path:
    return Path(parts.checked.eval.config.video_cfg.video_base_dir) / f"{iteration:06d}"


def summarise(tasks: Sequence[str], results: Sequence[EpisodeResult]) -> list[TaskSuccess]:
    """One row a task that was run, then one over all."""
    rows = []
    for task_id, instruction in [*enumerate(tasks), (-1, "all tasks")]:
        own = [r.success for r in results if task_id in (-1, r.episode.start.task_id)]
        if own:
            low, high = wilson(sum(own), len(own))
            rows.append(TaskSuccess(task_id, instruction, sum(own), len(own), sum(own) / len(own), low, high))
    return rows


def report(parts: Parts, iteration: int, results: Sequence[EpisodeResult]) -> dict[str, float]:
    """The ``eval/`` metrics; rank 0 writes and prints the results with the conditions that they hold under."""
    rows, under = summarise(parts.checked.eval.spec.tasks, results), conditions(parts, iteration)
    if not parts.world.is_main:
        return metrics(rows, results, under)
    file = parts.folder.path / "eval" / f"{iteration:06d}.json"
    file.parent.mkdir(exist_ok=True)
    episodes = [
        {
            "start": asdict(r.episode.start),
            "success": r.success,
            "return": r.episode_return,
            "steps": r.num_steps,
            "video": r.episode.video,
        }
        for r in results
    ]
    found = {"iteration": iteration, "conditions": asdict(under), "tasks": [asdict(row) for row in rows]}
    file.write_text(json.dumps({**found, "episodes": episodes}, indent=1))
    parts.console.table("\n".join([f"evaluation of {under.weights}", *under.head]), _cells(rows))
    if any(r.episode.video for r in results):
        parts.console.say(f"videos: {video_folder(parts, iteration)}")
    return metrics(rows, results, under)


def metrics(rows: Sequence[TaskSuccess], results: Sequence[EpisodeResult], under: Conditions) -> dict[str, float]:
    total = rows[-1]
    return {
        "eval/success_rate": total.success_rate,
        "eval/success_low": total.low,
        "eval/success_high": total.high,
        "eval/return_mean": sum(r.episode_return for r in results) / len(results),
        "eval/episodes": total.episodes,
        "eval/max_steps": under.max_steps,
        "eval/env_max_steps": under.env_max_steps,
        **{f"eval/task/{row.task_id}/success_rate": row.success_rate for row in rows[:-1]},
    }


def _cells(rows: Sequence[TaskSuccess]) -> list[list[str]]:
    head = ["task", "success", "95 % interval", "instruction"]
    return [
        head,
        *(
            [
                "all" if row.task_id < 0 else str(row.task_id),
                f"{row.successes}/{row.episodes} ({row.success_rate:.0%})",
                f"{row.low:.0%} to {row.high:.0%}",
                row.instruction,
            ]
            for row in rows
        ),
    ]
