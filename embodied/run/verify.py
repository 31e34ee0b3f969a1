"""The recipe of an evaluation of answers in a file (``python -m embodied.eval … answers=FILE``), without a model.

file ─▶ plan: an episode for each answer ─▶ Rollout ─▶ verifiers in workers ─▶ eval/000000.json
                                              └ AnswersPort writes the answer of the episode into its row
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from embodied.observe.console import Console
from embodied.run import summary
from embodied.run.answers import FileAnswers, read
from embodied.run.build import sizes
from embodied.run.evaluator import Evaluator
from embodied.run.given import Checked, EnvSide
from embodied.run.session import open_session
from embodied.runtime.signals import StopSignal


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Reads the answers, says how many there are, has them verified, and says where the results are.

    Raises:
        Stopped: a signal came before there were results.
        DatasetError: the file cannot be read, or an answer is to no problem of ``env.eval``.
    """
    composed, config, sides, side = checked.composed, checked.config, checked.sides, checked.eval
    runner = config.runner
    assert runner.answers is not None
    given = partial(_answers, Path(runner.answers), side)
    with open_session(checked, console, counts=False, stand_in=given) as session:
        answers, folder, reporter = cast(FileAnswers, session.model.policy), session.path, session.reporter
        evaluator = Evaluator(composed, side, session.simulators(config, sides), folder, reporter, answers=answers)
        numbers = sizes(config, sides, checked.processes, session.model.policy.spec)
        lines = summary.of_answers(composed, side, checked.processes, answers.counts, numbers, folder)
        console.table(f"{runner.experiment_name}", lines)
        if runner.dry_run:
            return
        stop.hold_from_now()
        evaluator.evaluate(0, 0, stop)
        reporter.finish(stop)
        console.table("where things are", summary.places(runner.logger.logger_backends, sides, folder))


def _answers(file: Path, side: EnvSide) -> FileAnswers:
    return FileAnswers(side, read(file, side))
