"""Opens what every recipe works with: the run's folder, the server that forks env workers, the policy.

reporter ─▶ folder ─▶ fork server ─▶ (a dry run: what memory it would take) ─▶ policy, the processes connected
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch

from embodied import schema
from embodied.observe.terminal.console import Console
from embodied.parallel.group import Group
from embodied.parallel.sharding import Replicas
from embodied.protocols import Policy
from embodied.run.build.engine import open_engine
from embodied.run.build.given import Checked, ConfiguredEnv, Sides
from embodied.run.build.policy import Model, open_folder, open_model
from embodied.run.build.shares import folder_of_rank
from embodied.run.build.simulators import Simulators, open_fork_server
from embodied.run.evaluation.conditions import episode_count
from embodied.run.folder.beside.reports import Reports
from embodied.run.folder.costs import Costs
from embodied.run.folder.folder import RunFolder
from embodied.run.folder.reporter import Expected, Reporter
from embodied.run.memory.say import MemoryPlan, plan_dry_run
from embodied.runtime.engine.engine import Engine
from embodied.runtime.pool.fork_server import ForkServer


@dataclass(frozen=True)
class Session:
    """The open resources of a run: reporter, folder, fork server, policy, engine."""

    reporter: Reporter
    folder: RunFolder
    server: ForkServer | None  # forks env workers; None = each is started by itself
    memory: MemoryPlan | None  # memory that a dry run would take; None: no dry run, or it counts nothing
    model: Model
    engine: Callable[[], AbstractContextManager[Engine | None]]  # opens the inference engine, if there is to be one

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.folder.path

    def simulators(self, config: schema.Config, sides: Sides, engine: Engine | None = None) -> Simulators:
        """Makes the starter of env workers for the run's own policy."""
        return Simulators(
            config, sides, self.reporter.processes, self.model, self.path, self.reporter, self.server, engine
        )


@contextmanager
def open_session(
    checked: Checked, console: Console, counts: bool = True, folder: Path | None = None,
    stand_in: Callable[[], object] | None = None, played: Sequence[ConfiguredEnv] | None = None,
) -> Iterator[Session]:  # fmt: skip
    """Opens the resources of a run until the block ends: folder, fork server, policy, engine.

    Args:
        counts: a dry run counts memory.
        folder: of what is no run; None = the run's is opened.
        stand_in: makes what answers in the place of a policy; None = the policy is built.
        played: the envs that workers may be forked for; None = both sides of the run.

    Raises:
        RunFolderError: the run's folder cannot be written, is in use, or holds a run of another configuration.
        RankError: a process did not come.
        RanksDifferError: the processes hold different weights.
    """
    config, sides, processes = checked.config, checked.sides, checked.processes
    logger = config.runner.logger
    reports = Reports(Path(logger.log_path), logger.report and processes.is_main, console)
    reporter = Reporter(console, processes, config.runner, reports, expected(checked))
    with ExitStack() as opened:
        place = opened.enter_context(
            open_folder(checked.composed, processes) if folder is None else closing(RunFolder(folder, None))
        )
        if folder is None and not config.runner.dry_run:
            reporter.costs = opened.enter_context(closing(Costs(place.path, processes)))
        answers = None if stand_in is None else stand_in()
        played = sides if played is None else played
        server = opened.enter_context(open_fork_server(config, played, processes, place.path, console))
        memory = plan_dry_run(config, sides, processes, checked.demonstrations, console) if counts else None
        model = opened.enter_context(
            open_model(config, processes, sides, console, memory.policy if memory else None)
            if answers is None
            else _in_place_of_a_policy(answers, processes, config.cluster.timeout_s)
        )
        if reporter.costs is not None and answers is None:
            reporter.costs.describe(model.policy, model.device)
        rank = folder_of_rank(place.path, processes)
        yield Session(
            reporter, place, server, memory, model, partial(open_engine, config, processes, model, rank, console)
        )


def expected(checked: Checked) -> Expected:
    """Returns what is known of a run's episodes before it begins."""
    config, side = checked.config, checked.eval
    algorithm, episodes = config.algorithm, episode_count(config, side)
    return Expected(
        checked.train.max_steps, algorithm.sampling_params.do_sample, algorithm.val_sampling_params.do_sample is True,
        episodes * algorithm.val_group_size * (1 + len(side.conditions)) * side.max_steps,
    )  # fmt: skip


@contextmanager
def _in_place_of_a_policy(answers: object, processes: Group, timeout_s: float) -> Iterator[Model]:
    policy = cast(Policy, answers)  # its port answers, so it is asked for no more than it has
    with processes.connected(False, timeout_s):
        yield Model(policy, torch.device("cpu"), Replicas(policy, processes.of("train")))
