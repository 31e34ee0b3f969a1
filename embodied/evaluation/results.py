"""Finds evaluations that were written before by their names, and reads their files.

runs/NAME                       its newest evaluation, runs/NAME/eval/000020.json
runs/NAME@10                    runs/NAME/eval/000010.json
runs/NAME/checkpoints/000010    the same; else the newest of these weights in a run beside it (``embodied eval``)
runs/NAME/eval/000010.json      the file itself

``runs/NAME/eval/000000-sampled.json`` is named by its file alone. It is the sampled one of two evaluations from the
same starts (:mod:`embodied.run.evaluation.greedy_and_sampled`), and ``000000.json`` the greedy one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from embodied.errors import EvaluationError, did_you_mean
from embodied.lib.files import UNREADABLE, read_json
from embodied.lib.weights_folder import META_FILE, identity
from embodied.observe.reach import actions
from embodied.schema import EnvEvalConfig

AGAIN = "evaluate again (python -m embodied.eval), or name another evaluation"

SAMPLED = "-sampled"
"""What the name of a sampled evaluation's file ends with where a greedy one lies beside it."""

MEANS = ("renderer", "max_cached_simulators", "vectorization")
"""Arguments of envs that are no part of a protocol: the simulator's facts say what was used, or no number depends on
them."""

Place = tuple[int, int, int]
"""Number of the task, of its initial state, and seed, as in :class:`embodied.types.Start`."""


@dataclass(frozen=True)
class Lengths:
    """Mean episode lengths of a task in control steps; None where the file does not say it, or for texts."""

    steps_mean: float | None  # mean length of an episode
    steps_to_success: float | None  # median steps until the first success, over the episodes that have one
    not_run: int  # episodes that were planned and could not be run


@dataclass(frozen=True)
class WrittenEvaluation:
    """An evaluation as it was read from its file: conditions, tasks, outcomes."""

    name: str  # name or path, as the user gave it
    file: Path
    conditions: Mapping[str, Any]  # empty if the file does not have them
    env: Mapping[str, Any] | None  # ``_target_`` and arguments; None if that is not known
    env_is_recorded: bool  # True: the file has ``env``; False: it is from the run's configuration, which may be newer
    tasks: Mapping[int, str]  # instructions
    outcomes: Mapping[Place, Sequence[bool]]  # success of each episode that was run
    not_run: int  # episodes that were planned and could not be run
    initial_states: Sequence[int]  # how many fixed ones each task has, if the file says it
    protocol: Mapping[str, Any]  # name, hash and keys; empty if the file does not have them
    lengths: Mapping[int, Lengths]  # lengths by the number of the task; −1: over all tasks
    why_not_run: str  # the error of the first episode that could not be run; empty if the file does not say it
    task_names: Sequence[str]  # names of all of the env's tasks by number, of envs whose tasks have kinds; else empty
    task_kinds: Sequence[str]  # in the same order
    task_strengths: Sequence[str]  # a text is empty where it is not known
    chosen_by: Sequence[str] = ()  # arguments of the env that choose among its tasks and change none

    @property
    def drawn(self) -> str:
        """How its actions were drawn: ``sampled`` or ``greedy``; empty if the file does not say it."""
        sampled = self.conditions.get("sampling", {}).get("do_sample")
        return "" if sampled is None else actions(bool(sampled))

    def called(self, name: str) -> str:
        """Returns a name for it with how its actions were drawn: ``before, greedy``."""
        return ", ".join(filter(None, [name, self.drawn]))

    @property
    def starts_without_seed(self) -> bool:
        """Returns whether a start does not depend on its seed: a problem in text."""
        return is_of_texts(self.conditions)


def find(name: str) -> Path:
    """Finds the file of an evaluation by a run's folder (its newest), ``RUN@ITERATIONS``, a file or a checkpoint.

    Raises:
        EvaluationError: there is none.
    """
    path = Path(name)
    run, at, step = name.rpartition("@")
    if path.is_file():
        return path
    if path.is_dir():
        return _in_folder(path)
    if at and Path(run).is_dir():
        if not re.fullmatch(r"\d+", step):
            raise EvaluationError(f"{name}: '{step}' after @ is no number of iterations", f"write {run}@10")
        return _after(Path(run), int(step), name)
    given = run if at else name
    there = Path("runs", given)
    if there.is_dir():
        raise EvaluationError(f"there is no {given} here", f"write runs/{name}")
    beside = [str(one) for folder in (Path(given).parent, there.parent) for one in folder.glob("*") if one.is_dir()]
    raise EvaluationError(
        f"there is no {given}.{did_you_mean(given, beside)}",
        "name a run's folder (runs/NAME), one of its evaluations (runs/NAME@10, runs/NAME/eval/000010.json), or a "
        "checkpoint that its run has evaluated (runs/NAME/checkpoints/000010)",
    )


