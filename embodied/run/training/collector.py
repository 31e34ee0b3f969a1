"""Runs the training episodes of an iteration: its plan, and what dynamic sampling and ReMax add to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from embodied.learn.score.reward_penalties import longest
from embodied.learn.score.start_memory import StartMemory
from embodied.parallel.barrier import Gathers, Interruptible
from embodied.parallel.group import Group
from embodied.random import Stream
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.model_reward import Answers, ModelReward
from embodied.run.build.policy import Sizes, sampling
from embodied.run.build.results import add_up, in_order
from embodied.run.build.simulators import Simulators, Workers
from embodied.run.build.texts import Details
from embodied.run.folder.reporter import Reporter
from embodied.run.memory.remedies import explained
from embodied.run.training import dynamic_sampling
from embodied.run.training.dynamic_sampling import Collected
from embodied.runtime.plan import randomised, train_plan, with_videos
from embodied.runtime.rollout.flowing import Flowing
from embodied.runtime.rollout.rollout import Job, RolloutStats
from embodied.schema import Config, EnvTrainConfig
from embodied.types import Episode, EpisodeResult

T = TypeVar("T")
BEFORE = -1
"""Iteration of the episodes that come before the first, so that their times and traces are nobody's."""


class Meanwhile:
    """Gathers in a thread, while the slots of this process go on with later iterations."""

    def __init__(self, processes: Group, rollout: Flowing) -> None:
        self._processes, self._rollout = processes, rollout

    def gather(self, value: T) -> list[T]:
        return self._rollout.meanwhile(lambda: self._processes.gather(value))


