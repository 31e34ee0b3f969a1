"""The recipe of supervised training: optimizer steps → validate → (evaluate, save).

    demonstrations ─▶ samples in the order of the seed ─▶ Cloner ─▶ weights ─▶ evaluation in the simulator

Several processes (torchrun) share the samples of each optimizer step, and the episodes of an evaluation. A stop signal
ends the run after the pass in progress, and leaves a checkpoint of the last optimizer step. The run that goes on
repeats a validation or an evaluation that was cut short.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from embodied.learn.cloning import Cloner
from embodied.observe.terminal.console import Console
from embodied.run import summary
from embodied.run.build.demonstrations import Demonstrated
from embodied.run.build.given import Checked, ConfiguredEnv
from embodied.run.build.policy import Model, origin_of
from embodied.run.evaluation.evaluator import EvaluationRunner
from embodied.run.folder.latest_files import earlier, newest_of
from embodied.run.folder.reporter import Reporter
from embodied.run.folder.saves import Saves, due
from embodied.run.session import open_session
from embodied.run.training import metrics
from embodied.runtime.signals import StopSignal
from embodied.schema import Config


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Builds the objects of a training, prints its derived numbers, trains, and says where the results are.

    Raises:
        Stopped: a signal came before the first iteration.
    """
    config, sides, runner = checked.config, checked.sides, checked.config.runner
    with ExitStack() as opened:
        session = opened.enter_context(open_session(checked, console, played=[checked.eval]))
        reporter, folder, model = session.reporter, session.path, session.model
        with console.progress("preparing the demonstrations", brief=True):
            cloner = make_cloner(config, checked.train, checked.demonstrations, model)
        saves = opened.enter_context(
            closing(Saves(session.folder, config, cloner, model.sharding, reporter, origin_of(config, checked.train)))
        )
        opened.enter_context(reporter)
        simulators = session.simulators(config, sides, opened.enter_context(session.engine()))
        evaluator = EvaluationRunner(
            checked.composed, checked.eval, simulators, folder, reporter, keep_workers=not config.env.enable_offload
        )
        lines = summary.of_cloning(checked.composed, sides, checked.processes, model, cloner, folder)
        console.table(f"{runner.experiment_name}", lines)
        if runner.dry_run:
            if session.memory is not None:
                session.memory.say(console)
            return
        stop.hold_from_now()
        iterations = train(checked, cloner, evaluator, reporter, saves, stop)
        reporter.add_costs()
        console.say(summary.ending(runner.max_epochs, iterations, cloner.steps_done))
        saves.exporter.finish(stop)
        reporter.finish(stop)
        rows = summary.places(runner.logger.logger_backends, sides, folder, saves.checkpoints.all())
        console.table("where things are", [*rows, *saves.exporter.uploads.rows()])


def train(
    checked: Checked, cloner: Cloner, evaluator: EvaluationRunner, reporter: Reporter, saves: Saves, stop: StopSignal
) -> int:
    """Trains until ``runner.max_epochs`` iterations are done or a stop signal comes; returns iterations that are saved.

    Args:
        stop: held by the caller.

    Raises:
        Stopped: a signal came before the first iteration.
    """
    config, runner = checked.config, checked.config.runner
    with stop.cut_short():
        iteration, ids = saves.resume()
        reporter.open_trackers(iteration, ids, checked.composed.resolved)
    folder = Path(runner.logger.log_path)
    look = newest_of(folder, [side.config.video_cfg for side in checked.sides])
    rows = earlier(folder, iteration) if checked.processes.is_main else []
    with reporter.running(iteration, look, rows) as ended, closing(evaluator), stop.may_end():
        while iteration < runner.max_epochs:
            reporter.sections.reset()
            steps = config.sft.steps_per_iteration - cloner.steps_done
            with reporter.updating(cloner.device, config.actor.num_threads):
                watch = reporter.watch(reporter.title(iteration), lambda left_s: not stop.wanted)
                cloner.iterate(iteration, watch, partial(saves.save_if_due, iteration))
                found = cloner.validate(watch)
            if due(iteration + 1, runner.val_check_interval, runner.max_epochs):
                with reporter.sections("time/eval"), cloner.evaluated():
                    found |= evaluator.evaluate(iteration + 1, cloner.weight_version, stop)
            found = cloner.close_iteration(iteration) | found
            iteration += 1
            samples = steps * config.actor.global_batch_size
            # Before the save, so that a stop leaves no checkpoint of an iteration that was not logged.
            reporter.log(iteration, metrics.with_sft_times(found, reporter.sections, samples))
            saves.save_if_due(iteration)
            ended()
    return saves.finish(iteration, cloner.steps_done)


def make_cloner(config: Config, side: ConfiguredEnv, demonstrations: Demonstrated, model: Model) -> Cloner:
    """Makes the learner of a training in the env of ``side``."""
    return Cloner(
        model.policy, side.spec, config, demonstrations.train, demonstrations.held_out, model.device, model.sharding
    )
