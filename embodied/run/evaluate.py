"""The recipe of an evaluation: k episodes of each task, success with its interval, videos."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from embodied.observe.console import Console
from embodied.observe.statistics import wilson
from embodied.random import Stream
from embodied.run import summary
from embodied.run.build import open_folder, open_model, sampling, sizes
from embodied.run.collector import in_order
from embodied.run.conditions import Conditions, conditions
from embodied.run.device_memory import explained
from embodied.run.generations import Generations, write
from embodied.run.preflight import Checked
from embodied.run.reporter import Reporter
from embodied.run.simulators import Simulators, Workers, open_fork_server
from embodied.runtime.plan import eval_plan, with_videos
from embodied.runtime.rollout import Job
from embodied.runtime.signals import StopSignal
from embodied.schema import EnvEvalConfig
from embodied.types import Episode, EpisodeResult, Start, TextAction


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Evaluates a policy (``runner.only_eval``): builds it, says what will run, evaluates, says where the results are.

    Raises:
        Stopped: a signal came before there were results.
    """
    runner = checked.config.runner
    with ExitStack() as opened:
        reporter = Reporter(console, checked.processes, runner)
        folder = opened.enter_context(open_folder(checked))
        server = opened.enter_context(open_fork_server(checked, folder.path, console))
        model = opened.enter_context(open_model(checked, reporter))
        simulators = Simulators(checked, model, folder.path, server, reporter)
        evaluator = Evaluator(checked, simulators, folder.path, reporter)
        numbers = sizes(checked, model.policy)
        console.table(f"{runner.experiment_name}", summary.of_evaluation(checked, model, numbers, folder.path))
        if runner.dry_run:
            return
        stop.hold_from_now()
        evaluator.evaluate(0, 0, stop)
        console.table("where things are", summary.places(checked, folder.path))


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


class Evaluator:
    """Runs evaluations of the policy that acts at the time. Each process runs its share of the episodes.

    Args:
        folder: the run's, where results go.
        keep_workers: whether workers that an evaluation starts stay for the next one.
    """

    def __init__(
        self, checked: Checked, simulators: Simulators, folder: Path, reporter: Reporter, keep_workers: bool = False
    ) -> None:
        self._checked, self._simulators, self._folder, self._reporter = checked, simulators, folder, reporter
        self._keep_workers, self._kept = keep_workers, ExitStack()
        self._workers: Workers | None = None

    def evaluate(
        self, iteration: int, weight_version: int, stop: StopSignal, workers: Workers | None = None
    ) -> dict[str, float]:
        """Evaluates after ``iteration`` training iterations, on ``workers`` if they fit, else on new ones.

        Writes ``<run>/eval/<iteration>.json``; returns the ``eval/`` metrics.

        Raises:
            Stopped: in all processes; a signal has ended the share of one.
            DeviceMemoryError: the policy does not fit.
        """
        model, plan = self._simulators.model, self._plan(iteration)
        share = self._simulators.processes.share(plan)
        with ExitStack() as opened, explained(model.device, self._checked, "rollout"), model.sharding.acting():

            def own() -> tuple[list[EpisodeResult], int, list[dict[str, Any]]]:
                fitting, most = self._fitting(workers, opened), self._checked.config.runner.logger.log_val_generations
                texts = Generations(self._checked.eval.spec, fitting.slab.arrays, most)
                results, stats = fitting.run(share, self._job(weight_version), "evaluation", self._reporter, texts)
                return results, stats.worker_restarts, texts.kept

            shares = self._simulators.gather(stop, own)
        results = in_order(plan, [results for results, _, _ in shares])
        if self._simulators.processes.is_main and (kept := [text for _, _, texts in shares for text in texts]):
            write(self._folder / "generations" / f"{iteration:06d}.jsonl", kept)
        restarts = sum(restarts for _, restarts, _ in shares)
        return {**self._report(iteration, results), "eval/worker_restarts": restarts}

    def _fitting(self, workers: Workers | None, opened: ExitStack) -> Workers:
        """Returns workers of the evaluation's env. Those that it starts end with ``opened``, or stay."""
        side = self._checked.eval
        if workers is not None and workers.identity == side.identity:
            return workers
        if self._workers is not None:
            return self._workers
        started = self._simulators.open(side, 2 * self._simulators.processes.divide(side.config.total_num_envs))
        if self._keep_workers:
            self._workers = self._kept.enter_context(closing(started))
        else:
            opened.callback(started.close)
        return started

    def _plan(self, iteration: int) -> list[Episode]:
        side, config = self._checked.eval, self._checked.config
        assert isinstance(side.config, EnvEvalConfig)
        plan = eval_plan(
            side.spec, episodes_per_task=side.config.episodes_per_task, env_seed=side.config.seed,
            fixed_states=side.config.use_fixed_reset_state_ids, seed=config.runner.seed,
            group_size=config.algorithm.val_group_size,
        )  # fmt: skip
        video = side.config.video_cfg
        return with_videos(plan, self._videos(iteration), video.max_videos) if video.save_video else plan

    def _job(self, weight_version: int) -> Job:
        side, config = self._checked.eval, self._checked.config
        return Job(
            sampling(config.algorithm.val_sampling_params), config.runner.seed, Stream.EVAL_NOISE, weight_version,
            side.max_steps, keep_records=False,
            num_slots=self._simulators.processes.divide(side.config.total_num_envs),
            ignore_terminations=side.config.ignore_terminations, auto_reset=side.config.auto_reset,
            retry_safe=side.spec.retry_safe,
        )  # fmt: skip

    def _videos(self, iteration: int) -> Path:
        return Path(self._checked.eval.config.video_cfg.video_base_dir) / f"{iteration:06d}"

    def _report(self, iteration: int, results: Sequence[EpisodeResult]) -> dict[str, float]:
        """Returns the ``eval/`` metrics. Rank 0 writes and prints the results with their conditions."""
        origin = problem_of if isinstance(self._checked.eval.spec.action, TextAction) else start_of
        rows = summarise(self._checked.eval.spec.tasks, results, origin)
        under = conditions(self._checked, self._simulators.model.policy.spec, self._folder, iteration)
        if self._simulators.processes.is_main:
            file = self._folder / "eval" / f"{iteration:06d}.json"
            file.parent.mkdir(exist_ok=True)
            found = {"iteration": iteration, "conditions": asdict(under), "tasks": [asdict(row) for row in rows]}
            file.write_text(json.dumps({**found, "episodes": [_facts(result) for result in results]}, indent=1))
            console = self._reporter.console
            console.table("\n".join([f"evaluation of {under.weights}", *under.head]), _cells(rows))
            if any(result.episode.video for result in results):
                console.say(f"videos: {self._videos(iteration)}")
        return metrics(rows, results, under) | pass_rates(results, origin)

    def close(self) -> None:
        """Ends workers that stayed."""
        self._kept.close()


