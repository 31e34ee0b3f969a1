"""Reads what runs and evaluations have left on the disk. What is missing or damaged becomes a line in ``problems``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from embodied.errors import EvaluationError
from embodied.evaluation import kinds, results
from embodied.evaluation.kinds import KindSuccess
from embodied.evaluation.results import WrittenEvaluation
from embodied.lib import hidden
from embodied.observe.reach import Reach
from embodied.run.folder.folder import FIRST, LOCK, is_open
from embodied.run.folder.launches import FILE as STARTS

MOST_BYTES = 1 << 30
"""Larger files are not read: no run writes them."""

MOST = 1e300
"""Larger numbers count as not finite: their sums are not."""

MOST_STEP = 1 << 53
"""Iterations from here on are no numbers of a chart."""

SOLVED_AT = "steps_to_success"
"""Key of an evaluation's episode: control steps until its success."""

Row = Mapping[str, float]
"""Metric → value, of one step."""


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode of an evaluation that has a video, as a report shows it."""

    iteration: int
    task: str  # its instruction
    success: bool
    place: str  # its start, in words
    episode_return: float | None
    progress: float | None  # how far it got, 0..1
    steps: int | None
    video: str  # file name in the evaluation


@dataclass
class Run:
    """All that a report knows of a run, or of an evaluation alone."""

    name: str  # name on the command line
    folder: Path
    evaluation_alone: bool = False
    config: dict[str, Any] | None = None
    starts: list[dict[str, Any]] = field(default_factory=list)  # how it was started; equal ones in a row are one
    metrics: dict[int, Row] = field(default_factory=dict)  # step → row
    evaluations: dict[int, WrittenEvaluation] = field(default_factory=dict)  # iteration → what its file holds
    sampled: WrittenEvaluation | None = None  # counterpart of the newest evaluation, from the same starts
    rates: dict[int, dict[str, float]] = field(default_factory=dict)  # iteration → pass@k and maj@k
    robustness: list[dict[str, Any]] = field(default_factory=list)  # tables of the newest evaluation
    kinds: list[KindSuccess] = field(default_factory=list)  # of the newest evaluation
    episodes: int = 0  # episodes of these evaluations
    recorded: list[RecordedEpisode] = field(default_factory=list)
    fastest: float = math.inf  # control steps of the fastest success of these evaluations
    running: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """How far the run is, if it goes on or ended early; empty for one that is complete."""
        planned = self.setting("runner.max_epochs")
        if self.setting("runner.only_eval") is True or not isinstance(planned, int):
            return "running" if self.running else ""
        if self.running:
            done = f"iteration {self.iterations} of {planned} done"
            return f"running, {done if self.iterations else f'in iteration 1 of {planned}'}"
        if self.iterations >= planned or self.evaluation_alone:
            return ""
        done = f"stopped after {self.iterations} of {planned} iterations"
        return f"{done}; the same command goes on from its last checkpoint"

    @property
    def only_evaluates(self) -> bool:
        """Whether nothing is trained in it."""
        return self.evaluation_alone or self.setting("runner.only_eval") is True

    @property
    def last(self) -> WrittenEvaluation | None:
        """The run's newest evaluation."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def before(self) -> WrittenEvaluation | None:
        """The run's first evaluation, if a later one is there too."""
        return self.evaluations[min(self.evaluations)] if len(self.evaluations) > 1 else None

    @property
    def iterations(self) -> int:
        """Number of iterations that were logged."""
        return max(self.metrics, default=0)

    @property
    def reach(self) -> Reach:
        """Whether the success of training episodes says anything."""
        limit = self.setting("env.train.max_episode_steps")
        found = Reach(limit if isinstance(limit, int) else math.inf, self.fastest)
        for row in self.metrics.values():
            found.take(row)
        return found

    @property
    def of_texts(self) -> bool:
        """Whether its episodes are answers in text."""
        return self.setting("runner.task_type") == "math" or any(
            "rollout/tokens" in row for row in self.metrics.values()
        )

    def setting(self, key: str) -> Any:
        """Returns the value of a dotted key of the configuration; None if it is not there."""
        found: Any = self.config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


def read(name: str, ended: bool = False) -> Run:
    """Reads, for a report, the run or the evaluation that ``name`` names, as :mod:`embodied.evaluation.results` does;
    the folder of a run is the whole run.

    Args:
        ended: the run has ended although it holds its lock: it waits for this report.

    Raises:
        EvaluationError: there is no such folder or file.
    """
    path = Path(name)
    if path.is_dir() and not results.is_checkpoint(path):
        found = Run(name, path)
        files = results.evaluation_files(path)
    else:
        file = results.find(name)
        found, files = Run(name, file.absolute().parent.parent, evaluation_alone=True), [file]
    found.config = _config(found)
    found.starts = _starts(found)
    if not found.evaluation_alone:
        found.running = not ended and is_open(found.folder / LOCK)
        found.metrics = _metrics(found)
    for file in files:
        _add_evaluation(found, file)
    if not found.evaluation_alone and files:
        _add_sampled(found, files[-1].with_stem(files[-1].stem + results.SAMPLED))
    _say_what_is_missing(found)
    return found


def _config(run: Run) -> dict[str, Any] | None:
    text = _text(run, run.folder / "config.yaml", "the configuration is not known")
    if text is None:
        return None
    try:
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        run.problems.append(f"config.yaml is damaged, so the configuration is not known: {_first_line(error)}")
        return None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        run.problems.append("config.yaml is damaged or half written, so the configuration is not known")
        return None
    return found


