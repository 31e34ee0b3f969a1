"""The recipe of an evaluation: k episodes of each task, success with its interval, videos."""

from __future__ import annotations

from contextlib import ExitStack

from embodied.observe.console import Console
from embodied.observe.services import SERVICES
from embodied.run import both, summary
from embodied.run.build import open_folder, open_model, sizes
from embodied.run.engine import open_engine
from embodied.run.evaluator import Evaluator
from embodied.run.given import Checked
from embodied.run.memory import plan_dry_run
from embodied.run.reporter import Reporter
from embodied.run.shares import folder_of_rank
from embodied.run.simulators import Simulators, open_fork_server
from embodied.runtime.signals import StopSignal


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Evaluates a policy (``runner.only_eval``): builds it, says what will run, evaluates, says where the results are.

    Raises:
        Stopped: a signal came before there were results.
    """
    runner = checked.config.runner
    with ExitStack() as opened:
        reporter = Reporter(console, checked.processes, runner)
        opened.enter_context(reporter)
        folder = opened.enter_context(open_folder(checked))
        server = opened.enter_context(open_fork_server(checked, folder.path, console))
        memory = plan_dry_run(checked, reporter)
        model = opened.enter_context(open_model(checked, reporter, memory.policy if memory else None))
        own = folder_of_rank(folder.path, checked.processes.of("rollout"))
        engine = opened.enter_context(open_engine(checked, model, own, console))
        simulators = Simulators(checked, model, folder.path, server, reporter, engine)
        asked = both.evaluations(checked)
        evaluators = [Evaluator(one, simulators, folder.path, reporter, resumable=True, ending=ending)
                      for ending, one in asked.items()]  # fmt: skip
        first = summary.of_evaluation(asked[""], model, sizes(checked, model.policy), folder.path)
        console.table(f"{runner.experiment_name}", first + both.planned([*asked.values()]))
        if runner.dry_run:
            if memory is not None:
                memory.say(console)
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
        if len(evaluators) > 1 and checked.processes.is_main:
            both.show(console, folder.path / "eval" / "000000.json")
        reporter.finish(stop)
        console.table("where things are", summary.places(checked, folder.path))
