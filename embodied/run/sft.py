"""The loop of supervised training: optimizer steps → validate → (evaluate, save).

    demonstrations ─▶ samples in the order of the seed ─▶ Cloner.iterate ─▶ weights ─▶ evaluation in the simulator

A stop signal ends the run after the pass in progress, and leaves a checkpoint of the last optimizer step. What it has
cut short, a validation or an evaluation too, is done anew by the run that goes on.
"""

from __future__ import annotations

from contextlib import closing, suppress
from time import monotonic

from embodied.learn.cloning import Cloner
from embodied.run.build import Parts
from embodied.run.collector import Collector
from embodied.run.evaluate import evaluate
from embodied.run.reporter import Pace, training, watched
from embodied.run.rl import due, ending, resume, save, save_due
from embodied.run.summary import policy_lines, threads
from embodied.runtime.signals import Stopped, StopSignal


def train(parts: Parts, stop: StopSignal) -> str:
    """Train until ``runner.max_epochs`` iterations are done or a stop signal comes; what to say at the end.

    Args:
        stop: held by the caller.

    Raises:
        Stopped: a signal came before the first iteration.
    """
    cloner = parts.trainer
    assert isinstance(cloner, Cloner)
    with stop.cut_short():
        begun = resume(parts)
    iteration, saved = iterate(parts, begun, stop)
    _finish(parts, iteration, saved)
    return ending(parts, iteration, cloner.steps_done)


def iterate(parts: Parts, iteration: int, stop: StopSignal) -> tuple[int, tuple[int, int]]:
    """Iterations after ``iteration``, until the last or a stop signal: how many are done, and the place of the last
    save (iterations, and optimizer steps after them)."""
    runner, cloner, sections = parts.config.runner, parts.trainer, parts.sections
    assert isinstance(cloner, Cloner)
    saved, saved_at = (iteration, cloner.steps_done), monotonic()
    pace, evaluations = Pace(iteration, runner.max_epochs), _Evaluations(parts, stop)
    with closing(evaluations), suppress(Stopped):
        while iteration < runner.max_epochs:
            sections.reset()
            begun = cloner.steps_done
            watch = watched(parts, f"iteration {iteration + 1}/{runner.max_epochs}", lambda left_s: not stop.wanted)
            with sections("time/train"), training(parts):
                cloner.iterate(iteration, watch)
                metrics = cloner.validate(watch)
            if due(iteration + 1, runner.val_check_interval, runner.max_epochs):
                with sections("time/eval"):
                    metrics |= evaluations.run(iteration + 1)
            metrics = cloner.close_iteration(iteration) | metrics
            iteration += 1
            steps = parts.config.sft.steps_per_iteration - begun
            log(parts, iteration, metrics, steps, pace.left_s(iteration))  # before the save, which a stop may repeat
            if save_due(parts, iteration, saved_at):
                save(parts, iteration)
                saved, saved_at = (iteration, 0), monotonic()
    return iteration, saved


def _finish(parts: Parts, iteration: int, saved: tuple[int, int]) -> None:
    """Leave a checkpoint of where the run is: of ``iteration`` and the optimizer steps after it."""
    cloner = parts.trainer
    assert isinstance(cloner, Cloner)
    if saved != (iteration, cloner.steps_done):
        save(parts, iteration, cloner.steps_done)
    with parts.console.progress("saving", brief=True):
        parts.checkpoints.wait()


class _Evaluations:
    """Evaluates the policy in the simulator. The workers start with the first evaluation and stay for all of them."""

    def __init__(self, parts: Parts, stop: StopSignal) -> None:
        self._parts, self._stop = parts, stop
        self._collector: Collector | None = None

    def run(self, iteration: int) -> dict[str, float]:
        """The ``eval/`` metrics after ``iteration`` iterations.

        Raises:
            Stopped: a signal has ended it.
        """
        if self._collector is None:
            with self._stop.cut_short():
                self._collector = open_collector(self._parts)
        return evaluate(self._parts, iteration, self._collector, self._stop)

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()


def open_collector(parts: Parts) -> Collector:
    """Workers of the evaluation, which stay for all evaluations of the run."""
    side = parts.checked.eval
    return parts.open_collector(side, 2 * side.config.total_num_envs)


def log(parts: Parts, iteration: int, metrics: dict[str, float], steps: int, left_s: float) -> None:
    """To the trackers and the console.

    Args:
        steps: optimizer steps of the iteration that this process has made.
        left_s: estimated seconds until the end of the run.
    """
    sections, batch = parts.sections, parts.config.actor.global_batch_size
    seconds = sections.seconds("time/train")
    times = {f"{name}_s": sections.seconds(name) for name in ("time/train", "time/eval")}
    metrics = {
        **metrics,
        **({"sft/samples_per_s": steps * batch / seconds} if steps else {}),
        **{name: value for name, value in times.items() if value},
        "time/iteration_s": sections.elapsed,
    }
    assert parts.trackers is not None
    parts.trackers.log(iteration, metrics)
    place = {"iteration": iteration, "iterations": parts.config.runner.max_epochs, "left_s": left_s}
    parts.console.iteration({**metrics, **place})


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
