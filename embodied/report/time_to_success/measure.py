"""Reads from runs' folders what trainings took until their evaluations succeeded. What a run has not recorded is None.

Wall clock and CPU seconds are those of ``time/run_s`` and ``time/run_cpu_s``, which count all launches. Older runs have
neither: their wall clock is the sum of their iterations, a lower bound. Control steps and episodes are those that the
training learnt from, so an iteration that an interruption has repeated counts once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError, EvaluationError
from embodied.evaluation.compare import rates
from embodied.evaluation.comparison_text import protocol_of
from embodied.evaluation.results import WrittenEvaluation
from embodied.lib.files import UNREADABLE, read_json
from embodied.lib.weights_folder import META_FILE, identity
from embodied.report.reading import Run
from embodied.report.series import alike, groups
from embodied.report.time_to_success.rows import (
    Evaluation,
    PolicyRow,
    Protocol,
    Row,
    Task,
    Training,
    until,
)
from embodied.run.folder.costs import FILE as COSTS

MADE = (
    "give the training evaluations (runner.val_check_interval=N), or evaluate its checkpoints with embodied eval and "
)
MADE += "name that folder too: embodied report --time-to-success RUN EVAL"


Made = tuple[int, WrittenEvaluation]
"""Iterations before an evaluation, and the evaluation."""

BESIDE, APART = ("env.eval",), ("runner.max_epochs",)
"""Evaluations are told apart by their protocols. A shorter training has had less time to succeed."""


@dataclass
class Measured:
    """A training with its evaluations."""

    run: Run
    made: list[Made]  # all that were named, of any protocol
    costs: Mapping[str, Any]  # content of costs.json; empty if an older version made the run
    evaluations: dict[int, WrittenEvaluation] = field(default_factory=dict)  # those of the protocol that counts

    @property
    def made_under(self) -> WrittenEvaluation:
        """An evaluation that counts; all of them have its conditions."""
        return next(iter(self.evaluations.values()))


def rows_of(runs: Sequence[Run], protocol: str | None = None) -> list[Row]:
    """Makes a row of each configuration. Runs of ``embodied.eval`` are evaluations of the trainings beside them.

    Args:
        protocol: name or hash of the one whose evaluations count; None = there is only one in each training.

    Raises:
        EvaluationError: a training has no evaluation, several protocols, or two evaluations at once; or is there twice;
            or an evaluation is of no training named.
    """
    trainings = [run for run in runs if not _is_evaluation(run)]
    measured = {id(run): Measured(run, [*run.evaluations.items()], _costs(run.folder)) for run in trainings}
    for run in runs:
        if _is_evaluation(run):
            _attach(run, [*measured.values()])
    for one in measured.values():
        _choose(one, protocol)
    for first, second in combinations(measured.values(), 2):
        _refuse_twice(first, second)
    found = []
    for group in groups(trainings, BESIDE, APART):
        same: dict[str, list[Measured]] = {}
        for run in group.runs:
            one = measured[id(run)]
            same.setdefault(_conditions(one.made_under), []).append(one)
        found += [_row(own) for own in same.values()]
    return found


def _refuse_twice(first: Measured, second: Measured) -> None:
    seed, same = first.run.setting("runner.seed"), [_conditions(one.made_under) for one in (first, second)]
    if seed != second.run.setting("runner.seed") or same[0] != same[1]:
        return
    if alike(first.run, second.run, BESIDE, APART):
        raise EvaluationError(
            f"{first.run.name} and {second.run.name} are trainings of one configuration with one seed, {seed}",
            f"leave one of them out, or train again with another seed (runner.seed={_next(seed)}) and name that run",
        )


def _next(seed: Any) -> int:
    return seed + 1 if isinstance(seed, int) else 1


def _is_evaluation(run: Run) -> bool:
    return run.evaluation_alone or run.setting("runner.only_eval") is True


def _costs(folder: Path) -> Mapping[str, Any]:
    with suppress(OSError, EmbodiedError):
        found = read_json(folder / COSTS)
        if isinstance(found.get("launches"), dict) and isinstance(found.get("policy"), dict):
            return found
    return {}


# -- evaluations -----------------------------------------------------------------------------------------------------


def _attach(run: Run, trainings: Sequence[Measured]) -> None:
    """Adds an evaluation of a checkpoint to the training that has this checkpoint."""
    for evaluation in run.evaluations.values():
        of: dict[str, Any] = {}
        with suppress(OSError, *UNREADABLE):
            of = json.loads(evaluation.file.read_text(encoding="utf-8")).get("checkpoint") or {}
        owners = [one for one in trainings if (place := _place(of, one.run)) is not None]
        if not owners:
            raise EvaluationError(
                f"{run.name} evaluates {of.get('path') or 'no checkpoint'}, no checkpoint of the trainings named",
                "name the training's folder too: embodied report --time-to-success RUN EVAL",
            )
        place = _place(of, owners[0].run)
        assert place is not None
        owners[0].made.append((place, evaluation))


def _place(of: Mapping[str, Any], run: Run) -> int | None:
    """Returns the iterations after which a run saved the checkpoint that an evaluation names; None if it has not."""
    for folder in sorted((run.folder / "checkpoints").glob("*")):
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, EmbodiedError, *UNREADABLE):
            own = identity(read_json(folder / META_FILE))
            if own is not None and own == of.get("identity"):
                return int(folder.name)
    return None


def _conditions(evaluation: WrittenEvaluation) -> str:
    """Returns the protocol of an evaluation as a text that is the same for all seeds of a run."""
    keys = {key: value for key, value in evaluation.protocol.get("keys", {}).items() if key != "seed"}
    return json.dumps([evaluation.protocol.get("name"), keys], sort_keys=True, default=str)


def _choose(one: Measured, protocol: str | None) -> None:
    """Keeps the evaluations of one protocol."""
    name = one.run.name
    if not one.made:
        raise EvaluationError(f"{name} has no evaluation, so nothing says when it succeeded", MADE)
    made = sorted(one.made, key=lambda found: found[0])
    wanted = [of for of in made if protocol in (None, of[1].protocol.get("name"), of[1].protocol.get("hash"))]
    several = _by_protocol(wanted)
    there = "; ".join(
        f"{protocol_of(own[0][1])} after {', '.join(str(at) for at, _ in own)} iterations"
        for own in _by_protocol(wanted or made)
    )
    if not several:
        raise EvaluationError(f"{name} has no evaluation of protocol {protocol}; it has: {there}", "name one of these")
    if len(several) > 1:
        example = [found.protocol["hash"] for _, found in wanted if "hash" in found.protocol][-1]
        raise EvaluationError(
            f"{name} was evaluated under several protocols, whose times say different things: {there}",
            f"choose one by name or hash, e.g. --protocol {example}",
        )
    one.evaluations = _once(name, several[0])


def _by_protocol(made: Sequence[Made]) -> list[list[Made]]:
    found: dict[str, list[Made]] = {}
    for iteration, evaluation in made:
        found.setdefault(_conditions(evaluation), []).append((iteration, evaluation))
    return [*found.values()]


def _once(name: str, made: Sequence[Made]) -> dict[int, WrittenEvaluation]:
    """Returns evaluations of one protocol by iteration. Which of two counts would be a choice by their outcomes."""
    found: dict[int, WrittenEvaluation] = {}
    for iteration, evaluation in made:
        if iteration in found:
            raise EvaluationError(
                f"{name} was evaluated twice under protocol {protocol_of(evaluation)} after {iteration} iterations: "
                f"{found[iteration].file} and {evaluation.file}",
                f"name one of the two alone: leave {evaluation.file.absolute().parent.parent} out",
            )
        found[iteration] = evaluation
    return found


# -- costs -----------------------------------------------------------------------------------------------------------


def _training(one: Measured) -> Training:
    launches = sum(1 + int(start.get("again", 0)) for start in one.run.starts) or None
    seed = one.run.setting("runner.seed")
    return Training(
        seed=seed if isinstance(seed, int) else 0, launches=launches, wall_is_least=not _is_whole(one),
        seen=max([one.run.iterations, *one.evaluations]) if one.run.state else None,
        evaluations=[_evaluation(one, iteration, found) for iteration, found in sorted(one.evaluations.items())],
    )  # fmt: skip


def _is_whole(one: Measured) -> bool:
    """Returns whether the seconds of a run count all of its launches, but for what its last one did at its end."""
    if not any("time/run_s" in row for row in one.run.metrics.values()):
        return False
    *earlier, _ = sorted(one.costs.get("launches", {}).items(), key=lambda item: int(item[0])) or [None]
    return all(isinstance(row, Mapping) and row.get("whole") is True for _, row in earlier)


def _evaluation(one: Measured, iteration: int, found: WrittenEvaluation) -> Evaluation:
    rate, row = rates(found)[-1][1], one.run.metrics.get(iteration, {})
    steps, episodes = _collected(one.run, iteration)
    return Evaluation(
        iteration=iteration, successes=rate.successes, episodes=rate.episodes, starts=rate.starts,
        rate=rate.rate, low=rate.low, high=rate.high,
        wall_s=_rounded(row.get("time/run_s", _of_iterations(one.run, iteration))),
        cpu_s=_rounded(row.get("time/run_cpu_s")), env_steps=steps, training_episodes=episodes,
    )  # fmt: skip


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _of_iterations(run: Run, iteration: int) -> float | None:
    """Sums the wall time of a run's iterations, as older versions have recorded it; None if that of one is missing."""
    seconds = [run.metrics.get(step, {}).get("time/iteration_s") for step in range(1, iteration + 1)]
    known = [one for one in seconds if one is not None]
    return sum(known) if known and len(known) == len(seconds) else None


