"""The recipes of an evaluation: k episodes of each task, success with its interval, videos.

:func:`verify` is that of answers in a file (``python -m embodied.eval … answers=FILE``), without a model:

    file ─▶ plan: an episode for each answer ─▶ Rollout ─▶ verifiers in workers ─▶ eval/000000.json
                                                  └ AnswersPort writes the answer of the episode into its row
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

from embodied.observe.terminal.console import Console
from embodied.observe.trackers.services import SERVICES
from embodied.run import summary
from embodied.run.build.given import Checked, ConfiguredEnv
from embodied.run.build.policy import sizes
from embodied.run.evaluation import greedy_and_sampled
from embodied.run.evaluation.answers import FileAnswers, read
from embodied.run.evaluation.evaluator import EvaluationRunner
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
        session = opened.enter_context(open_session(checked, console, played=[side]))
        reporter, folder, model = opened.enter_context(session.reporter), session.path, session.model
        simulators = session.simulators(config, sides, opened.enter_context(session.engine()))
        asked = greedy_and_sampled.evaluations(checked.composed)
        evaluators = [EvaluationRunner(one, side, simulators, folder, reporter, resumable=True, ending=ending)
                      for ending, one in asked.items()]  # fmt: skip
        numbers = sizes(config, sides, processes, model.policy.spec)
        first = summary.of_evaluation(asked[""], side, processes, model, numbers, folder)
        console.table(f"{runner.experiment_name}", first + greedy_and_sampled.planned([*asked.values()]))
        if runner.dry_run:
            if session.memory is not None:
                session.memory.say(console)
            return
        stop.hold_from_now()
        if services := [name for name in runner.logger.logger_backends if name in SERVICES]:
            reporter.open_trackers(None, {}, checked.composed.resolved, services)
        found = []
        for name, evaluator in zip(greedy_and_sampled.NAMES, evaluators, strict=False):
            if len(evaluators) > 1:
                console.say(f"\n{name} actions")
            found.append(evaluator.evaluate(0, 0, stop))
        for evaluator in evaluators:  # not before: one that has ended is not run again if the next is interrupted
            evaluator.forget(0)
        reporter.track(0, {name: value for one in found for name, value in one.items()})
        if len(evaluators) > 1 and processes.is_main:
            greedy_and_sampled.show(console, folder / "eval" / "000000.json")
        reporter.add_costs()
        reporter.finish(stop)
        console.table("where things are", summary.places(runner.logger.logger_backends, sides, folder))


def verify(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Evaluates answers from a file (``runner.answers``): reads them, has them verified, says where the results are.

    Raises:
        Stopped: a signal came before there were results.
        DatasetError: the file cannot be read, or an answer is to no problem of ``env.eval``.
    """
    composed, config, sides, side = checked.composed, checked.config, checked.sides, checked.eval
    runner = config.runner
    assert runner.answers is not None
    given = partial(_answers, Path(runner.answers), side)
    with open_session(checked, console, counts=False, stand_in=given, played=[side]) as session:
        answers, folder, reporter = cast(FileAnswers, session.model.policy), session.path, session.reporter
        evaluator = EvaluationRunner(
            composed, side, session.simulators(config, sides), folder, reporter, answers=answers
        )
        numbers = sizes(config, sides, checked.processes, session.model.policy.spec)
        lines = summary.of_answers(composed, side, checked.processes, answers.counts, numbers, folder)
        console.table(f"{runner.experiment_name}", lines)
        if runner.dry_run:
            return
        stop.hold_from_now()
        evaluator.evaluate(0, 0, stop)
        reporter.add_costs()
        reporter.finish(stop)
        console.table("where things are", summary.places(runner.logger.logger_backends, sides, folder))


def _answers(file: Path, side: ConfiguredEnv) -> FileAnswers:
    return FileAnswers(side, read(file, side))