class Collector:
    """Collects the records of an iteration. Each process runs its share of the episodes; all get all results.

    Args:
        side: the env of training.
        model_reward: adds the scores of a reward model; None = there is none.
        starts: by which starts are drawn (``data.start_sampling``); None = each comes once before any comes twice.
    """

    def __init__(
        self, config: Config, side: ConfiguredEnv, simulators: Simulators, sizes: Sizes, reporter: Reporter,
        model_reward: ModelReward | None = None, starts: StartMemory | None = None,
    ) -> None:  # fmt: skip
        self._config, self._side, self._simulators = config, side, simulators
        self._sizes, self._reporter, self._model_reward = sizes, reporter, model_reward
        self._starts = starts if starts is not None and starts.plans else None
        self._workers: Workers | None = None
        printed = config.rollout.print_outputs
        self._details = Details.of(config, simulators.model.policy) if printed else Details()

    def open(self, stop: Interruptible) -> None:
        """Starts the env workers of the training.

        Raises:
            Stopped: in all processes; a signal has ended the start in one.
        """

        def start() -> None:
            if self._simulators.collecting.here:
                self._workers = self._simulators.open(self._side, self._sizes.rows)

        self._simulators.gather(stop, start)

    @property
    def workers(self) -> Workers | None:
        """Env workers of the training, which :meth:`open` has started; None in a process that only trains."""
        return self._workers

    def records(self, results: Sequence[EpisodeResult]) -> Mapping[str, np.ndarray]:
        """Returns the fields of this process's records, in which those of ``results`` stand; none if it only trains."""
        if self._workers is None:
            return {}
        records, own = self._workers.rollout.records, self._simulators.processes.rank
        records.check(lease for result in results if result.rank == own for lease in result.leases)
        return records.arrays

    def keep(self, results: Iterable[EpisodeResult]) -> None:
        """Gives back the rows of all episodes of this process but those of ``results``."""
        if self._workers is not None:
            own = self._simulators.processes.rank
            self._workers.rollout.keep(result for result in results if result.rank == own)

    def rest(self) -> None:
        """Ends the env workers until the next rollout."""
        if self._workers is not None:
            self._workers.rest()

    def collect(
        self, iteration: int, weight_version: int, stop: Interruptible, also_held: Sequence[EpisodeResult] = (),
        ended: Callable[[], None] = lambda: None,
    ) -> Collected:  # fmt: skip
        """Runs the plan of the iteration after ``iteration`` ones, with weights of ``weight_version``.

        Args:
            also_held: episodes of before whose rows stay.
            ended: called after each episode; what it raises ends the rollout.

        Raises:
            Stopped: in all processes; a signal has ended the share of one.
            DeviceMemoryError: the policy does not fit.
        """
        model, processes = self._simulators.model, self._simulators.processes
        explains = explained(model.device, self._config, processes, "rollout")
        with self._reporter.sections("time/rollout"), explains, self._simulators.acting():
            return self._collect(iteration, self._job(iteration, weight_version), stop, also_held, ended)

    def look(self, episodes: int, stop: Interruptible) -> np.ndarray:
        """Runs ``episodes`` episodes, at most those of an iteration, each from a start of its own. Nothing is
        learnt from them. Returns the states that the policy saw, float32 [N, S], in the order of the plan: the same in
        all processes.

        Raises:
            Stopped: in all processes; a signal has ended the share of one.
            DeviceMemoryError: the policy does not fit.
        """
        model, processes = self._simulators.model, self._simulators.processes
        config, side = self._config, self._side
        plan = train_plan(
            side.spec, seed=config.data_seed, iteration=0, episodes=min(episodes, self._sizes.episodes), group_size=1,
            env_seed=config.start_seed, held_out=config.protocol.held_out_states,
        )  # fmt: skip
        share, job = self._simulators.collecting.share(plan), replace(self._job(0, 0), iteration=BEFORE)

        def own() -> dict[int, np.ndarray]:
            results, _ = self._run(share, job, "looking at the state", lambda: None, None)
            states = self.records(results).get("state")
            found = {result.episode.episode_id: states[[*result.rows]] for result in results if states is not None}
            self.keep(())
            return found

        explains = explained(model.device, self._config, processes, "rollout")
        with self._reporter.sections("time/rollout"), explains, self._simulators.acting():
            shares = self._simulators.gather(stop, own)
        found = {number: states for each in shares for number, states in each.items()}
        return np.concatenate([found[episode.episode_id] for episode in plan])

    def reset_ahead(self, iteration: int, weight_version: int) -> None:
        """Sends the slots to the starts of an iteration that :meth:`collect` runs next."""
        if self._workers is not None:
            self._workers.rollout.reset_ahead(self._share(self.plan(iteration)), self._job(iteration, weight_version))

    def ahead(self, iteration: int, weight_version: int) -> None:
        """Plans the episodes of an iteration for slots that find none left in those before."""
        assert self._workers is not None
        rollout = self._workers.rollout
        assert isinstance(rollout, Flowing)
        rollout.plan_ahead(self._share(self.plan(iteration)), self._job(iteration, weight_version))

    def _through(self, processes: Group) -> Gathers:
        """Returns what processes gather through. Where slots flow over borders, those of this one go on meanwhile."""
        rollout = None if self._workers is None else self._workers.rollout
        return Meanwhile(processes, rollout) if isinstance(rollout, Flowing) and processes.size > 1 else processes

    def _share(self, plan: Sequence[Episode], kept: Sequence[EpisodeResult] = ()) -> list[Episode]:
        """Returns this process's part of a plan, in the rows that ``kept`` leaves to each process."""
        collecting = self._simulators.collecting
        each = collecting.divide(self._sizes.groups)
        room = [each - dynamic_sampling.num_groups(kept, rank) for rank in collecting.members]
        return collecting.share(plan, lambda episode: episode.group_id, room)

    def _collect(
        self, iteration: int, job: Job, stop: Interruptible, held: Sequence[EpisodeResult], ended: Callable[[], None]
    ) -> Collected:  # fmt: skip
        algorithm, side = self._config.algorithm, self._side
        processes, collecting = self._simulators.processes, self._simulators.collecting
        penalty = self._config.reward.overlong_penalty
        most = algorithm.sampling_params.max_new_tokens
        limit = longest(self._simulators.model.policy.spec, side.max_steps, most)
        title, found = f"{self._reporter.title(iteration)} rollout", list[RolloutStats]()
        # Where processes score together, a signal may end the rollout of one, and no pass of all.
        apart = self._model_reward is not None and self._model_reward.together

        def run(
            plan: Sequence[Episode], share: Sequence[Episode], job: Job, title: str,
            learners: Mapping[int, int] | None = None,
        ) -> list[EpisodeResult]:  # fmt: skip
            answers = self._answers()

            def own() -> list[EpisodeResult]:
                results, stats = self._run(share, job, title, ended, answers)
                found.append(stats)
                return results if apart else self._judged(results, answers, title, stop)

            shares = self._simulators.gather(stop, own, self._through(processes))
            if apart:
                results = self._judged(shares[processes.rank], answers, title, stop)
                with self._reporter.waiting():
                    shares = processes.gather(results)
            return in_order(plan, shares, learners)

        def sample(number: int, groups: int, kept: Sequence[EpisodeResult]) -> list[EpisodeResult]:
            plan = self.plan(iteration, number)[: groups * algorithm.group_size]
            share = self._share(plan, kept)
            self.keep((*held, *kept))
            learners = dynamic_sampling.learners(plan, kept, processes, self._sizes.groups)
            return run(plan, share, job, f"{title}{_nth(number)}", learners)

        greedy, returned = list[EpisodeResult](), None
        if algorithm.adv_type == "remax":  # first, because rows of its records need not stay
            plan = dynamic_sampling.greedy_plan(self.plan(iteration))
            greedy = run(plan, collecting.share(plan), _greedy(job), f"{title}, greedy")
            returned = dynamic_sampling.baselines(greedy, penalty, limit)
        most = algorithm.max_sampling_rounds if algorithm.dynamic_sampling else 1
        judge = dynamic_sampling.make_judge(algorithm, penalty, limit)
        results, everything, rounds = dynamic_sampling.fill(sample, self._sizes.groups, most, judge)
        dropped = dynamic_sampling.dropped(results, everything, penalty, limit)
        return Collected(results, everything, add_up(found), rounds, greedy, returned, dropped)

    def _answers(self) -> Answers | None:
        """Makes what keeps the answers of a rollout, if they are scored or printed."""
        if self._model_reward is None and not self._config.rollout.print_outputs:
            return None
        if self._workers is None:
            return None
        return Answers(self._side.spec, self._workers.slab.arrays, self._details)

    def _run(
        self, plan: Sequence[Episode], job: Job, title: str, ended: Callable[[], None], answers: Answers | None
    ) -> tuple[list[EpisodeResult], RolloutStats]:  # fmt: skip
        """Runs episodes in this process, if it collects."""
        if self._workers is None:
            self._simulators.probe_of_others()
            return [], RolloutStats()

        def keep(result: EpisodeResult) -> None:
            if answers is not None:
                answers(result)
            ended()

        return self._workers.run(plan, job, title, self._reporter, keep)

    def _judged(
        self, results: list[EpisodeResult], answers: Answers | None, title: str, stop: Interruptible
    ) -> list[EpisodeResult]:  # fmt: skip
        """With a reward model, adds its scores to the rewards of episodes of this process. Prints those to be shown."""
        if answers is None:
            return results
        if self._model_reward is not None:
            with self._reporter.console.progress(f"{title}, reward model", brief=True):
                results = self._model_reward(results, answers, stop)
        if self._config.rollout.print_outputs:
            for result in results:
                number = result.episode.episode_id
                self._reporter.console.say(episode_text(result, *answers.found[number], answers.shown[number]))
        return results

    def plan(self, iteration: int, sampling_round: int = 0) -> list[Episode]:
        """Makes the plan of an iteration's episodes, or that of a refill (``sampling_round`` above 0)."""
        config, side = self._config, self._side
        plan = train_plan(
            side.spec, seed=config.data_seed, iteration=iteration, episodes=self._sizes.episodes,
            group_size=config.algorithm.group_size, shared_start=side.config.use_fixed_reset_state_ids,
            env_seed=config.start_seed, sampling_round=sampling_round, shuffle=config.data.shuffle,
            drop_last=config.data.drop_last, held_out=config.protocol.held_out_states,
            spread=None if self._starts is None else self._starts.spread(iteration),
        )  # fmt: skip
        if (perturb := side.config.perturb) is not None:
            plan = randomised(plan, side.conditions, perturb.unperturbed, config.runner.seed)
        assert isinstance(side.config, EnvTrainConfig)
        video = side.config.video_cfg
        if video.records and not sampling_round and (iteration + 1) % video.video_interval == 0:
            plan = with_videos(plan, Path(video.video_base_dir) / f"{iteration + 1:06d}", video.max_videos)
        return plan

    def _job(self, iteration: int, weight_version: int) -> Job:
        config, side = self._config, self._side
        bootstraps, always = config.algorithm.bootstraps, config.algorithm.bootstrap_type == "always"
        return Job(
            sampling(config.algorithm.sampling_params, config.algorithm.logprob_dtype), config.runner.seed,
            Stream.TRAIN_NOISE, weight_version, side.max_steps, keep_records=True,
            num_slots=self._simulators.collecting.divide(side.config.total_num_envs),
            ignore_terminations=side.config.ignore_terminations, auto_reset=side.config.auto_reset,
            value_truncated=bootstraps, value_terminated=bootstraps and always, retry_safe=side.spec.retry_safe,
            info_on_video=side.config.video_cfg.info_on_video, frame_interval=side.config.video_cfg.interval,
            iteration=iteration,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the env workers."""
        if self._workers is not None:
            self._workers.close()


def episode_text(result: EpisodeResult, prompt: str, answer: str, details: Mapping[str, Any]) -> str:
    """Formats an episode's prompt and answer as ``rollout.print_outputs`` prints it."""
    number, gain = result.episode.episode_id, result.episode_return
    lines = [f"episode {number}, return {gain:g}", f"prompt: {prompt!r}"]
    if "full_prompt" in details:
        lines.append(f"full prompt: {details['full_prompt']!r}")
    lines.append(f"answer: {answer!r}")
    if "tokens" in details:
        pairs = zip(details["tokens"], details["logprobs"], strict=True)
        lines.append("tokens: " + " ".join(f"{text!r} {logprob:.2f}" for text, logprob in pairs))
    return "\n".join(lines)


def _greedy(job: Job) -> Job:
    likeliest = replace(job.sampling, do_sample=False)
    return replace(job, sampling=likeliest, keep_records=False, value_truncated=False, value_terminated=False)


def _nth(sampling_round: int) -> str:
    return f", round {sampling_round + 1}" if sampling_round else ""