def is_checkpoint(path: Path) -> bool:
    """Returns whether a folder is a checkpoint of a run: it lies in ``checkpoints``, and has no configuration."""
    return path.absolute().parent.name == "checkpoints" and not (path / "config.yaml").exists()


def _in_folder(path: Path) -> Path:
    if is_checkpoint(path):
        if not re.fullmatch(r"\d+", path.name):
            raise EvaluationError(f"{path} was saved within an iteration, where no run evaluates", _of_checkpoint(path))
        return _of_weights(path) or _after(path.parent.parent, int(path.name), str(path), _of_checkpoint(path))
    files = evaluation_files(path)
    if not files:
        raise EvaluationError(
            f"{path} has no evaluation (eval/000000.json)",
            "name the folder of a run (runs/NAME), and evaluate it first: embodied eval "
            "CHECKPOINT, or runner.val_check_interval of a training",
        )
    return files[-1]


def _of_weights(path: Path) -> Path | None:
    """Finds the evaluation of a checkpoint that its run has not evaluated itself: the newest by ``embodied.eval`` in a
    run beside it, of the same weights. None if its run has, or there is none."""
    run = path.absolute().parent.parent
    if int(path.name) in {int(file.stem) for file in evaluation_files(run)} or not (path / META_FILE).is_file():
        return None
    weights, same = identity(read_json(path / META_FILE)), list[Path]()
    for file in run.parent.glob("*/eval/*.json"):
        with suppress(*UNREADABLE, OSError):
            of = json.loads(file.read_text(encoding="utf-8")).get("checkpoint") or {}
            is_same = of["identity"] == weights if weights else Path(of["path"]).absolute() == path.absolute()
            same += [file] if is_same and file.parent.parent != run else []
    return max(same, key=lambda file: file.stat().st_mtime, default=None)


def evaluation_files(run: Path) -> list[Path]:
    """Lists the files of a run's evaluations, the newest last. ``run`` may be its ``eval`` folder as well."""
    files = [*(run / "eval").glob("*.json"), *(run.glob("*.json") if run.absolute().name == "eval" else [])]
    return sorted((one for one in files if re.fullmatch(r"\d{1,15}", one.stem)), key=lambda one: int(one.stem))


def _of_checkpoint(path: Path) -> str:
    return f"evaluate it: embodied eval {path}"


def _after(run: Path, iteration: int, name: str, remedy: str | None = None) -> Path:
    files = {int(one.stem): one for one in evaluation_files(run)}
    if iteration in files:
        return files[iteration]
    there = ", ".join(map(str, files)) or "none"
    fix = f"name one of them, e.g. {run}@{max(files)}" if files else AGAIN
    raise EvaluationError(
        f"{name}: {run} has no evaluation after {iteration} iterations; it has those after: {there}", remedy or fix
    )


