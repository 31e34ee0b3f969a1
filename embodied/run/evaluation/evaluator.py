"""Runs evaluations: the plan, success with its interval, files of results, videos."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from embodied.errors import PolicyChangedError, Stopped
from embodied.evaluation import kinds, pass_at_k, robustness
from embodied.instructions import FAILURES
from embodied.lib.whole import write_whole
from embodied.observe.metrics import of_evaluation
from embodied.observe.terminal.console import COMMAND
from embodied.random import Stream
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.policy import sampling
from embodied.run.build.results import add_up, failed_verdicts, in_order, of_problems
from embodied.run.build.simulators import Simulators, Workers
from embodied.run.build.texts import Details, Generations, generations_table, write
from embodied.run.evaluation import protocol, replay, successes
from embodied.run.evaluation.answers import FileAnswers
from embodied.run.evaluation.conditions import Conditions, asks_once, checkpoint_of, conditions, env_of
from embodied.run.evaluation.resume_evaluation import Unfinished, identity_of_config, of_plan, of_tasks, of_weights
from embodied.run.evaluation.seen import Seen, of_run, seen_line
from embodied.run.evaluation.seen import seen as seen_starts
from embodied.run.evaluation.videos import show_side_by_side
from embodied.run.folder import launches
from embodied.run.folder.reporter import Reporter
from embodied.run.memory.remedies import explained
from embodied.runtime.plan import eval_plan, under_conditions, with_videos
from embodied.runtime.rollout.rollout import Job, RolloutStats
from embodied.runtime.signals import StopSignal
from embodied.schema import Config, EnvEvalConfig
from embodied.schema.compose.compose import Composed
from embodied.types import Episode, EpisodeResult, WorkerFacts

Share = tuple[list[EpisodeResult], RolloutStats, list[dict[str, Any]], Sequence[WorkerFacts]]
"""What a process has run: episodes, counts, answers that are kept for reading, what its env workers have found."""


class EvaluationRunner:
    """Runs evaluations of the policy that acts at the time. Each process runs its share of the episodes.

    Args:
        side: the env that is evaluated in.
        folder: the run's, where results go.
        keep_workers: whether workers that an evaluation starts stay for the next one.
        answers: what is evaluated if it is no policy.
        resumable: keep the episodes of an evaluation until :meth:`forget`, and go on from them. Only where the same
            weights are evaluated again.
        ending: what the names of its files end with, where the folder has two evaluations.
    """

    def __init__(
        self, composed: Composed, side: ConfiguredEnv, simulators: Simulators, folder: Path, reporter: Reporter,
        keep_workers: bool = False, answers: FileAnswers | None = None, resumable: bool = False, ending: str = "",
    ) -> None:  # fmt: skip
        self._answers, self._resumable, self._ending = answers, resumable, ending
        self._kinds = kinds.kinds_of(side.env)
        self._composed, self._config, self._side = composed, composed.config, side
        self._simulators, self._folder, self._reporter = simulators, folder, reporter
        self._checkpoint = checkpoint_of(composed.config)
        self._keep_workers, self._kept = keep_workers, ExitStack()
        self._workers: Workers | None = None
        written = composed.config.runner.logger.log_val_generations > 0
        self._details = Details.of(composed.config, simulators.model.policy) if written else Details()

    def evaluate(
        self, iteration: int, weight_version: int, stop: StopSignal, workers: Workers | None = None
    ) -> dict[str, float]:
        """Evaluates after ``iteration`` training iterations, on ``workers`` if they fit, else on new ones.

        Writes ``<run>/eval/<iteration><ending>.json``; returns the ``eval/`` metrics, or ``eval_sampled/`` ones.

        Raises:
            Stopped: in all processes; a signal has ended the share of one.
            DeviceMemoryError: the policy does not fit.
        """
        results, stats, kept, facts = self._collect(iteration, weight_version, stop, workers)
        under = self._conditions(iteration)
        held_to = protocol.protocol(self._composed, self._side, under, facts, self._simulators.model.policy)
        if self._simulators.processes.is_main and kept:
            write(self._folder / "generations" / f"{self._name(iteration)}.jsonl", kept, held_to.named)
            name, columns, rows = generations_table(kept)
            self._reporter.table(iteration, self._called(name), columns, rows)
        problems = of_problems(self._side.env, stats.failures, "eval")
        found = self._report(iteration, results, under, held_to)
        if stats.failures:
            self._reporter.console.say(failed_verdicts(stats.failures, len(results)))
        self._show_videos(iteration, results, stop)
        found |= {"eval/worker_restarts": stats.worker_restarts, **problems}
        return {self._called(name): value for name, value in found.items()}

    def results(self, stop: StopSignal) -> tuple[list[EpisodeResult], Sequence[WorkerFacts]]:
        """Evaluates and reports nothing; returns the episodes of all processes, in the plan's order, and what the env
        workers have found."""
        results, _, _, facts = self._collect(0, 0, stop, None)
        return results, facts

    def _collect(self, iteration: int, weight_version: int, stop: StopSignal, workers: Workers | None) -> Share:
        """Runs the plan; returns what all processes have run."""
        plan = self._plan(iteration)
        share = self._simulators.collecting.share(plan)
        with ExitStack() as opened, self._explained(), self._simulators.acting():

            def own() -> Share:
                if not self._simulators.collecting.here:
                    self._simulators.probe_of_others()
                    return [], RolloutStats(), [], []
                fitting = self._fitting(workers, opened)
                return self._run(fitting, share, self._job(weight_version), self._unfinished(iteration, plan, fitting))

            shares = self._simulators.gather(stop, own)
        results = in_order(plan, [one[0] for one in shares])
        texts = [text for one in shares for text in one[2]]
        return results, add_up([one[1] for one in shares]), texts, [fact for one in shares for fact in one[3]]

    def _explained(self) -> AbstractContextManager[None]:
        simulators = self._simulators
        return explained(simulators.model.device, self._config, simulators.processes, "rollout")

    def _run(self, workers: Workers, share: Sequence[Episode], job: Job, unfinished: Unfinished) -> Share:
        """Runs what is left of this process's share."""
        unfinished.read(share)
        before, most = unfinished.results, self._config.runner.logger.log_val_generations
        left = [episode for episode in share if episode.episode_id not in before]
        texts = Generations(self._side.spec, workers.slab.arrays, most, self._details)
        texts.kept += unfinished.texts
        if text := unfinished.remark(len(share)):
            self._reporter.console.say(text)
        done = kinds.KindsDone(self._kinds, share, before.values()) if self._kinds else None

        def ended(result: EpisodeResult) -> dict[str, str]:
            if not result.not_run:  # else it has no row, and is tried again if the evaluation is interrupted
                known = len(texts.kept)
                texts(result)
                unfinished.add(result, texts.kept[-1] if len(texts.kept) > known else None)
            return done.book(result) if done else {}

        facts = workers.pool.facts  # taken now, because at the end a worker may be down
        try:
            results, stats = workers.run(left, job, "evaluation", self._reporter, ended)
        except Stopped:
            if unfinished.kept:
                self._reporter.console.say("the same command goes on from the episodes that were run")
            raise
        except PolicyChangedError:
            self.forget(0)  # which episodes the other policy acted in is not known
            raise
        finally:
            unfinished.close()
        stats.failures += sum(result.info.get(FAILURES, 0) for result in before.values())
        return [*before.values(), *results], stats, texts.kept, facts

    def forget(self, iteration: int) -> None:
        """Deletes the episodes that were kept: the next evaluation runs all anew."""
        self._part(iteration).unlink(missing_ok=True)

    def _name(self, iteration: int) -> str:
        """The beginning of the names of the evaluation's files."""
        return f"{iteration:06d}{self._ending}"

    def _part(self, iteration: int) -> Path:
        """The file of episodes that were run, of this process. It is no result, so it binds the folder to nothing."""
        processes = self._simulators.processes
        rank = "" if processes.size == 1 else f".rank-{processes.rank:02d}"
        return self._folder / ".unfinished" / f"{self._name(iteration)}{rank}.jsonl"

    def _unfinished(self, iteration: int, plan: Sequence[Episode], workers: Workers) -> Unfinished:
        composed, device = self._composed, self._simulators.model.device
        if not self._resumable or self._answers:
            return Unfinished(None, "")
        return Unfinished(self._part(iteration), protocol.short_hash([
            identity_of_config(composed.resolved), of_plan(plan), protocol.described(workers.pool.facts),
            _versions(), device.type, self._simulators.processes.size, *of_tasks(self._side.spec.tasks, self._kinds),
            *of_weights(self._simulators.model.policy),
        ]))  # fmt: skip

    def _fitting(self, workers: Workers | None, opened: ExitStack) -> Workers:
        """Returns workers of the evaluation's env. Those that it starts end with ``opened``, or stay."""
        side = self._side
        if workers is not None and workers.identity == side.identity:
            workers.wake(self._reporter.console)  # starts them now: the facts they find are part of the protocol
            return workers
        if self._workers is not None:
            return self._workers
        started = self._simulators.open(side, 2 * self._simulators.collecting.divide(side.config.total_num_envs))
        if self._keep_workers:
            self._workers = self._kept.enter_context(closing(started))
        else:
            opened.callback(started.close)
        return started

    def _plan(self, iteration: int) -> list[Episode]:
        side = self._side
        video = side.config.video_cfg
        plan = under_conditions(self._answers.plan if self._answers else planned(self._config, side), side.conditions)
        return with_videos(plan, self._videos(iteration), video.max_videos) if video.records else plan

    def _job(self, weight_version: int) -> Job:
        slots = self._simulators.collecting.divide(self._side.config.total_num_envs)
        job = job_of(self._config, self._side, weight_version, slots)
        return replace(job, gives_up_after=None) if self._answers else job

    def _show_videos(self, iteration: int, results: Sequence[EpisodeResult], stop: StopSignal) -> None:
        config = self._side.config
        assert isinstance(config, EnvEvalConfig)
        if not config.video_cfg.grid or not self._simulators.processes.is_main:
            return
        if file := show_side_by_side(results, self._videos(iteration), self._reporter.console, stop):
            self._reporter.video(iteration, self._called(f"eval/video/{file.stem}"), file)

    def _called(self, name: str) -> str:
        """The name of a metric, table or video in trackers."""
        return of_evaluation(name, sampled=bool(self._ending))

    def _videos(self, iteration: int) -> Path:
        return Path(self._side.config.video_cfg.video_base_dir) / self._name(iteration)

    def _report(
        self, iteration: int, everything: Sequence[EpisodeResult], under: Conditions, held_to: protocol.Protocol
    ) -> dict[str, float]:
        """Returns the ``eval/`` metrics. Rank 0 writes and prints the results with their conditions; perturbed episodes
        have files of their own."""
        unperturbed, perturbed = robustness.split(everything)
        results, lost = successes.split_run(unperturbed)
        spec, config = self._side.spec, self._config
        kind = self._side.kind
        rows = successes.summarise(spec.tasks, results, kind.origin, lost)
        repeated = pass_at_k.rates(results, kind.origin, config.runner.seed)
        compared = robustness.compare(results, perturbed)
        failed = successes.failures(results) if kind.has_steps else []
        varied = kinds.by_kind(self._kinds, unperturbed, kind.origin) if self._kinds else []
        shown = rows[-1:] if varied else rows  # of thousands of tasks, the sum
        if self._simulators.processes.is_main:
            answered = self._answers.summary(results) if self._answers else {}
            found = {"iteration": iteration, "protocol": asdict(held_to), "conditions": asdict(under)}
            found |= {"checkpoint": self._checkpoint} if self._checkpoint else {}
            seen = None if self._answers else self._seen(iteration)
            found |= {"seen_in_training": seen.as_json()} if seen else {}
            found |= {"env": env_of(self._side), "tasks": [asdict(row) for row in rows]}
            found |= {"rates": repeated, **answered, "failures": failed}
            found |= kinds.facts(self._kinds, varied, unperturbed) if self._kinds else {}
            found |= {"episodes": [successes.facts(result) for result in unperturbed]}
            file = self._folder / "eval" / f"{self._name(iteration)}.json"
            found |= {"robustness": [asdict(row) for row in compared]} if compared else {}
            file.parent.mkdir(exist_ok=True)
            write_whole(file, json.dumps(found, indent=1, default=str))
            console = self._reporter.console
            head = [str(self._answers.counts)] if self._answers else [*under.head, held_to.head, *seen_line(seen)]
            console.table("\n".join([f"evaluation of {under.weights}", *head]), successes.cells(shown, kind.has_steps))
            if varied and self._kinds:
                note = f"\n{self._kinds.note}" if self._kinds.note else ""
                console.table(f"success by kind and strength{note}", kinds.table(varied))
            if failed:
                self._show_failures(iteration, failed)
            if text := protocol.warning(held_to):
                self._reporter.warn(text)
            if text := successes.not_run_note(lost):
                console.say(text + (kinds.named(self._kinds, lost) if self._kinds else ""))
            if repeated:
                console.table(kind.words.several, pass_at_k.cells(repeated))
            if self._answers and self._answers.counts.missing:
                rate = self._answers.over_all(results)
                console.say(
                    f"with the {self._answers.counts.missing:,} problems without an answer as wrong: {rate:.1%}"
                )
            if compared:
                console.table(f"robustness of {under.weights}, on the same starts", robustness.cells(results, compared))
                name = robustness.NAME + self._ending
                missing = robustness.write(
                    file.parent, iteration, under.weights, held_to.named, results, perturbed, compared, name
                )
                console.say(missing or f"picture and table: {file.with_name(name)}.png, .md, .json")
            self._reporter.table(iteration, self._called("eval/success"), *successes.table(shown, held_to.named))
            self._send_videos(iteration, chain(results, *perturbed.values()))
        metrics = successes.metrics(shown, results, under, kind.has_steps) | kinds.metrics(varied)
        return metrics | repeated | (robustness.metrics(compared) if compared else {})

    def _send_videos(self, iteration: int, results: Iterable[EpisodeResult]) -> None:
        """Gives videos to trackers, and says where they are."""
        videos = [Path(result.episode.video) for result in results if result.episode.video]
        for mp4 in filter(Path.is_file, videos):  # one that could not be written was said
            self._reporter.video(iteration, self._called(f"eval/video/{mp4.stem}"), mp4)
        if videos:
            self._reporter.console.say(f"videos: {self._videos(iteration)}")

    def _seen(self, iteration: int) -> Seen:
        """Whether training has seen the starts."""
        trained = of_run(self._config, self._simulators.sides.train, iteration)
        return seen_starts(planned(self._config, self._side), self._side, trained)

    def _show_failures(self, iteration: int, failed: Sequence[Mapping[str, Any]]) -> None:
        """Prints the failures that got farthest, and how to see those that were not recorded."""
        shown, console = successes.shown_failures(failed), self._reporter.console
        few = f" (the first {len(shown)})" if len(shown) < len(failed) else ""
        recorded = ", recorded ones first" if any(one["video"] for one in shown) else ""
        names = self._kinds.names if self._kinds else ()
        title = f"failures, by how far they got{recorded}: {len(failed)}{few}"
        console.table(title, successes.failure_cells(shown, names))
        if commands := replay.commands(self._composed, self._folder, iteration, shown):
            console.say(
                "\n".join(["to see one that was not recorded:", *(f"{COMMAND}{command}" for command in commands)])
            )

    def _conditions(self, iteration: int) -> Conditions:
        under = conditions(self._config, self._side, self._simulators.model.policy, self._folder, iteration)
        if self._answers is None:
            return under
        counts = self._answers.counts
        per_task = -(-counts.problems // len(self._side.spec.tasks))
        return replace(under, episodes_per_task=per_task, group_size=counts.most, sampling={})

    def close(self) -> None:
        """Ends env workers that were kept for the next evaluation."""
        self._kept.close()


def planned(config: Config, side: ConfiguredEnv) -> list[Episode]:
    """Plans the unperturbed episodes of a policy's evaluation, without videos."""
    assert isinstance(side.config, EnvEvalConfig)
    return eval_plan(
        side.spec, episodes_per_task=side.config.episodes_per_task, env_seed=side.config.seed,
        fixed_states=side.config.use_fixed_reset_state_ids, seed=config.runner.seed,
        group_size=config.algorithm.val_group_size, held_out=config.protocol.held_out_states,
        once=asks_once(config, side),
    )  # fmt: skip


def job_of(config: Config, side: ConfiguredEnv, weight_version: int, slots: int) -> Job:
    """Makes the job of the evaluation's episodes, on ``slots`` env slots of a process."""
    return Job(
        sampling(config.algorithm.val_sampling_params), config.runner.seed, Stream.EVAL_NOISE, weight_version,
        side.max_steps, keep_records=False, num_slots=slots, ignore_terminations=side.config.ignore_terminations,
        auto_reset=side.config.auto_reset, retry_safe=side.spec.retry_safe,
        gives_up_after=max(1, config.env.max_worker_restarts),
        info_on_video=side.config.video_cfg.info_on_video, frame_interval=side.config.video_cfg.interval,
    )  # fmt: skip


def _versions() -> dict[str, str]:
    """Versions on which the numbers of an evaluation may depend; the kernel's is none of them."""
    return {name: version for name, version in launches.versions().items() if name != "system"}
