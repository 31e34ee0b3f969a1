"""An iteration of reinforcement learning: its rollout and its update, in turn or side by side, and their metrics.

    usual                          rollout 0   update 0   rollout 1   update 1   rollout 2 …

    algorithm.sac.reset_beside_update      the slots go to the starts of rollout 1 while update 0 is made

    algorithm.max_staleness ≥ 1    rollout 0   update 0   update 1   update 2 …      (a thread of its own)
                                               rollout 1  rollout 2  rollout 3 …     (the main thread)

Beside update ``i``, rollout ``i + 1`` acts with the weights that update ``i`` began with, in a copy of the policy
(:mod:`embodied.learn.acting`). The next two begin when both have ended. So which weights act is a function of the
iteration alone. The rollout stays in the main thread, where a stop signal ends it at once; the update ends between two
passes, as ever. A rollout that was ended is collected again by the resumed run, from the same starts and with the same
weights, which its checkpoint has.

Several processes exchange numbers in both threads, each in a group of its own (:meth:`Group.beside`): a collective of
one is never taken for one of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event

import torch

from embodied.errors import Stopped
from embodied.learn.batch import Batch
from embodied.learn.ranks.sides import Learner
from embodied.parallel.group import Group
from embodied.protocols import Batched, Env
from embodied.run.folder.reporter import Reporter
from embodied.run.folder.saves import due
from embodied.run.memory.remedies import explained
from embodied.run.training import metrics
from embodied.run.training.collector import Collector
from embodied.run.training.dynamic_sampling import Collected
from embodied.runtime.signals import StopSignal
from embodied.schema import AlgorithmConfig, Config

Updated = tuple[dict[str, float], Batch, metrics.Used]
"""Metrics of an update, the batch of all its episodes, and the discrete values in this process's records."""
GoOn = Callable[[float | None], bool]
"""Whether an update whose phase needs so many more seconds (None: nobody knows) may go on."""


@dataclass(frozen=True)
class TimedRollout:
    """The collected episodes of a rollout, and the seconds of its sections."""

    collected: Collected
    seconds: Mapping[str, float]


