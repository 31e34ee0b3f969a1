"""The loop of supervised training: optimizer steps → validate → (evaluate, save).

    demonstrations ─▶ samples in the order of the seed ─▶ Cloner.iterate ─▶ weights ─▶ evaluation in the simulator

A stop signal waits for the iteration (``sft.steps_per_iteration`` optimizer steps) to end, and leaves a checkpoint.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from time import monotonic

from embodied.build import Parts
from embodied.collector import Collector
from embodied.evaluation import evaluate
from embodied.learn.cloning import Cloner
from embodied.learn.threads import training_threads
from embodied.loop import due, run, save, save_due
from embodied.runtime.signals import Stopped, StopSignal
from embodied.summary import policy_lines, threads


def train(parts: Parts) -> int:
    """Train until ``runner.max_epochs`` iterations are done or a stop signal comes; the number of iterations done."""
    return run(parts, iterate)


def iterate(parts: Parts, iteration: int, stop: StopSignal) -> tuple[int, int]:
    """Iterations after ``iteration``, until the last or a stop signal: how many are done, how many are saved."""
    runner, cloner, sections = parts.config.runner, parts.trainer, parts.sections
    assert isinstance(cloner, Cloner)
    saved, saved_at = iteration, monotonic()
    collector: Collector | None = None
    with ExitStack() as opened, suppress(Stopped):
        while iteration < runner.max_epochs:
            sections.reset()
            with stop.hold():
                with sections("time/train"), training_threads(parts.config.actor.num_threads):
                    metrics = cloner.iterate(iteration) | cloner.validate()
                iteration += 1
                if due(iteration, runner.val_check_interval, runner.max_epochs) and not stop.wanted:
                    with suppress(Stopped), sections("time/eval"):
                        if collector is None:
                            with stop.cut_short():
                                collector = open_collector(parts)
                                opened.callback(stop.hold_during, collector.close)
                        metrics |= evaluate(parts, iteration, collector, stop)
                log(parts, iteration, metrics)  # before the save: a resumed run repeats what was not saved
                if save_due(parts, iteration, saved_at):
                    save(parts, iteration)
                    saved, saved_at = iteration, monotonic()
    return iteration, saved


def open_collector(parts: Parts) -> Collector:
    """Workers of the evaluation, which stay for all evaluations of the run."""
    side = parts.checked.eval
    return parts.open_collector(side, 2 * side.config.total_num_envs)


def log(parts: Parts, iteration: int, metrics: dict[str, float]) -> None:
    """To the trackers and the console."""
    sections, batch = parts.sections, parts.config.actor.global_batch_size
    seconds = sections.seconds("time/train")
    times = {f"{name}_s": sections.seconds(name) for name in ("time/train", "time/eval")}
    metrics = {
        **metrics,
        "sft/samples_per_s": parts.config.sft.steps_per_iteration * batch / seconds,
        **{name: value for name, value in times.items() if value},
        "time/iteration_s": sections.elapsed,
    }
    assert parts.trackers is not None
    parts.trackers.log(iteration, metrics)
    parts.console.iteration({**metrics, "iteration": iteration, "iterations": parts.config.runner.max_epochs})


def plan_lines(parts: Parts) -> list[list[str]]:
    """The derived numbers of a run, for ``runner.dry_run`` and the top of the log."""
    config, cloner = parts.config, parts.trainer
    assert isinstance(cloner, Cloner)
    steps, batch = config.sft.steps_per_iteration, config.actor.global_batch_size
    total = config.runner.max_epochs * steps * batch
    told = dict.fromkeys(episode.instruction for episode in cloner.episodes)
    rows = [
        ["demonstrations", ", ".join(config.data.train_data_paths)],
        ["episodes", f"{len(cloner.episodes)} of {len(told)} tasks, {len(cloner.held_out)} more for validation"],
        ["samples", f"{len(cloner.samples)} chunks of {parts.policy.spec.num_action_chunks} actions"],
        ["optimizer steps", f"{config.runner.max_epochs} iterations of {steps}, {batch} samples each"],
        ["passes over the data", f"{total / len(cloner.samples):.1f}"],
        *(note.split(": ", 1) for note in cloner.notes),
        *policy_lines(parts),
        ["device", f"{parts.device}, {threads(config)}"],
        ["run folder", str(parts.folder.path)],
    ]
    if without := [task for task in parts.checked.eval.spec.tasks if task not in told]:
        rows.append(["tasks of env.eval without a demonstration", f"{len(without)}, e.g. {without[0]!r}"])
    return rows
