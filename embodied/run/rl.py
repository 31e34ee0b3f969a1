"""The recipe of reinforcement learning: collect → update → (evaluate, save).

    plan(seed, i) ─▶ Collector ─▶ slab rows + returns ─▶ Trainer ─▶ weights ─▶ rollout of i + 1
                                                            └▶ metrics   └▶ checkpoint, evaluation

With ``algorithm.max_staleness`` a rollout runs beside the update before it (:mod:`embodied.run.training.iteration`).

A stop signal ends the training within ``runner.stop_timeout_s``: a rollout or an evaluation at once, an update between
two passes unless it will soon be done, a save not at all. What is half done is dropped, and a checkpoint of the last
whole iteration is left, from which the same command goes on.

Each of several processes (torchrun) runs its share of the plan and then waits at a barrier for the others
(:mod:`embodied.parallel.barrier`). The barrier decides for all of them whether to stop.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

from embodied.errors import EmbodiedError
from embodied.evaluation.before_after import gain
from embodied.learn.actor_critic.learner import ActorCriticLearner
from embodied.learn.checkpoint.state import Learner as Saved
from embodied.learn.ranks.sides import Learner, resumed
from embodied.observe.terminal.console import Console
from embodied.run import summary
from embodied.run.build.given import Checked
from embodied.run.build.model_reward import make_model_reward
from embodied.run.build.policy import origin_of, sizes
from embodied.run.build.results import failed_verdicts
from embodied.run.build.simulators import Simulators
from embodied.run.evaluation.conditions import what_to_expect
from embodied.run.evaluation.evaluator import EvaluationRunner
from embodied.run.folder.latest_files import earlier, newest_of
from embodied.run.folder.reporter import Reporter
from embodied.run.folder.saves import Saves, due
from embodied.run.placement import traffic
from embodied.run.session import open_session
from embodied.run.training import metrics
from embodied.run.training.collector import Collector
from embodied.run.training.fixed_lag import make_turns
from embodied.run.training.iteration import Synchronous, processes_of
from embodied.run.training.learner import make_learner, show_demonstrations
from embodied.run.training.noise_advice import NoiseAdvice
from embodied.run.training.state_scale import scale_state
from embodied.runtime.signals import StopSignal

NOTHING_LEARNT = (
    "  nothing was learnt: in every group all returns were equal. A policy that never (or always) succeeds gives no "
    "signal: start from a better checkpoint, use easier tasks, or env.train.reward_mode=dense"
)

NO_SUCCESS_YET = (
    "  env.train.reward_mode=own_successes: a task without a success has the sparse reward alone until its first one "
    "(train/tasks_without_success)"
)


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Builds the objects of a training, prints its derived numbers, trains, and says where the results are.

    Raises:
        Stopped: a signal came before the first iteration.
    """
    config, sides, processes = checked.config, checked.sides, checked.processes
    runner, side = config.runner, checked.train
    with ExitStack() as opened:
        session = opened.enter_context(open_session(checked, console))
        reporter, folder, model = session.reporter, session.path, session.model
        with console.progress("building the learner", brief=True):
            numbers = sizes(config, sides, processes, model.policy.spec)
            trainer = make_learner(config, sides, model, processes, folder, lambda: stop.wanted)
        if isinstance(trainer, ActorCriticLearner):
            opened.enter_context(closing(trainer))
            show_demonstrations(trainer, checked.demonstrations.train, side.config.reward_coef, console)
        origin, saved = origin_of(config, side), cast(Saved, trainer)  # where there is none, nothing is saved
        saves = Saves(session.folder, config, saved, model.sharding, reporter, origin, processes)
        opened.enter_context(closing(saves))
        opened.enter_context(reporter)
        engine = opened.enter_context(session.engine())
        simulators = Simulators(
            config, sides, processes_of(config.algorithm, processes), replace(model, policy=trainer.acting.policy),
            folder, reporter, session.server, engine, learns=model.policy, use=trainer.acting.use,
        )  # fmt: skip
        with console.progress("building the reward model", brief=True):
            judge = make_model_reward(config.reward, processes, model, runner.dry_run)
        collector = Collector(config, side, simulators, numbers, reporter, judge, trainer.starts)
        turns = opened.enter_context(closing(make_turns(config, side.env, processes, collector, trainer, reporter)))
        evaluator = EvaluationRunner(checked.composed, checked.eval, simulators, folder, reporter)
        lines = summary.of_training(checked.composed, sides, processes, model, numbers, trainer, folder, judge)
        console.table(f"{runner.experiment_name}", lines)
        if runner.dry_run:
            if session.memory is not None:
                counted = session.memory.counted
                if sent := traffic.rows(config, sides, processes, numbers, model.policy.spec, counted):
                    console.table("bytes between processes, at most", sent)
                session.memory.say(console)
            return
        stop.hold_from_now()
        iterations = train(checked, turns, collector, trainer, evaluator, reporter, saves, stop)
        reporter.add_costs()
        console.say(summary.ending(runner.max_epochs, iterations, evaluated=not trainer.unlogged))
        if rows := gain(folder):
            console.table("success before and after, on the same starts", rows)
        saves.exporter.finish(stop)
        reporter.finish(stop)
        rows = summary.places(runner.logger.logger_backends, sides, folder, saves.checkpoints.all())
        console.table("where things are", [*rows, *saves.exporter.uploads.rows()])


