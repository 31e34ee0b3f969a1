"""Values that others have where their file says nothing, and that results depend on: ``usual.tsv``.

A recipe names what differs from the defaults of its system, so a file that leaves a key out still means a value. Rows:
system, when, key (``=KEY`` is one of ours), value. ``when`` is ``text``, ``robot``, ``supervised``, ``group:NAME`` of a
list of defaults, or ``type:NAME`` where that list names no model; several of them, with ``&``, must hold together.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from embodied.schema.others.tables import LEFT_OFF

TABLE = "usual.tsv"
VLA = ("data.task_suite_name", "actor_rollout_ref.model.vla")
"""Keys that SimpleVLA-RL has and verl has not."""


@dataclass(frozen=True)
class ForeignDefault:
    """A default value of another system's key, and the conditions under which the system takes it."""

    system: str
    when: frozenset[str]
    key: str
    value: Any


@cache
def rows() -> tuple[ForeignDefault, ...]:
    """Returns all rows of the table of other systems' defaults."""
    text = (files(__package__) / TABLE).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        ForeignDefault(one["system"], frozenset(one["when"].split("&")), one["key"], yaml.safe_load(one["value"]))
        for one in table
    )


def usual(system: str, flat: Mapping[str, Any], chosen: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keys that a foreign configuration leaves out, with the defaults that its system then takes.

    Args:
        system: as ``embodied migrate --from`` has it.
        flat: their dotted keys and values.
        chosen: group of ours → the file of theirs that a list of defaults names.
    """
    holds = {kind_of(system, flat, chosen), *(f"group:{kind}/{name}" for kind, name in chosen.items())}
    if "model" not in chosen:
        holds.add(f"type:{flat.get('actor.model.model_type')}")
    short = LEFT_OFF.get(system, "\0")
    return {
        row.key: row.value
        for row in rows()
        if row.system == system
        and row.when <= holds
        and row.key not in flat
        and row.key.removeprefix(short) not in flat
    }


def kind_of(system: str, flat: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    """Classifies a foreign configuration as text, robot or supervised; an empty text where a file is too
    small to say."""
    return KINDS[system](flat, chosen)


def _of_rlinf(flat: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    if "env" in chosen or "model" in chosen:
        return "robot"
    return "text" if "data.rollout_batch_size" in flat else ""


def _of_verl(flat: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    if any(key in flat for key in VLA):
        return "robot"
    if "data.train_files" not in flat:
        return ""
    if any(key.startswith(("actor_rollout_ref.", "critic.", "algorithm.")) for key in flat):
        return "text"
    return "supervised" if "model.path" in flat else ""


def _of_roll(flat: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    if any(key.startswith("train_env_manager.") for key in flat):
        return ""  # an agent in an env of theirs
    return "text" if "rollout_batch_size" in flat and any(key.startswith("actor_train.") for key in flat) else ""


def _of_cosmos(flat: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    if any(key.startswith("vla.") for key in flat):
        return "robot"
    kind = flat.get("train.train_policy.type")
    return {"sft": "supervised", "grpo": "text"}.get(str(kind), "")


KINDS = {
    "rlinf": _of_rlinf, "verl": _of_verl, "roll": _of_roll, "cosmos-rl": _of_cosmos, "trl": lambda flat, chosen: "text",
}  # fmt: skip
"""System → what its file is for."""
