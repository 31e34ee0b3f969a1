"""The recipe of supervised training: optimizer steps → validate → (evaluate, save).

    demonstrations ─▶ samples in the order of the seed ─▶ Cloner ─▶ weights ─▶ evaluation in the simulator

Several processes (torchrun) share the samples of each optimizer step, and the episodes of an evaluation. A stop signal
ends the run after the pass in progress, and leaves a checkpoint of the last optimizer step. The run that goes on
repeats a validation or an evaluation that was cut short.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress

from embodied.errors import Stopped
from embodied.learn.cloning import Cloner
from embodied.observe.console import Console
from embodied.run import metrics, summary
from embodied.run.build import Model, open_folder, open_model, origin_of
from embodied.run.engine import open_engine
from embodied.run.evaluator import Evaluator
from embodied.run.given import Checked
from embodied.run.memory import plan_dry_run
from embodied.run.newest import newest_of
from embodied.run.reporter import Reporter
from embodied.run.saves import Saves, due
from embodied.run.shares import folder_of_rank
from embodied.run.simulators import Simulators, open_fork_server
from embodied.runtime.signals import StopSignal


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Builds the objects of a training, prints its derived numbers, trains, and says where the results are.

    Raises:
        Stopped: a signal came before the first iteration.
    """
    runner = checked.config.runner
    with ExitStack() as opened:
        reporter = Reporter(console, checked.processes, runner)
        folder = opened.enter_context(open_folder(checked))
        server = opened.enter_context(open_fork_server(checked, folder.path, console))
        memory = plan_dry_run(checked, reporter)
        model = opened.enter_context(open_model(checked, reporter, memory.policy if memory else None))
        with console.progress("preparing the demonstrations", brief=True):
            cloner = make_cloner(checked, model)
        saves = opened.enter_context(
            closing(Saves(folder, checked.config, cloner, model.sharding, reporter, origin_of(checked)))
        )
        opened.enter_context(reporter)
        own = folder_of_rank(folder.path, checked.processes.of("rollout"))
        engine = opened.enter_context(open_engine(checked, model, own, console))
        simulators = Simulators(checked, model, folder.path, server, reporter, engine)
        evaluator = Evaluator(
            checked, simulators, folder.path, reporter, keep_workers=not checked.config.env.enable_offload
        )
        console.table(f"{runner.experiment_name}", summary.of_cloning(checked, model, cloner, folder.path))
        if runner.dry_run:
            if memory is not None:
                memory.say(console)
            return
        stop.hold_from_now()
        iterations = train(checked, cloner, evaluator, reporter, saves, stop)
        console.say(summary.ending(checked, iterations, cloner.steps_done))
        saves.exporter.finish(stop)
        reporter.finish(stop)
        rows = summary.places(checked, folder.path, saves.checkpoints.all())
        console.table("where things are", [*rows, *saves.exporter.uploads.rows()])


def train(
    checked: Checked, cloner: Cloner, evaluator: Evaluator, reporter: Reporter, saves: Saves, stop: StopSignal
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
    with reporter.running(iteration, newest_of(checked)) as ended, closing(evaluator), suppress(Stopped):
        while iteration < runner.max_epochs:
            reporter.sections.reset()
            steps = config.sft.steps_per_iteration - cloner.steps_done
            with reporter.updating(cloner.device, config.actor.num_threads):
                watch = reporter.watch(reporter.title(iteration), lambda left_s: not stop.wanted)
                cloner.iterate(iteration, watch)
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


def make_cloner(checked: Checked, model: Model) -> Cloner:
    """Makes the learner of a training."""
    found = checked.demonstrations
    return Cloner(
        model.policy, checked.train.spec, checked.config, found.train, found.held_out, model.device, model.sharding
    )