def _facts(result: EpisodeResult) -> dict[str, object]:
    return {
        "start": asdict(result.episode.start),
        "success": result.success,
        "return": result.episode_return,
        "steps": result.num_steps,
        "video": result.episode.video,
    }


def start_of(result: EpisodeResult) -> Start:
    """Returns where an episode started."""
    return result.episode.start


def problem_of(result: EpisodeResult) -> Start:
    """Returns the same for all episodes of a problem in text, which does not depend on the seed."""
    return replace(result.episode.start, seed=0)


def summarise(
    tasks: Sequence[str], results: Sequence[EpisodeResult], origin: Callable[[EpisodeResult], Start] = start_of
) -> list[TaskSuccess]:
    """Returns one row for each task that was run, then one over all.

    Args:
        origin: what is the same for episodes that are no independent trials.
    """
    rows = []
    for task_id, instruction in [*enumerate(tasks), (-1, "all tasks")]:
        chosen = [r for r in results if task_id in (-1, r.episode.start.task_id)]
        own = [r.success for r in chosen]
        if own:
            starts = len({origin(r) for r in chosen})  # episodes of one start are no independent trials
            low, high = wilson(sum(own) * starts / len(own), starts)
            rows.append(TaskSuccess(task_id, instruction, sum(own), len(own), sum(own) / len(own), low, high))
    return rows


def metrics(rows: Sequence[TaskSuccess], results: Sequence[EpisodeResult], under: Conditions) -> dict[str, float]:
    """Returns the ``eval/`` metrics of ``results``, which ``rows`` sum up."""
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


def pass_rates(results: Sequence[EpisodeResult], origin: Callable[[EpisodeResult], Start]) -> dict[str, float]:
    """Returns pass@k of evaluations with several episodes a start, for k = 1, 2, 4, … up to that number. ``origin`` is
    that of :func:`summarise`.

    It is the mean over starts of ``1 − C(n − c, k) / C(n, k)``, with c successes among n episodes: the chance that of k
    episodes one succeeds, without bias (Chen et al. 2021, arXiv 2107.03374, eq. 1).
    """
    found: dict[Start, list[bool]] = {}
    for result in results:
        found.setdefault(origin(result), []).append(result.success)
    most = min(map(len, found.values()))
    if most == 1:
        return {}
    ks = [2**power for power in range(most.bit_length())]
    return {f"eval/pass_at/{k}": sum(_passes(len(one), sum(one), k) for one in found.values()) / len(found) for k in ks}


def _passes(count: int, successes: int, k: int) -> float:
    return 1 - math.comb(count - successes, k) / math.comb(count, k)


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
