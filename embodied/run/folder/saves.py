"""The checkpoints of a run: resumes from them, saves when it is due, and leaves one where the run ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from embodied.errors import RunFolderError
from embodied.learn.checkpoint import loading
from embodied.learn.checkpoint.checkpoint import Checkpoints, place
from embodied.learn.checkpoint.snapshot import PARTS
from embodied.learn.checkpoint.state import KeepsFiles, Learner
from embodied.learn.origin import Origin
from embodied.parallel import collectives
from embodied.parallel.group import Group
from embodied.parallel.sharding import Parallel
from embodied.run.folder.beside.exports import Exporter
from embodied.run.folder.folder import RunFolder
from embodied.run.folder.reporter import Reporter
from embodied.run.folder.rescheduled import rescheduled
from embodied.schema import Config, RunnerConfig

OTHER_RANKS = (
    "processes that train: {} so far, {} from here on. Sums have another order, so numbers differ in their last digits "
    "from those of a run that keeps its processes"
)


class Saves:
    """Saves and resumes a learner. All processes make the same calls; those that do not train save nothing.

    A place in a run is ``(iterations, optimizer steps of the next one)`` that are done.
    """

    def __init__(
        self, folder: RunFolder, config: Config, learner: Learner, sharding: Parallel, reporter: Reporter,
        origin: Origin, processes: Group | None = None,
    ) -> None:  # fmt: skip
        runner, self._among = config.runner, None
        if processes is not None and processes.is_split:
            self._among = processes.of("train")
        self._elsewhere = self._among is not None and not self._among.here
        self._world = None if self._among is None else processes
        kept, self._config, self._earlier = runner.checkpoint, config, folder.earlier
        path = folder.path / "checkpoints"
        self.exporter = Exporter(folder.path, kept, learner.policy, reporter.console, _base_of(origin))
        self.checkpoints = Checkpoints(
            path, kept.max_keep, kept.async_save, origin.as_json(), kept.save_contents, self.exporter.completed,
            self._among, learner.saved if isinstance(learner, KeepsFiles) else lambda state: None,
        )  # fmt: skip
        self._folder, self._runner, self._learner, self._sharding = folder.path, runner, learner, sharding
        self._reporter = reporter
        self._saved: tuple[int, int] | None = (0, 0)
        self._saved_at = monotonic()

    def resume(self) -> tuple[int, dict[str, str]]:
        """Loads the newest whole checkpoint of this run if there is one. A collective of all processes: rank 0 says
        what those that train found, also if it is none of them.

        Returns:
            iterations that are done, and the ids under which the trackers know the run.
        """
        console, said = self._reporter.console, list[str]()
        if self._world is None or self._among is None:
            return self._resume(console.say)
        found = (0, dict[str, str]()) if self._elsewhere else self._resume(said.append)
        for text in self._world.of_rank(said, self._among.members[0]):
            console.say(text)
        return found

    def _resume(self, say: Callable[[str], None]) -> tuple[int, dict[str, str]]:
        iteration, ids = 0, dict[str, str]()
        self.checkpoints.clean()
        found = collectives.of_first(lambda: self._to_resume(say), among=self._among)
        if found is not None:
            with self._reporter.console.progress(f"loading {found}", brief=True):
                meta = loading.resume(found, self._learner, self._runner.checkpoint.load_contents, self._among)
            iteration, ids = meta.iteration, meta.trackers
            self._sharding.check()
            say(f"going on after iteration {iteration}, from {found}")
            if (now := collectives.count(self._among)) != meta.ranks:
                say(OTHER_RANKS.format(meta.ranks, now))
            if missing := [part for part in PARTS if part not in self._runner.checkpoint.load_contents]:
                say(f"begun anew (runner.checkpoint.load_contents): {', '.join(missing)}")
            if text := rescheduled(self._earlier, self._config, iteration):
                say(text)
            self._saved = (iteration, meta.steps)
            if collectives.here(self._among) == 0:
                self.exporter.missing(found)
        self._saved_at = monotonic()
        return iteration, ids

    def _to_resume(self, say: Callable[[str], None]) -> Path | None:
        resume_dir = self._runner.resume_dir
        if resume_dir == "auto":
            newest = self.checkpoints.newest_loadable(say)
            return newest[0] if newest else None
        if resume_dir is not None:
            return Path(resume_dir)
        if existing := self.checkpoints.all():
            raise RunFolderError(
                f"runner.resume_dir is null and {self._folder} has checkpoints (newest {existing[-1].name})",
                "set runner.resume_dir=auto to go on, or runner.experiment_name to a new name",
            )
        return None

    def outdated(self) -> None:
        """Marks the newest checkpoint as outdated. Call it when the learner changes in place."""
        self._saved = None

    def keep(self, iteration: int) -> None:
        """Copies the learner after ``iteration`` iterations, for :meth:`finish`, unless a checkpoint has it."""
        if self._saved != (iteration, 0) and not self._elsewhere:
            with self._reporter.console.progress("copying what a stop would save", brief=True):
                self.checkpoints.keep(self._learner, iteration, self._reporter.run_ids)

    def save_if_due(self, iteration: int, steps: int = 0) -> None:
        """Saves after ``iteration`` iterations if ``runner.save_interval`` or the clock says so; after ``steps``
        optimizer steps of the next one only if the clock does."""
        if not self._elsewhere and save_due(self._runner, iteration, self._saved_at, steps, self._among):
            with self._reporter.sections("time/save"):
                self.save(iteration, steps)
            self._saved_at = monotonic()

    def save(self, iteration: int, steps: int = 0) -> None:
        """Saves the learner after ``iteration`` iterations and ``steps`` optimizer steps: rank 0 what all processes
        hold, each process its part of what is sharded."""
        with self._reporter.console.progress("saving", brief=True):
            self._sharding.check()
            self.checkpoints.save(self._learner, iteration, self._reporter.run_ids, steps)
        self._saved = (iteration, steps)

    def finish(self, iteration: int, steps: int = 0, whole: bool = True) -> int:
        """Makes sure, at the end, that a checkpoint of the learner's last state is on the disk; returns the iterations
        that are saved. A collective of all processes.

        Args:
            whole: whether the learner is at a place. If it is amid an update, what :meth:`keep` copied is written.
        """
        saved = iteration if self._elsewhere else self._finish(iteration, steps, whole)
        if self._world is None or self._among is None:
            return saved
        return self._world.of_rank(saved, self._among.members[0])

    def _finish(self, iteration: int, steps: int, whole: bool) -> int:
        there = self._saved == (iteration, steps)
        if whole and not there:
            self.save(iteration, steps)
        with self._reporter.console.progress("saving", brief=True):
            kept = None if whole or there else self.checkpoints.save_kept()
            self.checkpoints.wait()
        if whole or there or kept is not None:
            return iteration
        older = self.checkpoints.all()
        self._reporter.console.say(
            f"the update of iteration {iteration + 1} was cut short, and "
            + (f"the newest checkpoint is {older[-1]}" if older else "no iteration was saved before it")
            + ": with runner.checkpoint.async_save=true a copy of each iteration is kept for this"
        )
        return place(older[-1])[0] if older else 0

    def close(self) -> None:
        """Ends an export that goes on, and waits until nothing is being written; an error of the writing is only said,
        as another ends the run."""
        self.exporter.close()
        self.checkpoints.close(self._reporter.console.say)


def save_due(
    runner: RunnerConfig, iteration: int, saved_at: float, steps: int = 0, among: Group | None = None
) -> bool:  # fmt: skip
    """Returns whether to save now: by iterations, or by the clock of rank 0, because the processes' clocks differ."""
    if not steps and due(iteration, runner.save_interval, runner.max_epochs, always_last=True):
        return True
    interval = runner.save_interval_s
    return interval is not None and collectives.of_first(lambda: monotonic() - saved_at >= interval, among=among)


def due(iteration: int, interval: int, last: int, always_last: bool = False) -> bool:
    """Returns whether an action of every ``interval`` iterations (−1 = never), and with ``always_last`` of the last
    one, is due now."""
    if interval <= 0:
        return always_last and iteration == last
    return iteration % interval == 0 or iteration == last


def _base_of(origin: Origin) -> str | None:
    """Returns the address of the server of the policy that a head changes."""
    base = origin.kwargs.get("base")
    return base.get("url") if isinstance(base, Mapping) else None
