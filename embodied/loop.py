"""The training loop: collect → score → update → (evaluate, save).

    plan(seed, i) ─▶ rollout.collect ─▶ slab rows + returns ─▶ trainer.update ─▶ weights ─▶ rollout of i + 1
                                                                     └▶ metrics   └▶ checkpoint, evaluation

A stop signal ends the loop between these steps; what is half done (a rollout, an evaluation) is dropped, what must be
whole (an update, a save) is finished first, and a checkpoint is left from which the same command goes on.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path

from embodied import summary
from embodied.build import Collector, Parts, sampling
from embodied.errors import RunFolderError
from embodied.evaluation import evaluate
from embodied.learn import checkpoint
from embodied.observe.trackers import make_trackers
from embodied.runtime.plan import TRAIN, train_plan, with_videos
from embodied.runtime.rollout import Job, RolloutStats
from embodied.runtime.signals import Stopped, StopSignal
from embodied.types import EpisodeResult


def train(parts: Parts) -> int:
    """Train until ``runner.max_epochs`` iterations are done or a stop signal comes; the number of iterations done."""
    runner, trainer, sections = parts.config.runner, parts.trainer, parts.sections
    iteration = saved = resume(parts)
    with ExitStack() as opened, StopSignal() as stop, suppress(Stopped):
        if iteration < runner.max_epochs:
            collector = opened.enter_context(closing(parts.open_collector(parts.checked.train, parts.sizes.rows)))
        sections.reset()
        while iteration < runner.max_epochs:
            with sections("time/rollout"):
                results, stats = collect(parts, collector, iteration)
            with stop.hold():
                with sections("time/train"):
                    metrics, batch = trainer.update(collector.slab.arrays, results, iteration)
                iteration += 1
                metrics |= summary.rollout(collector, results, stats, batch, sections)
                if due(iteration, runner.val_check_interval, runner.max_epochs) and not stop.wanted:
                    with stop.cut_short(), sections("time/eval"):
                        metrics |= evaluate(parts, iteration, collector)
                summary.log(parts, iteration, metrics)  # before the save: a resumed run repeats what was not saved
                sections.reset()
                if due(iteration, runner.save_interval, runner.max_epochs, always_last=True):
                    with sections("time/save"):
                        save(parts, iteration)
                    saved = iteration
    if saved < iteration:
        save(parts, iteration)
    return iteration


def due(iteration: int, interval: int, last: int, always_last: bool = False) -> bool:
    """Whether something that happens every ``interval`` iterations (−1 = never) and at the last one happens now."""
    if interval <= 0:
        return always_last and iteration == last
    return iteration % interval == 0 or iteration == last


def resume(parts: Parts) -> int:
    """Go on from the newest whole checkpoint of this run if there is one; iterations that it has done."""
    runner, iteration = parts.config.runner, 0
    found = _checkpoint_to_resume(parts)
    if found is not None:
        meta = checkpoint.load(found, parts.policy, parts.trainer.optimizer)
        iteration, parts.trainer.weight_version = meta.iteration, meta.weight_version
        parts.console.say(f"going on after iteration {iteration}, from {found}")
    parts.trackers = make_trackers(runner.logger.logger_backends, parts.folder.path, iteration)
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


def collect(parts: Parts, collector: Collector, iteration: int) -> tuple[list[EpisodeResult], RolloutStats]:
    """Run the iteration's plan."""
    config, side = parts.config, parts.checked.train
    bootstraps, always = config.algorithm.adv_type == "gae", config.algorithm.bootstrap_type == "always"
    plan = train_plan(
        side.spec, seed=config.runner.seed, iteration=iteration, episodes=parts.sizes.episodes,
        group_size=config.algorithm.group_size, shared_start=side.config.use_fixed_reset_state_ids,
        env_seed=side.config.seed,
    )  # fmt: skip
    video = side.config.video_cfg
    if video.save_video:
        plan = with_videos(plan, Path(video.video_base_dir) / f"{iteration + 1:06d}", video.max_videos)
    job = Job(
        sampling(config.algorithm.sampling_params), config.runner.seed, TRAIN, parts.trainer.weight_version,
        side.max_steps, keep_records=True, num_slots=side.config.total_num_envs,
        ignore_terminations=side.config.ignore_terminations, auto_reset=side.config.auto_reset,
        value_truncated=bootstraps, value_terminated=bootstraps and always,
    )  # fmt: skip
    done: list[bool] = []
    with parts.console.progress(f"iteration {iteration + 1}/{config.runner.max_epochs} rollout", len(plan)) as bar:

        def advance(result: EpisodeResult) -> None:
            done.append(result.success)
            bar.advance(1, success=f"{sum(done)}/{len(done)}")

        return collector.rollout.collect(plan, job, advance)


def save(parts: Parts, iteration: int) -> None:
    trainer = parts.trainer
    parts.checkpoints.save(parts.policy, trainer.optimizer, iteration, trainer.weight_version)
