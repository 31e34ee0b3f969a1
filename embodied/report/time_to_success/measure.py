"""Reads from runs' folders what trainings took until their evaluations succeeded. What a run has not recorded is None.

Wall clock and CPU seconds are those of ``time/run_s`` and ``time/run_cpu_s``, which count all launches. Older runs have
neither: their wall clock is the sum of their iterations, a lower bound. Control steps and episodes are those that the
training learnt from, so an iteration that an interruption has repeated counts once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError, EvaluationError
from embodied.evaluation.compare import rates
from embodied.evaluation.results import WrittenEvaluation
from embodied.lib.files import UNREADABLE, read_json
from embodied.lib.weights_folder import META_FILE
from embodied.report.reading import Run
from embodied.report.series import alike, groups
from embodied.report.time_to_success.evaluations import Measured, attach, choose, conditions
from embodied.report.time_to_success.rows import (
    HIDDEN,
    Evaluation,
    PolicyRow,
    Protocol,
    Row,
    Task,
    Training,
    until,
)
from embodied.run.folder.costs import FILE as COSTS
from embodied.run.folder.launches import count

BESIDE, APART = ("env.eval",), ("runner.max_epochs",)
"""Evaluations are told apart by their protocols. A shorter training has had less time to succeed."""


def rows_of(runs: Sequence[Run], protocol: str | None = None) -> list[Row]:
    """Makes a row of each configuration. Runs of ``embodied.eval`` are evaluations of the trainings beside them.

    Args:
        protocol: name or hash of the one whose evaluations count; None = there is only one in each training.

    Raises:
        EvaluationError: a training has no evaluation, several protocols, or two evaluations at once; or is there twice;
            or an evaluation is of no training named.
    """
    trainings = [run for run in runs if not run.only_evaluates]
    measured = {id(run): Measured(run, [*run.evaluations.items()], _costs(run.folder)) for run in trainings}
    for run in runs:
        if run.only_evaluates:
            attach(run, [*measured.values()])
    for one in measured.values():
        choose(one, protocol)
    for first, second in combinations(measured.values(), 2):
        _refuse_twice(first, second)
    found = []
    for group in groups(trainings, BESIDE, APART):
        same: dict[str, list[Measured]] = {}
        for run in group.runs:
            one = measured[id(run)]
            same.setdefault(conditions(one.made_under), []).append(one)
        found += [_row(own) for own in same.values()]
    return found


def _refuse_twice(first: Measured, second: Measured) -> None:
    seed, same = first.run.setting("runner.seed"), [conditions(one.made_under) for one in (first, second)]
    if seed != second.run.setting("runner.seed") or same[0] != same[1]:
        return
    if alike(first.run, second.run, BESIDE, APART):
        raise EvaluationError(
            f"{first.run.name} and {second.run.name} are trainings of one configuration with one seed, {seed}",
            f"leave one of them out, or train again with another seed (runner.seed={_next(seed)}) and name that run",
        )


def _next(seed: Any) -> int:
    return seed + 1 if isinstance(seed, int) else 1


def _costs(folder: Path) -> Mapping[str, Any]:
    with suppress(OSError, EmbodiedError):
        found = read_json(folder / COSTS)
        launches = found.get("launches")
        if isinstance(launches, dict) and isinstance(found.get("policy"), dict) and all(map(str.isdecimal, launches)):
            return found
    return {}


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
    rows = {int(number): row for number, row in one.costs.get("launches", {}).items()}
    last = max([count(one.run.folder), *rows])
    return all(isinstance(row := rows.get(at), Mapping) and row.get("whole") is True for at in range(1, last))


def _evaluation(one: Measured, iteration: int, found: WrittenEvaluation) -> Evaluation:
    rate, row = rates(found)[-1][1], one.run.metrics.get(iteration, {})
    steps, episodes = _collected(one.run, iteration)
    return Evaluation(
        iteration=iteration, successes=rate.successes, episodes=rate.episodes, starts=rate.starts,
        rate=rate.rate, low=rate.low, high=rate.high,
        wall_s=_rounded(_wall(one.run, iteration)),
        cpu_s=_rounded(row.get("time/run_cpu_s")), env_steps=steps, training_episodes=episodes,
    )  # fmt: skip


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _wall(run: Run, iteration: int) -> float | None:
    """Returns the seconds of all launches up to an iteration: as the run has summed them, and from there on, where a
    launch has left nothing, by its iterations. None if the time of one is missing."""
    summed = [step for step, row in run.metrics.items() if step <= iteration and "time/run_s" in row]
    last = max(summed, default=0)
    seconds = [run.metrics[last]["time/run_s"]] if summed else []
    more = [run.metrics.get(step, {}).get("time/iteration_s") for step in range(last + 1, iteration + 1)]
    seconds += [one for one in more if one is not None]
    return sum(seconds) if seconds and None not in more else None


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
        name=_line(", ".join(one.run.folder.absolute().name for one in own)),
        task=Task(env=_line(_env(first.run)), instructions=[_line(text) for text in evaluation.tasks.values()]),
        protocol=Protocol(name=_known(evaluation.protocol.get("name")), hashes=[_line(one) for one in hashes]),
        policy=_policy(first), algorithm=_line(_algorithm(first.run)), hardware=_known(_hardware(own)),
        software=_line(", ".join(dict.fromkeys(_software(start) for start in starts))),
        date=max((str(start.get("last", ""))[:10] for start in starts), default="") or "0000-00-00",
        trainings=trainings, until=until(trainings),
    )  # fmt: skip


def _line(text: str) -> str:
    """Returns a text as a row may have it: one line, not empty."""
    return " ".join(re.sub(f"[{HIDDEN}]", " ", text).split()) or "not known"


def _known(text: Any) -> str | None:
    return None if text is None else _line(str(text))


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
        name=_line(" ".join([family, str(model.get("layout") or ""), lora])), parameters=sizes[0],
        trained=_trained(one.run) if sizes[1] is None else sizes[1], begins_from=_line(_begins_from(one.run)),
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