def read(name: str) -> WrittenEvaluation:
    """Reads the evaluation that ``name`` names, as :func:`find` finds it.

    Raises:
        EvaluationError: it is not there, or its file is damaged, empty, or no evaluation.
    """
    file = find(name)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{file} cannot be read: {error}", AGAIN) from error
    if not text.strip():
        raise EvaluationError(f"{file} is empty", AGAIN)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{file} is damaged or half written: {error}", AGAIN) from error
    if not isinstance(found, dict) or "episodes" not in found or "tasks" not in found:
        what = "holds what perturbations cost" if isinstance(found, dict) and "unperturbed" in found else "is none"
        raise EvaluationError(
            f"{file} {what}: an evaluation's file has 'tasks' and 'episodes' with the start of each",
            "name a file like runs/NAME/eval/000000.json; if an old version wrote this one, evaluate again",
        )
    try:
        return _evaluation(name, file, found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EvaluationError(f"{file} is damaged or of an old version: {said}", AGAIN) from error


def _evaluation(name: str, file: Path, found: Mapping[str, Any]) -> WrittenEvaluation:
    tasks = {_whole(row["task_id"]): str(row["instruction"]) for row in found["tasks"] if row["task_id"] != -1}
    outcomes: dict[Place, list[bool]] = {}
    not_run, why = 0, ""
    for number, episode in enumerate(found["episodes"]):
        start, success = episode["start"], episode["success"]
        place = (_whole(start["task_id"]), _whole(start["init_state_id"]), _whole(start["seed"]))
        if success is None:  # it was planned, and could not be run
            not_run += 1
            why = why or str(episode.get("not_run") or "")
            continue
        if not isinstance(success, bool):
            raise ValueError(f"'success' of episode {number} is {success!r}, expected true or false")
        if place[0] not in tasks:
            raise ValueError(f"episode {number} is of task {place[0]}, which is not among 'tasks'")
        outcomes.setdefault(place, []).append(success)
    conditions = dict(found.get("conditions", {}))
    conditions |= {"sampling": dict(conditions["sampling"])} if "sampling" in conditions else {}
    answers = found.get("answers")
    if answers is not None:
        conditions["answers"] = True
        not_run += max(0, _whole(answers["total"]) - _whole(answers["problems"]))
    elif "episodes_per_task" in conditions:
        planned = _planned(conditions, len(tasks))
        not_run = max(not_run, planned - len(found["episodes"]) + not_run)
    if not outcomes:
        raise ValueError("it has no episode that was run")
    states = [_whole(count) for count in conditions.get("init_states_per_task", ())]
    env = found.get("env")
    known = dict(env) if env is not None else _configured(file)
    protocol = dict(found.get("protocol", {}))
    keys = dict(protocol.get("keys", {}))
    if not all(isinstance(keys.get(part, {}), Mapping) for part in ("pictures", "simulator")):
        raise ValueError("'keys' of its protocol are none")
    if protocol:
        protocol["keys"] = keys
    texts = is_of_texts(conditions)
    lengths = {row["task_id"]: _lengths(row, texts) for row in found["tasks"]}
    names, kinds, strengths = (_texts(found, key, tasks) for key in ("task_names", "task_kinds", "task_strengths"))
    return WrittenEvaluation(
        name, file, conditions, known, env is not None, tasks, outcomes, not_run, states, protocol, lengths, why,
        names, kinds, strengths, tuple(_texts(found, "tasks_chosen_by", ())),
    )  # fmt: skip


def _texts(found: Mapping[str, Any], key: str, tasks: Collection[int]) -> list[str]:
    """Returns texts, one for each of the env's tasks if ``tasks`` are their numbers; none if the file has none."""
    texts = list(found.get(key, ()))
    if isinstance(found.get(key), str) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"'{key}' is no list of texts")
    if texts and max(tasks, default=-1) >= len(texts):
        raise ValueError(f"'{key}' has {len(texts)} texts, and 'tasks' has task {max(tasks)}")
    return texts


def is_of_texts(conditions: Mapping[str, Any]) -> bool:
    """Returns whether the conditions are those of problems in text."""
    return "answers" in conditions or "max_new_tokens" in conditions.get("sampling", {})


def _planned(conditions: Mapping[str, Any], tasks: int) -> int:
    """Counts the episodes that an evaluation plans. A greedy one of texts runs each problem of a task once at most."""
    each, states = _whole(conditions["episodes_per_task"]), list(conditions.get("init_states_per_task", ()))
    once = is_of_texts(conditions) and conditions.get("sampling", {}).get("do_sample") is False
    counts = [min(each, _whole(count)) if once and count > 1 else each for count in states]
    return (sum(counts) if len(counts) == tasks else each * tasks) * _whole(conditions.get("group_size", 1))


def _lengths(row: Mapping[str, Any], texts: bool) -> Lengths:
    mean, until = (None if texts or row.get(name) is None else float(row[name]) for name in _STEPS)
    return Lengths(mean, until, _whole(row.get("not_run", 0)))


_STEPS = ("steps_mean", "steps_to_success")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"got {value!r} where a whole number belongs")
    return value


def _configured(file: Path) -> dict[str, Any] | None:
    """Returns the env of the run's configuration as it is now; None if there is no such file."""
    try:
        found = yaml.safe_load((file.absolute().parent.parent / "config.yaml").read_text(encoding="utf-8"))
        side = found["env"]["eval"]
        return {key: value for key, value in side.items() if key not in EnvEvalConfig.model_fields}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None


def choosing(*sides: WrittenEvaluation) -> set[str]:
    """Returns the conditions that only say which tasks are run; none where a file does not name its tasks."""
    if not all(side.task_names for side in sides):
        return set()
    keys = set.intersection(*(set(side.chosen_by) for side in sides))
    return {f"env.{key}" for key in keys} | ({"tasks", "task_names"} if keys else set())
