"""The model card of an exported folder (README.md): what was trained, how it was evaluated, how the folder is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from embodied.protocols import Exported

if TYPE_CHECKING:
    from embodied.learn.checkpoint_meta import Meta


def run_of(checkpoint: Path) -> Path:
    """Returns the folder of the run that wrote a checkpoint."""
    parents = checkpoint.resolve().parents
    return parents[min(1, len(parents) - 1)]


def card(checkpoint: Path, meta: Meta, written: Exported, out: Path) -> str:
    """Returns README.md of the folder ``out``, as model hubs show it."""
    head = yaml.safe_dump({"library_name": written.library, "tags": ["embodied", "reinforcement-learning"]}).strip()
    after = f"{meta.iteration} iterations" + (f" and {meta.steps} optimizer steps" if meta.steps else "")
    parts = [
        f"---\n{head}\n---",
        f"# {run_of(checkpoint).name}",
        f"Trained with embodied: weights after {after} ({meta.weight_version} optimizer updates), from `{checkpoint}`.",
        "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(fact)} |" for name, fact in meta.policy.items())]),
        *written.notes,
        f"```python\n{written.usage.replace('FOLDER', str(out))}\n```",
        *evaluation(checkpoint, meta),
    ]
    return "\n\n".join(parts) + "\n"


def evaluation(checkpoint: Path, meta: Meta) -> list[str]:
    """Returns the card's part on the evaluation after the checkpoint's iteration; nothing if there was none."""
    file = run_of(checkpoint) / "eval" / f"{meta.iteration:06d}.json"
    if meta.steps or not file.is_file():
        return []
    found: dict[str, Any] = json.loads(file.read_text())
    rows = [
        f"| {row['instruction']} | {_rate(row)} | {row['low']:.1%} to {row['high']:.1%} |" for row in found["tasks"]
    ]
    rates = [
        f"| {name.removeprefix('eval/').replace('_at/', '@')} | {rate:.1%} | |"
        for name, rate in found.get("rates", {}).items()
    ]
    under = ", ".join(f"{name} {value}" for name, value in _plain(found["conditions"]).items())
    table = ["| task | success | 95 % interval |", "|---|---|---|", *rows, *rates]
    return ["## Evaluation", "\n".join(table), f"Conditions: {_cell(under)}", *_protocol(found.get("protocol", {}))]


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
    """Returns the card's part on a verification.

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
