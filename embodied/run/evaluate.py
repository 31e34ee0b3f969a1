"""The recipe of an evaluation: k episodes of each task, success with its interval, videos."""

from __future__ import annotations

from contextlib import ExitStack

from embodied.observe.console import Console
from embodied.observe.services import SERVICES
from embodied.run import both, summary
from embodied.run.build import sizes
from embodied.run.evaluator import Evaluator
from embodied.run.given import Checked
from embodied.run.session import open_session
from embodied.runtime.signals import StopSignal


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Evaluates a policy (``runner.only_eval``): builds it, says what will run, evaluates, says where the results are.

    Raises:
        Stopped: a signal came before there were results.
    """
    config, sides, processes = checked.config, checked.sides, checked.processes
    runner, side = config.runner, checked.eval
    with ExitStack() as opened:
        session = opened.enter_context(open_session(checked, console))
        reporter, folder, model = opened.enter_context(session.reporter), session.path, session.model
        simulators = session.simulators(config, sides, opened.enter_context(session.engine()))
        asked = both.evaluations(checked.composed)
        evaluators = [Evaluator(one, side, simulators, folder, reporter, resumable=True, ending=ending)
                      for ending, one in asked.items()]  # fmt: skip
        numbers = sizes(config, sides, processes, model.policy.spec)
        first = summary.of_evaluation(asked[""], side, processes, model, numbers, folder)
        console.table(f"{runner.experiment_name}", first + both.planned([*asked.values()]))
        if runner.dry_run:
            if session.memory is not None:
                session.memory.say(console)
            return
        stop.hold_from_now()
        if services := [name for name in runner.logger.logger_backends if name in SERVICES]:
            reporter.open_trackers(None, {}, checked.composed.resolved, services)
        found = []
        for name, evaluator in zip(both.NAMES, evaluators, strict=False):
            if len(evaluators) > 1:
                console.say(f"\n{name} actions")
            found.append(evaluator.evaluate(0, 0, stop))
        for evaluator in evaluators:  # not before: one that has ended is not run again if the next is interrupted
            evaluator.forget(0)
        reporter.track(0, {name: value for one in found for name, value in one.items()})
        if len(evaluators) > 1 and processes.is_main:
            both.show(console, folder / "eval" / "000000.json")
        reporter.finish(stop)
        console.table("where things are", summary.places(runner.logger.logger_backends, sides, folder))