def _collected(run: Run, iteration: int) -> tuple[int | None, int | None]:
    """Sums control steps and episodes up to an iteration, with those that dynamic sampling dropped."""
    if run.setting("runner.task_type") == "sft":
        return 0, 0
    rows = [run.metrics.get(step, {}) for step in range(1, iteration + 1)]
    if not all({"rollout/env_steps", "rollout/episodes"} <= row.keys() for row in rows):
        return None, None
    size = run.setting("algorithm.group_size") or 1
    beside = sum(row.get("rollout/dropped_groups", 0) * size + row.get("rollout/greedy_episodes", 0) for row in rows)
    return (
        int(sum(row["rollout/env_steps"] for row in rows)),
        int(sum(row["rollout/episodes"] for row in rows) + beside),
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def _row(own: Sequence[Measured]) -> Row:
    first = own[0]
    evaluation = first.made_under
    trainings = sorted((_training(one) for one in own), key=lambda training: training.seed)
    hashes = dict.fromkeys(
        str(found.protocol["hash"]) for one in own for found in one.evaluations.values() if found.protocol
    )
    starts = [start for one in own for start in one.run.starts]
    return Row(
        name=", ".join(one.run.folder.absolute().name for one in own),
        task=Task(env=_env(first.run), instructions=[*evaluation.tasks.values()]),
        protocol=Protocol(name=evaluation.protocol.get("name"), hashes=[*hashes]),
        policy=_policy(first), algorithm=_algorithm(first.run), hardware=_hardware(own),
        software=", ".join(dict.fromkeys(_software(start) for start in starts)) or "not known",
        date=max((str(start.get("last", ""))[:10] for start in starts), default="") or "0000-00-00",
        trainings=trainings, until=until(trainings),
    )  # fmt: skip


def _env(run: Run) -> str:
    name = str(run.setting("env.eval._target_") or "not known").rpartition(".")[2]
    which = run.setting("env.eval.task_suite_name") or run.setting("env.eval.init_params.id")
    return f"{name} {which}" if isinstance(which, str) else name


def _policy(one: Measured) -> PolicyRow:
    model, known = one.run.setting("actor.model") or {}, one.costs.get("policy", {})
    family = str(model.get("_target_", "not known")).split(".")[-2:][0]
    lora = f"LoRA {model.get('lora_rank')}" if model.get("is_lora") else ""
    sizes = [known.get(name) for name in ("parameters", "trained")]
    return PolicyRow(
        name=" ".join(filter(None, [family, str(model.get("layout") or ""), lora])), parameters=sizes[0],
        trained=_trained(one.run) if sizes[1] is None else sizes[1], begins_from=_begins_from(one.run),
    )  # fmt: skip


def _trained(run: Run) -> int | None:
    """Counts the trained parameters in a run's newest checkpoint; None without one."""
    for folder in sorted((run.folder / "checkpoints").glob("*"), reverse=True):
        with suppress(OSError, EmbodiedError, *UNREADABLE):
            return sum(math.prod(shape) for shape in read_json(folder / META_FILE)["parameters"].values())
    return None


def _begins_from(run: Run) -> str:
    checkpoint, model = run.setting("runner.ckpt_path"), run.setting("actor.model.model_path")
    if isinstance(checkpoint, str):
        path = Path(checkpoint)
        return (
            f"run {path.parent.parent.name} after {int(path.name)} iterations" if path.name.isdecimal() else path.name
        )
    return Path(model).name if isinstance(model, str) else "random weights"


def _algorithm(run: Run) -> str:
    if run.setting("runner.task_type") == "sft":
        return "supervised, from demonstrations"
    names = ("adv_type", "loss_type", "group_size", "rollout_epoch", "update_epoch", "max_staleness")
    values = {name: run.setting(f"algorithm.{name}") for name in names}
    lr = run.setting("actor.optim.lr")
    return ", ".join(f"{name} {value}" for name, value in {**values, "lr": lr}.items() if value not in (None, 0))


def _hardware(own: Sequence[Measured]) -> str | None:
    found: dict[str, None] = {}
    for one in own:
        rows = [*one.costs.get("launches", {}).values()]
        if not rows:
            return None
        for row in rows:
            count = row.get("processes", 1)
            found[(f"{count} processes, the first on " if count > 1 else "") + str(row.get("hardware"))] = None
    return "; ".join(found)


def _software(start: Mapping[str, Any]) -> str:
    versions = start.get("versions", {})
    commit = str(versions.get("commit of the checkout", ""))
    dirty = "-dirty" if commit.endswith("-dirty") else ""
    return f"embodied {versions.get('embodied', 'not known')}" + (f" ({commit[:8]}{dirty})" if commit else "")
