"""Trackers of metrics: a file of JSON lines, TensorBoard, a service (:mod:`embodied.observe.trackers.services`), a
user's class.

A run that is resumed from step s repeats the steps after s. Their old metrics are dropped, so that each step is there
once.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from embodied.errors import RunFolderError, unknown_name
from embodied.lib.targets import load_target
from embodied.lib.whole import write_whole
from embodied.observe import metrics as names
from embodied.observe.trackers.services import SERVICES, About, Service
from embodied.protocols import Cell, TakesTables, TakesVideos, Tracker


class JsonlTracker:
    """Writes one line per call to the disk at once: ``{"step": 3, "rollout/success_rate": 0.25, …}``.

    Numbers that are not finite become ``null`` (JSON has none).

    Args:
        path: the file; folders are made. Existing lines stay, except those that a crash cut short.
        resume_step: also drop lines of later steps.

    Raises:
        RunFolderError: the file cannot be written.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        with _writing(self._path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._drop(math.inf if resume_step is None else resume_step)
            self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        line = {"step": int(step)} | {name: _number(value) for name, value in metrics.items()}
        with _writing(self._path):
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())  # a checkpoint must not outlive the lines of its iterations

    def close(self) -> None:
        self._file.close()

    def _drop(self, last_step: float) -> None:
        """Drop lines after ``last_step``. A rename replaces the file, so a crash in here loses no line."""
        lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        kept = [line for line in lines if _step_of(line) <= last_step]
        write_whole(self._path, "".join(f"{line}\n" for line in kept))