def train(
    checked: Checked, turns: Synchronous, collector: Collector, trainer: Learner, evaluator: EvaluationRunner,
    reporter: Reporter, saves: Saves, stop: StopSignal,
) -> int:  # fmt: skip
    """Trains until ``runner.max_epochs`` iterations are done or a stop signal comes; returns iterations that are saved.

    Args:
        stop: held by the caller.

    Raises:
        Stopped: a signal came before the first iteration.
        EmbodiedError: what ended it. Of a robot the last whole iteration is saved before.
    """
    runner, folder = checked.config.runner, Path(checked.config.runner.logger.log_path)
    with stop.cut_short():
        iteration = _resume(checked, trainer, reporter, saves)
    advice = NoiseAdvice(checked.config, checked.processes, trainer)
    look = newest_of(folder, [side.config.video_cfg for side in checked.sides])
    rows = earlier(folder, iteration) if checked.processes.is_main else []
    try:
        with reporter.running(iteration, look, rows) as ended, closing(collector), stop.may_end():
            if iteration < runner.max_epochs or trainer.unlogged:
                collector.open(stop)
            if iteration == 0 and runner.max_epochs:
                policies = (trainer.policy, trainer.acting.policy)
                scale_state(checked.config, checked.train, policies, collector, stop, reporter.console.say)
                reporter.sections.reset()
            reporter.begin(iteration)
            if iteration == 0 and runner.val_before_train and runner.max_epochs:
                with reporter.sections("time/eval"), trainer.evaluated():
                    found = evaluator.evaluate(0, trainer.weight_version, stop, collector.workers)
                reporter.log(0, found)
                reporter.sections.reset()
            while iteration < runner.max_epochs or trainer.unlogged:
                if not trainer.unlogged:  # else an evaluation was stopped, and is all that is left of the iteration
                    saves.keep(iteration)
                    trainer.unlogged = turns.iteration(iteration, stop)
                    iteration += 1
                found = {}
                if due(iteration, runner.val_check_interval, runner.max_epochs):
                    with reporter.sections("time/eval"), trainer.evaluated():
                        found = evaluator.evaluate(iteration, trainer.weight_version, stop, collector.workers)
                # before the save: a resumed run repeats what it lacks
                _log(reporter, iteration, trainer.unlogged | found, together=checked.config.algorithm.max_staleness > 0)
                if text := advice.take(trainer.unlogged):
                    reporter.warn(text, "gradient noise")
                trainer.unlogged = {}
                saves.save_if_due(iteration)
                ended()
    except EmbodiedError:
        if iteration and checked.processes.size == 1 and not checked.train.spec.retry_safe:
            saves.finish(iteration, whole=not trainer.cut_short)  # what a robot has done is dear
        raise
    return saves.finish(iteration, whole=not trainer.cut_short)


def _resume(checked: Checked, trainer: Learner, reporter: Reporter, saves: Saves) -> int:
    """Goes on from a checkpoint if there is one; returns iterations that are done."""
    iteration, ids = resumed(trainer, *saves.resume())
    if trainer.starts is not None and trainer.starts.said:
        reporter.console.say(trainer.starts.said)
    if trainer.unlogged:
        saves.outdated()
    first = iteration == 0 and checked.config.runner.val_before_train  # step 0 is logged anew
    repeats = trainer.unlogged or first
    reporter.open_trackers(iteration - bool(repeats), ids, checked.composed.resolved, rows=trainer.rows)
    if checked.processes.is_split:
        reporter.share_ids()
    for line in what_to_expect(checked.config, checked.train, trainer.policy.spec) if iteration == 0 else ():
        reporter.console.say(line)
    return iteration


def _log(reporter: Reporter, iteration: int, found: dict[str, float], together: bool) -> None:
    """Logs an iteration, and begins the times of the next."""
    reporter.log(iteration, metrics.with_times(found, reporter.sections, together))
    if failures := found.get("rollout/verifier_failures"):
        reporter.console.say(failed_verdicts(failures, found["rollout/episodes"]))
    if found.get("train/tasks_without_success"):
        reporter.warn(NO_SUCCESS_YET)
    if found["rollout/zero_advantage_share"] == 1:
        reporter.warn(NOTHING_LEARNT)
    reporter.sections.reset()