def _starts(run: Run) -> list[dict[str, Any]]:
    rows = _lines(run, STARTS, "command and versions are not known; older versions did not record them")
    found: list[dict[str, Any]] = []
    for row in rows:
        if not isinstance(row.get("command"), str):
            continue
        same = {"command": hidden.in_command(row["command"]), "processes": row.get("processes"),
                "versions": _texts(row.get("versions"))}  # fmt: skip
        time = str(row.get("time", ""))
        if found and same.items() <= found[-1].items():
            found[-1] |= {"again": found[-1]["again"] + 1, "last": time}
        else:
            found.append({"time": time, "again": 0, "last": time, **same})
    return found


def _texts(found: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _metrics(run: Run) -> dict[int, Row]:
    found: dict[int, Row] = {}
    rows = _lines(run, "metrics.jsonl", "there are no curves" + _other_tracker(run))
    for row in rows:
        step = row.get("step")
        if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < MOST_STEP:
            numbers = {name: number for name, value in row.items() if (number := _number(value)) is not None}
            numbers.pop("step", None)
            found[step] = numbers  # the later row counts where a step stands twice
    return dict(sorted(found.items()))


def _other_tracker(run: Run) -> str:
    backends = run.setting("runner.logger.logger_backends")
    if isinstance(backends, list) and "jsonl" not in backends:
        return ": runner.logger.logger_backends does not name jsonl"
    return ""


def _number(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < MOST else None


def _lines(run: Run, name: str, without: str) -> list[dict[str, Any]]:
    """Returns the objects in a file of JSON lines; of damaged lines only how many there are."""
    text = _text(run, run.folder / name, without)
    found, damaged = [], 0
    for line in (text or "").splitlines():
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            found.append(row)
        else:
            damaged += 1
    if damaged:
        run.problems.append(f"{name}: {damaged} of {damaged + len(found)} lines are damaged or half written, left out")
    return found


def _text(run: Run, path: Path, without: str) -> str | None:
    try:
        if path.stat().st_size > MOST_BYTES:
            run.problems.append(f"{path.name} has more than {MOST_BYTES:,} bytes and was not read: {without}")
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        run.problems.append(f"{path.name} is missing: {without}")
    except OSError as error:
        run.problems.append(f"{path.name} cannot be read ({error.strerror}): {without}")
    return None


# -- evaluations -----------------------------------------------------------------------------------------------------


def _read(run: Run, file: Path) -> tuple[WrittenEvaluation, dict[str, Any]] | None:
    """Returns an evaluation, and its file as it is. What is wrong with it becomes a line."""
    try:
        return results.read(str(file)), json.loads(file.read_text(encoding="utf-8"))
    except EvaluationError as error:
        run.problems.append(error.message)
    except (OSError, ValueError) as error:  # it was replaced between the two looks
        run.problems.append(f"{file} cannot be read: {_first_line(error)}")
    return None


def _add_sampled(run: Run, file: Path) -> None:
    if file.is_file() and (both := _read(run, file)):
        run.sampled, raw = both
        run.episodes += len(raw["episodes"])
        recorded = _recorded(run.sampled, raw["episodes"], max(run.evaluations, default=0))
        run.recorded += [replace(one, place=f"{one.place}, sampled") for one in recorded]


def _add_evaluation(run: Run, file: Path) -> None:
    if (both := _read(run, file)) is None:
        return
    found, raw = both
    iteration = int(file.stem) if file.stem.isdigit() else 0
    run.evaluations[iteration] = found
    run.episodes += len(raw["episodes"])
    run.recorded += _recorded(found, raw["episodes"], iteration)
    run.fastest = min([run.fastest, *(steps for one in raw["episodes"] if (steps := _number(one.get(SOLVED_AT))))])
    run.rates[iteration] = _rates(raw.get("rates"))
    run.kinds = kinds.read(raw.get("kinds"))
    rows = raw.get("robustness")
    run.robustness = [row for row in rows if _is_robustness(row)] if isinstance(rows, list) else []


def _recorded(
    found: WrittenEvaluation, episodes: Sequence[Mapping[str, Any]], iteration: int
) -> Iterator[RecordedEpisode]:
    for episode in episodes:
        video, success = episode.get("video"), episode["success"]
        if isinstance(video, str) and isinstance(success, bool):
            start = episode["start"]
            steps = _number(episode.get("steps"))
            yield RecordedEpisode(
                iteration, found.tasks[start["task_id"]], success,
                f"initial state {start['init_state_id']}, seed {start['seed']}",
                _number(episode.get("return")), _number(episode.get("progress")),
                None if steps is None else int(steps), video,
            )  # fmt: skip


def _rates(found: object) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    return {str(name): number for name, value in found.items() if (number := _number(value)) is not None}


_RATE = ("success_rate", "low", "high", "difference", "difference_low", "difference_high", "episodes", "successes")


def _is_robustness(row: object) -> bool:
    return (
        isinstance(row, dict)
        and all(_number(row.get(name)) is not None for name in _RATE)
        and all(isinstance(row.get(name), str) for name in ("kind", "strength"))
    )


# -- what is missing -------------------------------------------------------------------------------------------------


def _say_what_is_missing(run: Run) -> None:
    if run.evaluation_alone:
        return
    not_yet = run.running and run.setting("runner.val_check_interval") != -1
    if not run.evaluations and not not_yet:
        run.problems.append("there is no evaluation: no success by task, no videos (runner.val_check_interval)")
    if run.setting("runner.only_eval") is True or (run.running and not _other_tracker(run)):
        run.problems[:] = [line for line in run.problems if not line.startswith("metrics.jsonl is missing")]
    if (run.folder / FIRST).is_dir():
        run.problems.append(
            f"the supervised run that came first has a report of its own: python -m embodied.tools.report "
            f"{run.name}/{FIRST}"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
