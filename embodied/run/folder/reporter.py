"""Reports the progress of a run: console, trackers, times and estimates."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from typing import Any, Protocol

import torch

from embodied.learn.step.threads import training_threads
from embodied.learn.watch import Passed, Watch
from embodied.observe.metrics import Metric
from embodied.observe.reach import Reach, actions
from embodied.observe.terminal.console import Console
from embodied.observe.terminal.progress import Phase
from embodied.observe.terminal.screen import Look
from embodied.observe.timing import Sections
from embodied.observe.trackers.services import About
from embodied.observe.trackers.trackers import Trackers, make_trackers
from embodied.parallel.group import Group
from embodied.protocols import Cell
from embodied.run.folder.costs import Costs
from embodied.run.folder.pace import Pace, skipped_updates, starved
from embodied.run.folder.profiling import marks, profiled
from embodied.runtime.rollout.rollout import Job
from embodied.runtime.signals import StopSignal
from embodied.schema import RunnerConfig
from embodied.types import EpisodeResult

TRACKERS_S = 60.0  # time limit for trackers' services at the end of a run
INTERRUPTED_S = 20.0  # the same after Ctrl-C: who pressed it is told, and may press it again
STOPPED_S = 5.0  # the same after SIGTERM, if so much time is granted: what sent it will soon end the run


@dataclass(frozen=True)
class Expected:
    """What is known of a run's episodes before it begins.

    Args:
        max_steps: control steps at which training episodes are cut off.
        eval_steps: most control steps of an evaluation.
    """

    max_steps: float = inf
    sampled: bool = True  # training draws its actions
    eval_sampled: bool = False
    eval_steps: int = 0


class Reporter:
    """Reports a run to console and trackers, and times it.

    Args:
        console: shows what this process does; silent in all processes but rank 0.
        processes: those of the run.
        runner: has the number of iterations, the folder, and which trackers there are.
        reports: writes the report of the run; None = it has none.

    Attributes:
        costs: of the run, logged with each iteration; None = they are not counted.
    """

    costs: Costs | None = None

    def __init__(
        self, console: Console, processes: Group, runner: RunnerConfig, reports: WritesReports | None = None,
        expected: Expected | None = None,
    ) -> None:  # fmt: skip
        self.console, self.processes = console, processes
        self.sections = Sections(marks(runner.profiler, console.say))
        self._runner = runner
        self._trackers: Trackers | None = None
        self._ids: dict[str, str] = {}
        self._reports, self._expected = reports or NoReports(), expected or Expected()
        self._reach, self._said = Reach(self._expected.max_steps), set[str]()
        self._pace = self._new_pace(0)

    @contextmanager
    def running(
        self, iteration: int, look: Look, earlier: Sequence[dict[str, float]]
    ) -> Iterator[Callable[[], None]]:  # fmt: skip
        """Context of a run that resumes after ``iteration`` iterations: shows its panel, times and profiles it. Yields
        a function to call at the end of each iteration.

        Args:
            look: finds the newest files of the run.
            earlier: the metrics of iterations from before, for the panel.
        """
        self.begin(iteration)
        folder, rank = Path(self._runner.logger.log_path), self.processes.rank
        profile = profiled(self._runner.profiler, folder, rank, self.console.say)
        shown = [self._shown(row) for row in earlier]
        with self.console.panel(str(self._runner.experiment_name), look, shown), profile as ended:
            yield ended

    def begin(self, iteration: int) -> None:
        """Restarts times and estimates, after ``iteration`` iterations."""
        self.sections.reset()
        self._pace = self._new_pace(iteration)

    def _new_pace(self, iteration: int) -> Pace:
        runner = self._runner
        return Pace(iteration, runner.max_epochs, runner.val_check_interval, self._expected.eval_steps)

    def title(self, iteration: int) -> str:
        """Formats the number of the iteration in progress: ``iteration 3/100`` where ``iteration`` were done."""
        return f"iteration {iteration + 1}/{self._runner.max_epochs}"

    def watch(self, title: str, go_on: Callable[[float | None], bool]) -> Watch:
        """Makes the watch of an update: it shows the passes on the console and ends the update where ``go_on`` returns
        False.

        Args:
            title: what the name of each phase begins with, e.g. ``iteration 3/100``.
            go_on: is given the seconds that the phase still needs (None: nobody knows).
        """

        @contextmanager
        def watch(name: str, total: int) -> Iterator[Passed]:
            with self.console.progress(f"{title} {name}{self.processes.share_note}", total, brief=True) as bar:

                def passed(records: int) -> bool:
                    bar.advance(records)
                    return go_on(bar.left_s)

                yield passed

        return watch

    def episodes(self, name: str, total: int) -> AbstractContextManager[Phase]:
        """Shows a phase of ``total`` episodes, this process's share."""
        return self.console.progress(name + self.processes.share_note, total)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context that counts and shows the time in which this process waits for the others."""
        with self.sections("rollout/ranks"), self.console.progress("waiting for the other ranks", brief=True):
            yield

    @contextmanager
    def updating(self, device: torch.device, num_threads: int | None) -> Iterator[None]:
        """Context that times an update, which computes with ``num_threads`` threads (None: as many as before), and says
        when other programs take its cores."""
        with self.sections("time/train"):
            wall, cpu = perf_counter(), process_time()
            with training_threads(num_threads):
                yield
            alone = device.type == "cpu" and self.processes.size == 1  # else it waits for a device or for ranks
            if alone and (text := starved(perf_counter() - wall, process_time() - cpu)):
                self.warn(text, "starved")

    def warn(self, text: str, what: str = "") -> None:
        """Says a warning, once in a run.

        Args:
            what: it is about, if its text has numbers that change.
        """
        if (what or text) not in self._said:
            self._said.add(what or text)
            self.console.say(text)

    def open_trackers(
        self, last_step: int | None, ids: Mapping[str, str], config: Mapping[str, Any], backends: Sequence[str] = (),
        rows: Sequence[Metric] = (),
    ) -> None:  # fmt: skip
        """Opens the trackers, on rank 0. They drop logged steps after ``last_step``.

        Args:
            last_step: None = nothing is resumed.
            ids: under which they know the run.
            config: the resolved configuration; services get it without its secrets.
            backends: these; none = those of ``runner.logger``.
            rows: of metrics that terms of the user's measure.
        """
        logger = self._runner.logger
        if self.processes.is_main:
            about = About(self._runner.experiment_name or "run", logger.project_name, logger.group_name, config)
            names = backends or logger.logger_backends
            if self._runner.run_id:
                ids = {**dict.fromkeys(names, self._runner.run_id), **ids}
            self._trackers = make_trackers(
                names, Path(logger.log_path), last_step, ids, about, self.console.say, rows
            )  # fmt: skip

    @property
    def run_ids(self) -> dict[str, str]:
        """The ids under which the trackers know the run; rank 0 has them, and others after :meth:`share_ids`."""
        return dict(self._trackers.run_ids) if self._trackers else self._ids

    def share_ids(self) -> None:
        """Tells all processes the ids under which the trackers know the run. A collective."""
        self._ids = self.processes.of_first(self.run_ids)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of an iteration to the trackers and the console, on rank 0. A collective."""
        metrics = {**metrics, **(self.costs.measure() if self.costs else {})}
        if self._trackers is not None:
            self._trackers.log(iteration, metrics)
            evaluated = any(name.startswith("eval/") for name in metrics)
            if evaluated:
                self._pace.evaluated(self.sections.seconds("time/eval"))
            left_s = self._pace.left_s(iteration, metrics.get("rollout/env_steps_per_s", 0.0))
            place = {"iteration": iteration, "iterations": self._runner.max_epochs, "left_s": left_s}
            self.console.iteration({**self._shown(metrics), **place})
            if skipped := skipped_updates(metrics):
                self.warn(skipped, "skipped updates")
            if self._reach.out:
                self.warn(self._reach.why, "reach")
            if evaluated:
                self._reports.refresh()

    def _shown(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns what the console is to show of an iteration, and how actions were drawn."""
        self._reach.take(metrics)
        drawn = {"rollout": self._expected.sampled, "eval": self._expected.eval_sampled}
        return {**self._reach.shown(metrics), **{f"{side}/sampled": float(sampled) for side, sampled in drawn.items()}}

    def counting(self, bar: Phase, job: Job) -> Callable[[EpisodeResult, Mapping[str, str]], None]:
        """Advances ``bar`` by each episode that ends or is given up. Shows how many of those that ended succeeded; as
        long as none can, their mean return. Facts beside an episode are shown, too."""
        done: list[EpisodeResult] = []
        drawn, can_succeed = actions(job.sampling.do_sample), not replace(self._reach, limit=job.max_steps).out

        def advance(result: EpisodeResult, beside: Mapping[str, str]) -> None:
            if not result.not_run:
                done.append(result)
            facts: dict[str, str | float] = {"return": fmean(one.episode_return for one in done)} if done else {}
            if can_succeed or any(one.success for one in done):
                facts = {"success": f"{sum(one.success for one in done)}/{len(done)} {drawn}"}
            bar.advance(1, **facts, **beside)

        return advance

    def track(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs metrics to the trackers alone."""
        if self._trackers is not None:
            self._trackers.log(step, metrics)

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Hands a table to the trackers that take tables."""
        if self._trackers is not None:
            self._trackers.table(step, name, columns, rows)

    def video(self, step: int, name: str, file: Path) -> None:
        """Hands a video to the trackers that take videos."""
        if self._trackers is not None:
            self._trackers.video(step, name, file)

    def add_costs(self) -> None:
        """Adds up what all processes have taken, when the work is done. A collective."""
        if self.costs is not None:
            self.costs.finish()

    def finish(self, stop: StopSignal) -> None:
        """Writes the report and lets tracking services finish; after a stop signal only for a limited time.

        Raises:
            KeyboardInterrupt: a second Ctrl-C.
        """
        self._reports.finish(stop)

        def patience(waited_s: float) -> bool:
            if stop.number == signal.SIGINT:
                return waited_s < INTERRUPTED_S
            return waited_s < (STOPPED_S if stop.wanted else TRACKERS_S) and stop.grants(0.0)

        if self._trackers is not None:
            if stop.number == signal.SIGINT and (names := " and ".join(self._trackers.services)):
                self.console.say(
                    f"waiting until {names} has taken what was logged, at most {INTERRUPTED_S:g} s; Ctrl-C again ends "
                    "this at once"
                )
            with self.console.progress("finishing the trackers", brief=True):
                self._trackers.finish(patience)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """As :meth:`close`; after a second Ctrl-C no service is waited for."""
        if self._trackers is not None and kind is KeyboardInterrupt:
            self._trackers.kill()
        self.close()

    def close(self) -> None:
        """Closes the trackers, and ends a report that is still being written."""
        self._reports.close()
        if self._trackers is not None:
            self._trackers.close()


class WritesReports(Protocol):
    """Interface of the writer of a run's report, which works beside the run."""

    def refresh(self) -> None:
        """Begins a new report."""

    def finish(self, stop: StopSignal) -> None:
        """Writes the last report, and waits for it."""

    def close(self) -> None:
        """Ends a report that is still being written."""


class NoReports:
    """Stands for the writer of reports where none are wanted: does nothing."""

    def refresh(self) -> None:
        pass

    def finish(self, stop: StopSignal) -> None:
        pass

    def close(self) -> None:
        pass
