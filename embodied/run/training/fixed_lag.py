"""Iterations whose rollouts act with the weights of ``algorithm.max_staleness`` iterations before, 2 or more.

    s = 2    update i           update i + 1          update i + 2        (a thread of its own)
             rollout i + 1 ──────┐
                 rollout i + 2 ──┴──────────┐                             (the main thread: the same slots)
                                rollout i + 3 ──────…

Beside update ``i``, rollouts ``i + 1`` to ``i + s`` may run: their weights are there. Their slots are the same, and an
episode of a later iteration begins where none of an earlier one waits. Once update ``i`` has ended, rollout
``i + 1 + s`` may begin, too. Update ``i + 1`` begins when update ``i`` and rollout ``i + 1`` have ended. So which
weights act, and which episodes an update learns from, are functions of the iteration alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import suppress

from embodied.errors import Stopped
from embodied.learn.lagged import Lagged
from embodied.learn.ranks.sides import Learner
from embodied.parallel.group import Group
from embodied.protocols import Env
from embodied.run.folder.reporter import Reporter
from embodied.run.folder.saves import due
from embodied.run.training.collector import Collector
from embodied.run.training.iteration import OneStepOff, Synchronous, TimedRollout, Updated
from embodied.runtime.rollout.flowing import Flowing
from embodied.runtime.signals import StopSignal
from embodied.schema import Config


class FixedLag(OneStepOff):
    """Schedules an iteration whose rollout acted with the weights of so many iterations before: its update, and beside
    it those rollouts whose weights are there."""

    def __init__(
        self, config: Config, env: Env, processes: Group, collector: Collector, trainer: Learner, reporter: Reporter
    ) -> None:  # fmt: skip
        super().__init__(config, env, processes, collector, trainer, reporter)
        assert isinstance(trainer.acting, Lagged)
        self._acting, self._lag = trainer.acting, config.algorithm.max_staleness
        self._next = 0  # rollout to be planned next
        self._versions: dict[int, int] = {}  # rollout → version of the weights that act in it

    @property
    def _rollout(self) -> Flowing:
        workers = self._collector.workers
        assert workers is not None
        assert isinstance(workers.rollout, Flowing)
        return workers.rollout

    def _prepare(self, iteration: int) -> None:
        self._plan(iteration)

    def _plan(self, done: int) -> None:
        """Plans the rollouts whose weights are there after ``done`` iterations. No update runs now."""
        present = self._acting.present = self._trainer.weight_version
        for rollout in range(max(done, self._next), min(done + self._lag + 1, self._config.runner.max_epochs)):
            version = self._acting.version_of(rollout) if rollout < done + self._lag else present
            self._collector.ahead(rollout, version)
            self._versions[rollout], self._next = version, rollout + 1

    def _version(self, iteration: int) -> int:
        return self._versions[iteration]

    def _begin_update(self, iteration: int, ran: TimedRollout) -> None:
        own = [result for result in ran.collected.results if result.rank == self._processes.rank]
        self._rollout.hold(own)
        self._trainer.begin_rollout(iteration + self._lag)

    def _roll_beside(self, iteration: int, stop: StopSignal, ran: TimedRollout, update: Future[Updated]) -> None:
        runner = self._config.runner
        # An evaluation waits for running episodes, so none begins before it that need not.
        evaluates = due(iteration + 1, runner.val_check_interval, runner.max_epochs)

        def ended(idle: bool) -> bool:
            if idle:
                wait([update])
            if not update.done():
                return False
            update.result()
            self._rollout.hold()
            if not evaluates:
                self._plan(iteration + 1)
            return True

        self._rollout.watch(ended)
        with suppress(Stopped):  # of another process: what runs here must end before an evaluation all the same
            if iteration + 1 < runner.max_epochs:
                self._ahead = self._run(iteration + 1, stop)
        with stop.cut_short():
            self._rollout.go_on()
            if evaluates:
                self._rollout.drain()

    def _seconds(self, iteration: int, found: Mapping[str, float]) -> dict[str, float]:
        """Returns the rollout's seconds since its first episode began, with the shares of those in which it was waited
        for."""
        whole = self._rollout.seconds_of(iteration)
        return {name: whole * seconds / max(found["time/rollout"], 1e-9) for name, seconds in found.items()}


def make_turns(
    config: Config, env: Env, processes: Group, collector: Collector, trainer: Learner, reporter: Reporter
) -> Synchronous:  # fmt: skip
    """Makes the schedule of rollouts and updates that ``algorithm.max_staleness`` asks for."""
    kinds = Synchronous, OneStepOff, FixedLag
    kind = kinds[min(config.algorithm.max_staleness, 2)]
    return kind(config, env, processes, collector, trainer, reporter)
