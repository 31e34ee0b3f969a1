"""The training loop: collect → score → update → (evaluate, save).

    plan(seed, i) ─▶ rollout.collect ─▶ slab rows + returns ─▶ trainer.update ─▶ weights ─▶ rollout of i + 1
                                                                     └▶ metrics   └▶ checkpoint, evaluation

A stop signal ends the loop within ``runner.stop_timeout_s``: a rollout or an evaluation at once, an update between two
passes unless it will soon be done, a save not at all. What is half done is dropped, and a checkpoint of the last whole
iteration is left, from which the same command goes on.

With several ranks (torchrun) each runs its share of the plan and then meets the others, also when a signal has ended
its share (:mod:`embodied.run.barrier`): whether to stop is decided there, for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

from embodied.errors import RunFolderError
from embodied.learn import checkpoint
from embodied.learn.trainer import Trainer
from embodied.observe.trackers import make_trackers
from embodied.parallel import collectives as ranks
from embodied.random import Stream
from embodied.run import dynamic_sampling as rounds
from embodied.run import summary
from embodied.run.barrier import meet, run_shared
from embodied.run.build import Parts, sampling
from embodied.run.collector import Collector
from embodied.run.conditions import what_to_expect
from embodied.run.device_memory import explained
from embodied.run.dynamic_sampling import Collected
from embodied.run.evaluate import evaluate
from embodied.run.reporter import Pace, counting_successes, training, watched
from embodied.runtime.plan import train_plan, with_videos
from embodied.runtime.rollout import Job, RolloutStats
from embodied.runtime.signals import Stopped, StopSignal
from embodied.types import Episode, EpisodeResult, Sampling


def train(parts: Parts, stop: StopSignal) -> str:
    """Train until ``runner.max_epochs`` iterations are done or a stop signal comes; what to say at the end.

    Args:
        stop: held by the caller.

    Raises:
        Stopped: a signal came before the first iteration.
    """
    with stop.cut_short():
        begun = resume(parts)
    for line in what_to_expect(parts) if begun == 0 else ():
        parts.console.say(line)
    return ending(parts, finish(parts, *iterate(parts, begun, stop)))


def iterate(parts: Parts, iteration: int, stop: StopSignal) -> tuple[int, int]:
    """Iterations after ``iteration``, until the last or a stop signal: how many are done, how many are saved."""
    runner, trainer = parts.config.runner, parts.trainer
    assert isinstance(trainer, Trainer)
    saved, saved_at = iteration - bool(trainer.unlogged), monotonic()
    with ExitStack() as opened, suppress(Stopped):
        made: list[Collector] = []
        if iteration < runner.max_epochs or trainer.unlogged:
            meet(parts, stop, lambda: made.append(_open(parts, opened)))
        parts.sections.reset()
        pace = Pace(iteration, runner.max_epochs)
        while iteration < runner.max_epochs or trainer.unlogged:
            if not trainer.unlogged:
                if saved < iteration:
                    with parts.console.progress("copying what a stop would save", brief=True):
                        parts.checkpoints.keep(trainer, iteration, run_ids(parts))
                trainer.unlogged = _learn(parts, made[0], iteration, stop)
                iteration += 1
            _conclude(parts, made[0], iteration, stop, pace)
            if save_due(parts, iteration, saved_at):
                with parts.sections("time/save"):
                    save(parts, iteration)
                saved, saved_at = iteration, monotonic()
    return iteration, saved


def _learn(parts: Parts, collector: Collector, iteration: int, stop: StopSignal) -> dict[str, float]:
    """Collect and update; the metrics of both.

    Raises:
        Stopped: on all ranks; a signal has ended one of the two.
    """
    trainer, sections = parts.trainer, parts.sections
    assert isinstance(trainer, Trainer)
    with sections("time/rollout"), explained(parts, "rollout"), parts.parallel.acting():
        collected = collect(parts, collector, iteration, stop)
    with sections("time/train"), explained(parts, "update"), training(parts):
        watch = watched(parts, _title(parts, iteration), stop.grants)
        arrays, baselines = collector.slab.arrays, collected.baselines
        metrics, batch = trainer.update(arrays, collected.results, iteration, baselines, watch)
    metrics |= summary.rollout(
        parts.world, parts.policy.spec, collector, collected, batch, sections
    ) | summary.training(parts)
    return metrics | {f"{name}_s": sections.seconds(name) for name in ("time/rollout", "time/train")}


def _conclude(parts: Parts, collector: Collector, iteration: int, stop: StopSignal, pace: Pace) -> None:
    """Evaluate if that is due, and log the iteration: before it is saved, as a resumed run repeats what was not.

    Raises:
        Stopped: on all ranks; a signal has ended the evaluation. The run that goes on makes it anew.
    """
    trainer, runner, metrics = parts.trainer, parts.config.runner, {}
    assert isinstance(trainer, Trainer)
    if due(iteration, runner.val_check_interval, runner.max_epochs):
        with parts.sections("time/eval"), trainer.evaluated():
            metrics = evaluate(parts, iteration, collector, stop)
    summary.log(parts, iteration, trainer.unlogged | metrics, pace.left_s(iteration))
    trainer.unlogged = {}
    parts.sections.reset()


def _open(parts: Parts, opened: ExitStack) -> Collector:
    collector = parts.open_collector(parts.checked.train, parts.sizes.rows)
    opened.callback(collector.close)
    return collector


def save_due(parts: Parts, iteration: int, saved_at: float) -> bool:
    """Whether to save now: by iterations, or by the clock, which the ranks must not read each for itself."""
    runner = parts.config.runner
    if due(iteration, runner.save_interval, runner.max_epochs, always_last=True):
        return True
    interval = runner.save_interval_s
    return interval is not None and ranks.of_first(lambda: monotonic() - saved_at >= interval)


def due(iteration: int, interval: int, last: int, always_last: bool = False) -> bool:
    """Whether something that happens every ``interval`` iterations (−1 = never) and at the last one happens now."""
    if interval <= 0:
        return always_last and iteration == last
    return iteration % interval == 0 or iteration == last


def resume(parts: Parts) -> int:
    """Go on from the newest whole checkpoint of this run if there is one; iterations that it has done."""
    iteration, ids = 0, {}
    parts.checkpoints.clean()
    found = ranks.of_first(lambda: _checkpoint_to_resume(parts))
    if found is not None:
        with parts.console.progress(f"loading {found}", brief=True):
            meta = checkpoint.resume(found, parts.trainer)
        iteration, ids = meta.iteration, meta.trackers
        parts.parallel.check()
        parts.console.say(f"going on after iteration {iteration}, from {found}")
    if parts.world.is_main:
        backends = parts.config.runner.logger.logger_backends
        logged = iteration - (isinstance(parts.trainer, Trainer) and bool(parts.trainer.unlogged))
        parts.trackers = make_trackers(backends, parts.folder.path, logged, ids)
        parts.stack.callback(parts.trackers.close)
    return iteration


def _checkpoint_to_resume(parts: Parts) -> Path | None:
    resume_dir = parts.config.runner.resume_dir
    if resume_dir == "auto":
        newest = parts.checkpoints.newest_loadable(parts.console.say)
        return newest[0] if newest else None
    if resume_dir is not None:
        return Path(resume_dir)
    if existing := parts.checkpoints.all():
        raise RunFolderError(
            f"runner.resume_dir is null and {parts.folder.path} has checkpoints (newest {existing[-1].name})",
            "set runner.resume_dir=auto to go on, or runner.experiment_name to a new name",
        )
    return None


def collect(parts: Parts, collector: Collector, iteration: int, stop: StopSignal) -> Collected:
    """Run the iteration's plan, with what ``dynamic_sampling`` and ``remax`` add to it (:mod:`.dynamic_sampling`): each
    rank its share, all get all results.

    Raises:
        Stopped: on all ranks; a signal has ended the share of one.
    """
    algorithm, side, world = parts.config.algorithm, parts.checked.train, parts.world
    penalty = parts.config.reward.overlong_penalty
    found: list[RolloutStats] = []

    def run(sampling_round: int, groups: int, kept: Sequence[EpisodeResult]) -> list[EpisodeResult]:
        plan = plan_of(parts, iteration, sampling_round)[: groups * algorithm.group_size]
        room = [world.divide(parts.sizes.groups) - rounds.num_groups(kept, rank) for rank in range(world.size)]
        share = world.share(plan, lambda episode: episode.group_id, room)
        own = replace(job, taken=rounds.taken_rows([result for result in kept if result.rank == world.rank]))
        title = f"{name}{_nth(sampling_round)}"
        return run_shared(parts, stop, plan, lambda: _run(parts, collector, share, own, title, found))

    name, job = f"{_title(parts, iteration)} rollout", _job(parts)
    greedy, returned = [], None
    if algorithm.adv_type == "remax":  # first, because rows of its records need not stay
        plain = replace(
            job, sampling=Sampling(do_sample=False), keep_records=False, value_truncated=False, value_terminated=False
        )
        plan = rounds.greedy_plan(plan_of(parts, iteration))
        greedy = run_shared(
            parts, stop, plan, lambda: _run(parts, collector, world.share(plan), plain, f"{name}, greedy", found)
        )
        returned = rounds.baselines(greedy, penalty, side.max_steps)
    most = algorithm.max_sampling_rounds if algorithm.dynamic_sampling else 1
    judge = rounds.make_judge(algorithm, penalty, side.max_steps)
    results, everything, number = rounds.fill(run, parts.sizes.groups, most, judge)
    return Collected(results, everything, rounds.add_up(found), number, greedy, returned)


def _title(parts: Parts, iteration: int) -> str:
    return f"iteration {iteration + 1}/{parts.config.runner.max_epochs}"


def plan_of(parts: Parts, iteration: int, sampling_round: int = 0) -> list[Episode]:
    """The iteration's plan, or that of a refill."""
    config, side = parts.config, parts.checked.train
    plan = train_plan(
        side.spec, seed=config.runner.seed, iteration=iteration, episodes=parts.sizes.episodes,
        group_size=config.algorithm.group_size, shared_start=side.config.use_fixed_reset_state_ids,
        env_seed=side.config.seed, sampling_round=sampling_round,
    )  # fmt: skip
    video = side.config.video_cfg
    if video.save_video and not sampling_round:
        plan = with_videos(plan, Path(video.video_base_dir) / f"{iteration + 1:06d}", video.max_videos)
    return plan


