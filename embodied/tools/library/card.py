"""The model card of an exported folder (README.md): what was trained, how it was evaluated, how the folder is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from embodied.errors import EvaluationError
from embodied.evaluation import results as evaluations
from embodied.evaluation.results import is_of_texts
from embodied.protocols import Exported

if TYPE_CHECKING:
    from embodied.learn.checkpoint.metadata import Meta


LENGTHS = {"mean length": "steps_mean", "to success, median": "steps_to_success"}
"""Columns on episodes, in control steps, with what the file calls them."""


def run_of(checkpoint: Path) -> Path:
    """Returns the folder of the run that wrote a checkpoint."""
    parents = checkpoint.resolve().parents
    return parents[min(1, len(parents) - 1)]


def card(
    checkpoint: Path, meta: Meta, exported: Exported, out: Path, results: Sequence[tuple[str, Mapping[str, Any]]]
) -> str:  # fmt: skip
    """Makes the model card, README.md of the folder ``out``, as model hubs show it.

    Args:
        results: those of :func:`evaluations_of`.
    """
    head = yaml.safe_dump({"library_name": exported.library, "tags": ["embodied", "reinforcement-learning"]}).strip()
    after = f"{meta.iteration} iterations" + (f" and {meta.steps} optimizer steps" if meta.steps else "")
    parts = [
        f"---\n{head}\n---",
        f"# {run_of(checkpoint).name}",
        f"Trained with embodied: weights after {after} ({meta.weight_version} optimizer updates), from `{checkpoint}`.",
        "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(fact)} |" for name, fact in meta.policy.items())]),
        *exported.notes,
        f"```python\n{exported.usage.replace('FOLDER', str(out))}\n```",
        *(part for name, found in results for part in _evaluation(name, found)),
        *([] if results else ["## Evaluation", "Not evaluated."]),
    ]
    return "\n\n".join(parts) + "\n"


def evaluations_of(checkpoint: Path, meta: Meta, names: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the evaluations of a checkpoint: the one that its own run made after the same iteration, and, with the
    names of their runs, those that are ``names`` (as to ``embodied.tools.compare``).

    Raises:
        EvaluationError: one that is given does not exist, is damaged, or is of other weights.
    """
    own = run_of(checkpoint) / "eval" / f"{meta.iteration:06d}.json"
    files = [own] if not meta.steps and own.is_file() else []
    for name in names:
        file = evaluations.read(name).file
        if not files or not file.samefile(own):
            _check_same_weights(name, json.loads(file.read_text(encoding="utf-8")), checkpoint, meta)
            files.append(file)
    return [(_name(file) if file != own else "", json.loads(file.read_text(encoding="utf-8"))) for file in files]


def _name(file: Path) -> str:
    """Returns the name of the run that a file of an evaluation belongs to."""
    return file.absolute().parent.parent.name


def _check_same_weights(name: str, found: Mapping[str, Any], checkpoint: Path, meta: Meta) -> None:
    """Raises EvaluationError if an evaluation is not known to be of the checkpoint's weights."""
    of, own = found.get("checkpoint"), meta.identity
    base = meta.origin.get("policy", {}).get("kwargs", {}).get("model_path")
    again = f"evaluate it: python -m embodied.eval … runner.ckpt_path={checkpoint}"
    if own is None:
        raise EvaluationError(
            f"{checkpoint} has no checksums, so nothing tells whose weights {name} is of",
            "resume its run for one iteration, which writes a checkpoint that has them",
        )
    if not of or of["identity"] is None:
        weights = found.get("conditions", {}).get("weights", "unknown weights")
        raise EvaluationError(f"{name} does not say of which checkpoint it is, only: {weights}", again)
    if of["identity"] != own:
        raise EvaluationError(
            f"{name} is of other weights: of {of['path']} as it was ({of['identity']}), and {checkpoint} is {own}",
            again,
        )
    if of["model_path"] != base:
        raise EvaluationError(
            f"{name} is of another network below these weights: actor.model.model_path was {of['model_path']}, and "
            f"{checkpoint} was trained on {base}",
            f"{again} actor.model.model_path={base}",
        )


def _evaluation(name: str, found: Mapping[str, Any]) -> list[str]:
    """Returns the card's part on an evaluation."""
    lengths = {} if is_of_texts(found["conditions"]) else LENGTHS
    lost = found["tasks"][-1].get("not_run", 0)
    columns = {**lengths, **({"not run": "not_run"} if lost else {})}
    head = ["task", "success", "95 % interval", *columns]
    rows = [
        [row["instruction"], _rate(row), f"{row['low']:.1%} to {row['high']:.1%}",
         *(_number(row.get(key)) for key in columns.values())]
        for row in found["tasks"]
    ]  # fmt: skip
    rows += [
        [name.removeprefix("eval/").replace("_at/", "@"), f"{rate:.1%}", *[""] * (len(head) - 2)]
        for name, rate in found.get("rates", {}).items()
    ]
    under = ", ".join(f"{name} {value}" for name, value in _plain(found["conditions"]).items())
    table = [f"| {' | '.join(map(_cell, row))} |" for row in (head, *rows)]
    said = [f"{lost} planned episodes were not run, and count neither as success nor as failure."] if lost else []
    return [
        f"## Evaluation {name}".strip(), "\n".join([table[0], "|---" * len(head) + "|", *table[1:]]), *said,
        f"Conditions: {_cell(under)}", *_protocol(found.get("protocol", {})),
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _protocol(found: Mapping[str, Any]) -> list[str]:
    """Returns the protocol with its keys and hash; nothing of an evaluation that has none."""
    if not found:
        return []
    changed = "".join(f", but {key}={value}" for key, value in found["changed"].items())
    held_out = {True: "yes", False: "NO", None: "not known"}[found["held_out_in_training"]]
    keys = {key: value for key, value in found["keys"].items() if key in ("env", "pictures", "simulator")}
    if found["keys"]["held_out_states"]:
        keys["initial states held out in training"] = held_out
    rows = [f"| {name} | {_cell(_said(value))} |" for name, value in keys.items() if value]
    name = found["name"] or "of no name"
    return [f"Protocol {name} `{found['hash']}`{changed}", "\n".join(["| | |", "|---|---|", *rows])]


def _said(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, Mapping) else str(value)


def verification(lines: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    """Formats the model card's section on a verification.

    Args:
        table: the episodes that differ; the head is the first row.
    """
    parts = ["## Verification", "\n".join(f"- {_cell(line)}" for line in lines)]
    if len(table) > 1:
        rows = [f"| {' | '.join(row)} |" for row in table]
        parts.append("\n".join([rows[0], "|---" * len(table[0]) + "|", *rows[1:]]))
    return "\n\n".join(parts)


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row['successes']}/{row['episodes']} ({row['success_rate']:.1%})"


def _plain(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions in one level, without the weights' folder and the list of all tasks' initial states."""
    left = {
        name: value for name, value in conditions.items() if name not in ("weights", "init_states_per_task", "sampling")
    }
    return {**left, **conditions["sampling"]}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