class Synchronous:
    """Schedules an iteration: rollout, then update; nothing runs beside either.

    Args:
        env: of training.
    """

    def __init__(
        self, config: Config, env: Env, processes: Group, collector: Collector, trainer: Learner, reporter: Reporter
    ) -> None:  # fmt: skip
        self._config, self._env, self._processes = config, env, processes
        self._collector, self._trainer, self._reporter = collector, trainer, reporter

    def iteration(self, iteration: int, stop: StopSignal) -> dict[str, float]:
        """Makes one iteration, after ``iteration`` were done: rollout and update; returns the metrics of both.

        Raises:
            Stopped: in all processes; a signal has ended rollout or update in one.
            DeviceMemoryError: the policy, or the passes, do not fit.
        """
        self._trainer.begin_rollout(iteration)
        ran = self._run(iteration, stop)
        if self._resets_beside_update(iteration + 1):
            self._collector.reset_ahead(iteration + 1, self._version(iteration))
        updated = self._update(ran, iteration, stop.grants, self._config.actor.num_threads)
        return self._metrics(ran, updated)

    def _resets_beside_update(self, following: int) -> bool:
        """Returns whether slots go to the starts of the next iteration while the update before it is made. Before an
        evaluation they do not: it has other starts."""
        algorithm, runner = self._config.algorithm, self._config.runner
        if algorithm.learner != "sac" or self._config.env.enable_offload or following >= runner.max_epochs:
            return False
        wanted, batched = algorithm.sac.reset_beside_update, isinstance(self._env, Batched)
        wanted = not (self._env.spec.retry_safe or batched) if wanted is None else wanted
        return wanted and not due(following, runner.val_check_interval, runner.max_epochs)

    def close(self) -> None:
        """Ends what runs beside the iteration; here nothing does."""

    def _run(
        self,
        iteration: int,
        stop: StopSignal,
        before: TimedRollout | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> TimedRollout:
        """Collects the rollout of ``iteration`` with the weights that act.

        Args:
            before: a rollout whose rows an update reads meanwhile.
            ended: called after each episode; what it raises ends the rollout.
        """
        sections, acting = self._reporter.sections, self._trainer.acting
        began = {name: sections.seconds(name) for name in metrics.ROLLOUT_TIMES}
        with acting.weights():
            held = before.collected.results if before else ()
            collected = self._collector.collect(iteration, self._version(iteration), stop, held, ended)
        if self._config.env.enable_offload:
            with sections("time/rollout"):
                self._collector.rest()
        found = {name: sections.seconds(name) - began[name] for name in began}
        return TimedRollout(collected, self._seconds(iteration, found))

    def _seconds(self, iteration: int, found: Mapping[str, float]) -> Mapping[str, float]:
        """Returns the seconds of a rollout's sections, of which ``found`` were counted while it was waited for."""
        return found

    def _version(self, iteration: int) -> int:
        """Returns the version of the weights that act in the rollout of ``iteration``."""
        return self._trainer.acting.version

    def _update(self, ran: TimedRollout, iteration: int, go_on: GoOn, num_threads: int | None) -> Updated:
        """Trains on a rollout, whose records stand in the slab."""
        device, collected = self._trainer.device, ran.collected
        with self._reporter.updating(device, num_threads), explained(device, self._config, self._processes, "update"):
            watch = self._reporter.watch(self._reporter.title(iteration), go_on)
            records = self._collector.records(collected.results)
            if self._trainer.starts is not None:
                self._trainer.starts.dropped(collected.dropped)
            found, batch = self._trainer.update(records, collected.results, iteration, collected.baselines, watch)
            return found, batch, metrics.used_values(self._trainer.policy.spec, self._processes.rank, records, batch)

    def _metrics(self, ran: TimedRollout, updated: Updated, ahead: TimedRollout | None = None) -> dict[str, float]:
        """Returns the metrics of rollout and update, and gives back the rows of all but ``ahead``."""
        (found, batch, used), trainer, processes = updated, self._trainer, self._processes
        workers, train_s = self._collector.workers, self._reporter.sections.seconds("time/train")
        found |= metrics.of_rollout(
            processes, trainer.policy.spec, workers, ran.collected, batch, used, ran.seconds, self._env,
            self._config.algorithm.sampling_params.max_new_tokens,
        )  # fmt: skip
        self._collector.keep(ahead.collected.results if ahead else [])
        found |= metrics.of_update(processes, trainer, trainer.device, train_s)
        return found | {"time/rollout_s": ran.seconds["time/rollout"], "time/train_s": train_s}


class OneStepOff(Synchronous):
    """Schedules an iteration one step off-policy: an update, and beside it the rollout that the next update
    learns from."""

    def __init__(
        self, config: Config, env: Env, processes: Group, collector: Collector, trainer: Learner, reporter: Reporter
    ) -> None:  # fmt: skip
        super().__init__(config, env, processes, collector, trainer, reporter)
        self._thread = ThreadPoolExecutor(1, "update")
        self._given_up = Event()
        self._ahead: TimedRollout | None = None
        on_gpu = trainer.device.type == "cuda"
        self._stream = torch.cuda.Stream(trainer.device) if on_gpu else None  # else one queue would hold up the other

    def iteration(self, iteration: int, stop: StopSignal) -> dict[str, float]:
        """Makes one iteration: an update, and beside it the next rollout. A signal that ends the rollout ends no update
        that will soon be done: its metrics are returned then, and the next call raises."""
        self._prepare(iteration)
        ran, self._ahead = self._ahead or self._run(iteration, stop), None
        self._begin_update(iteration, ran)
        title = f"{self._reporter.title(iteration)} update, beside the next rollout"
        with self._reporter.console.progress(title, brief=True), apart_from_other_threads():
            threads = self._config.actor.num_threads or torch.get_num_threads()
            update = self._thread.submit(self._update_beside, ran, iteration, stop, threads)
            try:
                with suppress(Stopped):
                    self._roll_beside(iteration, stop, ran, update)
                updated = update.result()
            except BaseException:
                self._given_up.set()
                wait([update])
                raise
        return self._metrics(ran, updated, self._ahead)

    def _prepare(self, iteration: int) -> None:
        """Makes an iteration's rollout possible, where none has run beside an update before."""
        if iteration == 0:
            self._trainer.begin_rollout(0)

    def _begin_update(self, iteration: int, ran: TimedRollout) -> None:
        """Takes the weights that act beside the update, which changes the present ones."""
        self._trainer.begin_rollout(iteration + 1)  # also after the last iteration: a longer run may go on from it

    def _roll_beside(self, iteration: int, stop: StopSignal, ran: TimedRollout, update: Future[Updated]) -> None:
        """Collects the next rollout, if there is one, while the update runs."""
        if iteration + 1 < self._config.runner.max_epochs:
            self._ahead = self._run(iteration + 1, stop, ran, lambda: self._check(update))

    def _check(self, update: Future[Updated]) -> None:
        """Raises what has ended the update, or will end the next rollout."""
        if update.done():
            update.result()
        self._trainer.acting.check()

    def close(self) -> None:
        """Ends the thread in which rollouts run."""
        self._thread.shutdown()

    def _update_beside(self, ran: TimedRollout, iteration: int, stop: StopSignal, num_threads: int) -> Updated:
        """Runs in the thread."""

        def go_on(left_s: float | None) -> bool:
            return not self._given_up.is_set() and stop.grants(left_s)

        with _on(self._stream):
            return self._update(ran, iteration, go_on, num_threads)


def processes_of(algorithm: AlgorithmConfig, processes: Group) -> Group:
    """Returns the group in which the processes exchange results of a rollout while an update exchanges gradients. A
    collective of the processes that are connected."""
    return processes.beside() if algorithm.max_staleness else processes


@contextmanager
def apart_from_other_threads() -> Iterator[None]:
    """Context that keeps this thread's autocast from changing the weights that other threads compute with.

    Autocast keeps the weights that it has cast in one table for all threads, and a thread that leaves its outermost
    autocast empties it. A weight that is used twice in a pass would then be cast twice, or once, depending on what
    another thread does. Its gradient adds up in the lower precision only as long as it is cast once, so its bits would
    depend on timing. Within the block this thread leaves no outermost autocast, and puts nothing into the table.
    """
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.set_autocast_cache_enabled(kept)


@contextmanager
def _on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Lets this thread compute on a stream, after all that the usual one has to do; and that one goes on after it."""
    if stream is None:
        yield
        return
    usual = torch.cuda.current_stream(stream.device)
    stream.wait_stream(usual)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