class TensorBoardTracker:
    """Writes TensorBoard event files to ``folder``.

    Args:
        folder: made when missing.
        resume_step: TensorBoard hides earlier entries of later steps.

    Raises:
        RunFolderError: the folder cannot be written.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # imported here because it takes a second

        purge_step = None if resume_step is None else resume_step + 1
        with _writing(folder):
            self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackers:
    """Several trackers as one. Refuses undocumented metrics, also when it holds no tracker.

    Args:
        optional: names of those whose errors end nothing: such a tracker is turned off, which ``say`` is told once.
        rows: of metrics that stand in no table of ours.
    """

    def __init__(
        self, trackers: Sequence[Tracker] = (), named: Mapping[str, Tracker] | None = None,
        optional: Iterable[str] = (), say: Callable[[str], None] = print, rows: Iterable[names.Metric] = (),
    ) -> None:  # fmt: skip
        self._named = dict(named or {})
        self._trackers = (*trackers, *self._named.values())
        self._optional, self._say = set(optional), say
        self._added = {row.name for row in rows}

    @property
    def run_ids(self) -> dict[str, str]:
        """Run ids of the trackers that have one (:class:`embodied.protocols.Tracker`)."""
        ids = {name: getattr(tracker, "run_id", None) for name, tracker in self._named.items()}
        return {name: run_id for name, run_id in ids.items() if run_id is not None}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics. Raises ValueError for a name without a row."""
        names.check(metrics, self._added)
        for tracker in self._trackers:
            with self._spared(tracker):
                tracker.log(step, metrics)

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Hand a table to the trackers that take tables."""
        for tracker in self._trackers:
            if isinstance(tracker, TakesTables):
                with self._spared(tracker):
                    tracker.table(step, name, columns, rows)

    def video(self, step: int, name: str, file: Path) -> None:
        """Hand a video to the trackers that take videos."""
        for tracker in self._trackers:
            if isinstance(tracker, TakesVideos):
                with self._spared(tracker):
                    tracker.video(step, name, file)

    @property
    def services(self) -> dict[str, Service]:
        """The tracking services among the trackers, by name."""
        return {name: one for name, one in self._named.items() if isinstance(one, Service) and one in self._trackers}

    def finish(self, patience: Callable[[float], bool]) -> None:
        """Wait for the services to finish, while ``patience`` of the seconds waited for all of them is True."""
        for service in self.services.values():
            service.end()
        began = time.monotonic()
        for service in self.services.values():
            service.close(lambda _: patience(time.monotonic() - began))

    def kill(self) -> None:
        """Kills the clients of tracking services at once."""
        for service in self.services.values():
            service.kill()

    def close(self) -> None:
        """Close all trackers, even if one of them raises."""
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(self._close, tracker)

    def _close(self, tracker: Tracker) -> None:
        with self._spared(tracker):
            tracker.close()

    @contextmanager
    def _spared(self, tracker: Tracker) -> Iterator[None]:
        """Turn ``tracker`` off if the block raises and it is an optional one."""
        name = next((name for name, one in self._named.items() if one is tracker), None)
        try:
            yield
        except Exception as error:
            if name not in self._optional:
                raise
            self._trackers = tuple(one for one in self._trackers if one is not tracker)
            self._say(_failed(str(name), error))


def _failed(name: str, error: Exception) -> str:
    return f"tracker {name} failed and is off; the run goes on: {type(error).__name__}: {error}"


ROWS = "own_metrics.json"
"""File of a run's folder: meaning and unit of metrics that terms of the user's measure, by name."""
Maker = Callable[[Path, int | None, str | None], Tracker]  # run folder, step of the resumed checkpoint, run_id
_KEY = "runner.logger.logger_backends"
_BACKENDS: dict[str, Maker] = {
    "jsonl": lambda folder, resume_step, run_id: JsonlTracker(folder / "metrics.jsonl", resume_step),
    "tensorboard": lambda folder, resume_step, run_id: TensorBoardTracker(folder / "tensorboard", resume_step),
}


def make_trackers(
    backends: Iterable[str], folder: Path, resume_step: int | None = None, run_ids: Mapping[str, str] | None = None,
    about: About | None = None, say: Callable[[str], None] = print, rows: Sequence[names.Metric] = (),
) -> Trackers:  # fmt: skip
    """Make the trackers called ``backends`` (``runner.logger.logger_backends``). They write below ``folder``.

    Args:
        backends: "jsonl", "tensorboard", one of :data:`embodied.observe.trackers.services.SERVICES`, or the dotted path
        of a
            :data:`Maker`, e.g. a user's class.
        resume_step: after which the run goes on; None = it is not one that may be resumed.
        run_ids: :attr:`Trackers.run_ids` of the resumed run.
        about: what services are told of the run.
        say: is told of a service or a user's tracker that fails.
        rows: of metrics of the user's; :data:`ROWS` keeps them for reports.

    Raises:
        UnknownNameError: a backend is unknown; nothing was opened.
        ConfigError: a dotted path cannot be imported; nothing was opened.
        RunFolderError: a file cannot be written.
    """
    about, resumes = about or About(), resume_step is not None
    named: dict[str, Tracker] = {}
    for name, make in {name: _maker(name) for name in backends}.items():
        run_id = (run_ids or {}).get(name)
        try:
            if make is None:
                named[name] = Service(name, folder, resumes, run_id, about, say)
            else:
                named[name] = make(folder, resume_step, run_id)
        except Exception as error:
            if name in _BACKENDS:
                raise
            say(_failed(name, error))
    if rows:
        _write_rows(folder, rows)
    return Trackers(named=named, optional=set(named) - set(_BACKENDS), say=say, rows=rows)


def _write_rows(folder: Path, rows: Sequence[names.Metric]) -> None:
    text = json.dumps({row.name: row.text for row in rows}, indent=1, ensure_ascii=False)
    with _writing(folder / ROWS):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ROWS, text + "\n")


def _maker(name: str) -> Maker | None:
    """What makes a tracker; nothing for a service."""
    if name in SERVICES:
        return None
    if name in _BACKENDS:
        return _BACKENDS[name]
    if "." in name:
        return load_target(name, _KEY)
    raise unknown_name("logger backend", name, (*_BACKENDS, *SERVICES), _KEY)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot write the metrics to {path}: {error}",
            "free space on that disk, or set runner.logger.log_path to a folder that you may write to",
        ) from error


def _number(value: float) -> int | float | None:
    """Python, numpy or torch number as JSON can hold it."""
    if isinstance(value, int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _step_of(line: str) -> float:
    """Step of a line. A damaged line counts as beyond all steps, so that it is dropped."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.nan
