"""Finds the evaluations of trainings, each with the iteration of its checkpoint, and keeps those of one protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from embodied.errors import EmbodiedError, EvaluationError
from embodied.evaluation.comparison_text import protocol_of
from embodied.evaluation.results import WrittenEvaluation
from embodied.lib.files import UNREADABLE, read_json
from embodied.lib.weights_folder import META_FILE, identity
from embodied.report.reading import Run

MADE = (
    "give the training evaluations (runner.val_check_interval=N), or evaluate its checkpoints with embodied eval and "
)
MADE += "name that folder too: embodied report --time-to-success RUN EVAL"


Made = tuple[int, WrittenEvaluation]
"""Iterations before an evaluation, and the evaluation."""


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


def attach(run: Run, trainings: Sequence[Measured]) -> None:
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


def conditions(evaluation: WrittenEvaluation) -> str:
    """Returns the protocol of an evaluation as a text that is the same for all seeds of a run."""
    keys = {key: value for key, value in evaluation.protocol.get("keys", {}).items() if key != "seed"}
    return json.dumps([evaluation.protocol.get("name"), keys], sort_keys=True, default=str)


def choose(one: Measured, protocol: str | None) -> None:
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
        found.setdefault(conditions(evaluation), []).append((iteration, evaluation))
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
