"""The recipe of an evaluation of answers in a file (``python -m embodied.eval … answers=FILE``), without a model.

file ─▶ plan: an episode for each answer ─▶ Rollout ─▶ verifiers in workers ─▶ eval/000000.json
                                              └ AnswersPort writes the answer of the episode into its row
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import cast

import torch

from embodied.observe.console import Console
from embodied.parallel.sharding import Replicas
from embodied.protocols import Policy
from embodied.run import summary
from embodied.run.answers import FileAnswers, read
from embodied.run.build import Model, open_folder, sizes
from embodied.run.evaluator import Evaluator
from embodied.run.given import Checked
from embodied.run.reporter import Reporter
from embodied.run.simulators import Simulators, open_fork_server
from embodied.runtime.signals import StopSignal


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Reads the answers, says how many there are, has them verified, and says where the results are.

    Raises:
        Stopped: a signal came before there were results.
        DatasetError: the file cannot be read, or an answer is to no problem of ``env.eval``.
    """
    config, processes = checked.config, checked.processes
    assert config.runner.answers is not None
    with ExitStack() as opened:
        reporter = Reporter(console, processes, config.runner)
        folder = opened.enter_context(open_folder(checked))
        answers = FileAnswers(checked.eval, read(Path(config.runner.answers), checked.eval))
        server = opened.enter_context(open_fork_server(checked, folder.path, console))
        opened.enter_context(processes.connected(False, config.cluster.timeout_s))
        stand_in = cast(Policy, answers)  # its port answers, so it is asked for no more than it has
        model = Model(stand_in, torch.device("cpu"), Replicas(stand_in, processes.of("train")))
        simulators = Simulators(checked, model, folder.path, server, reporter)
        evaluator = Evaluator(checked, simulators, folder.path, reporter, answers=answers)
        lines = summary.of_answers(checked, answers.counts, sizes(checked, stand_in), folder.path)
        console.table(f"{config.runner.experiment_name}", lines)
        if config.runner.dry_run:
            return
        stop.hold_from_now()
        evaluator.evaluate(0, 0, stop)
        reporter.reports.finish(stop)
        console.table("where things are", summary.places(checked, folder.path))