def _job(parts: Parts) -> Job:
    config, side = parts.config, parts.checked.train
    bootstraps, always = config.algorithm.adv_type == "gae", config.algorithm.bootstrap_type == "always"
    return Job(
        sampling(config.algorithm.sampling_params), config.runner.seed, Stream.TRAIN_NOISE,
        parts.trainer.weight_version, side.max_steps, keep_records=True,
        num_slots=parts.world.divide(side.config.total_num_envs),
        ignore_terminations=side.config.ignore_terminations, auto_reset=side.config.auto_reset,
        value_truncated=bootstraps, value_terminated=bootstraps and always,
    )  # fmt: skip


def _run(
    parts: Parts, collector: Collector, plan: list[Episode], job: Job, name: str, found: list[RolloutStats]
) -> list[EpisodeResult]:
    """Run ``plan`` under a progress bar called ``name``; its statistics go into ``found``."""
    with parts.console.progress(name + parts.world.share_note, len(plan)) as bar:
        results, stats = collector.rollout.collect(plan, job, counting_successes(bar), bar.at)
    found.append(stats)
    return results


def _nth(sampling_round: int) -> str:
    return f", round {sampling_round + 1}" if sampling_round else ""


def finish(parts: Parts, iteration: int, saved: int) -> int:
    """Leave a checkpoint of ``iteration`` on the disk, if that of ``saved`` is an earlier one; iterations that are
    saved."""
    assert isinstance(parts.trainer, Trainer)
    if saved < iteration and not parts.trainer.cut_short:
        save(parts, iteration)
    with parts.console.progress("saving", brief=True):
        kept = parts.checkpoints.save_kept() if saved < iteration else None
        parts.checkpoints.wait()
    if saved == iteration or kept is not None or not parts.trainer.cut_short:
        return iteration
    there = parts.checkpoints.all()
    parts.console.say(
        f"the update of iteration {iteration + 1} was cut short, and "
        + (f"the newest checkpoint is {there[-1]}" if there else "no iteration was saved before it")
        + ": with runner.checkpoint.async_save=true a copy of each iteration is kept for this"
    )
    return checkpoint.place(there[-1])[0] if there else 0


def ending(parts: Parts, iterations: int, steps: int = 0) -> str:
    """Where the run stands at its end, after so many iterations and optimizer steps of the next, and how it goes on."""
    unlogged = isinstance(parts.trainer, Trainer) and bool(parts.trainer.unlogged)
    more = f" and {steps} optimizer steps of the next" if steps else ""
    more += ", the last one not evaluated" if unlogged else ""
    if iterations < parts.config.runner.max_epochs or unlogged:
        return f"stopped: {iterations} iterations done{more}. The same command goes on from here."
    return f"{iterations} iterations done. The same command with a larger runner.max_epochs goes on from here."


def save(parts: Parts, iteration: int, steps: int = 0) -> None:
    """All ranks save: what they all have rank 0, of what is shared out each its part."""
    with parts.console.progress("saving", brief=True):
        parts.parallel.check()
        parts.checkpoints.save(parts.trainer, iteration, run_ids(parts), steps)


def run_ids(parts: Parts) -> dict[str, str]:
    """The ids under which the trackers know the run, which rank 0 has."""
    return parts.trackers.run_ids if parts.trackers else {}
