"""What can be said of a checkpoint without loading it, and the errors for one that is damaged or does not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.learn.state import trainable
from embodied.protocols import Policy

FORMAT = 2
SHOWN = 5  # names that an error lists
EARLIER = "give an earlier one, or remove this folder: the run then goes on from the one before it"


@dataclass(frozen=True)
class Meta:
    """``meta.json``: what can be said of a checkpoint without loading it."""

    format: int
    iteration: int  # iterations done: with runner.seed it is the place in the plan
    parameters: dict[str, list[int]]  # trainable parameter → shape
    policy: dict[str, str]  # Policy.describe()
    settled: dict[str, str]  # extra state of a HasExtraState policy, such as what its probe found out
    optimizer: dict[str, Any]  # plain values of state.optimizer_tree
    trainer: dict[str, Any]  # plain values of Trainer.state_dict()
    trackers: dict[str, str]  # tracker → the id under which it knows the run
    ranks: int  # processes that trained
    steps: int = 0  # optimizer steps of the next iteration that are done as well (supervised training)
    origin: dict[str, Any] = field(default_factory=dict)  # origin.Origin: what builds the policy, and its env's spec
    files: dict[str, int] = field(default_factory=dict)  # name → bytes of the others: shorter or gone = damaged later

    @property
    def weight_version(self) -> int:
        return int(self.trainer["weight_version"])


def read_meta(path: Path) -> Meta:
    """Raises :class:`CheckpointError` if there is no checkpoint, or of a format that this version does not know."""
    try:
        fields = json.loads((path / "meta.json").read_text())
        written = fields["format"]
        meta = Meta(**fields) if written == FORMAT else None
    except FileNotFoundError:
        raise CheckpointError(
            f"no checkpoint at {path} (no meta.json)",
            "give the folder of one checkpoint, e.g. runs/NAME/checkpoints/000004",
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpointError(f"checkpoint {path}: meta.json is damaged: {error}", EARLIER) from error
    if meta is None:
        raise CheckpointError(
            f"checkpoint {path} has format {written}, this version reads {FORMAT}",
            "use the version of embodied that wrote it, or start anew under another runner.experiment_name",
        )
    return meta


def meta_for(path: Path, policy: Policy) -> Meta:
    meta = read_meta(path)
    _check_same_model(path, meta, policy)
    check_files(path, meta)
    return meta


def check_files(path: Path, meta: Meta) -> None:
    for name, size in meta.files.items():
        there = (path / name).stat().st_size if (path / name).is_file() else 0
        if there != size:
            raise DamagedCheckpointError(
                f"checkpoint {path} is damaged: {name} has {there} bytes instead of {size}", EARLIER
            )


def shapes(policy: Policy) -> dict[str, list[int]]:
    return {name: list(p.shape) for name, p in trainable(policy)}


def _check_same_model(path: Path, meta: Meta, policy: Policy) -> None:
    ours, theirs = shapes(policy), meta.parameters
    missing = sorted(set(ours) - set(theirs))
    extra = sorted(set(theirs) - set(ours))
    other = sorted(n for n in set(ours) & set(theirs) if ours[n] != theirs[n])
    if not (missing or extra or other):
        return
    lines = [
        *(f"  {n}: {theirs[n]} there, {ours[n]} in this model" for n in other[:SHOWN]),
        *(f"  {n}: not in the checkpoint" for n in missing[:SHOWN]),
        *(f"  {n}: only in the checkpoint" for n in extra[:SHOWN]),
    ]
    writer = ", ".join(f"{key} {value}" for key, value in meta.policy.items())
    raise CheckpointError(
        f"checkpoint {path} is of another model: {len(other)} parameters differ in shape, {len(missing)} are missing, "
        f"{len(extra)} are unknown:\n" + "\n".join(lines),
        f"use the model that wrote it ({writer}): model=…, actor.model.*",
    )


def check_same_groups(path: Path, meta: Meta, ours: Mapping[str, Any]) -> None:
    there, here = ([group["params"] for group in tree["groups"]] for tree in (meta.optimizer, ours))
    if there != here:
        raise CheckpointError(
            f"checkpoint {path}: its optimizer has groups of {list(map(len, there))} parameters, this one of "
            f"{list(map(len, here))}, or they come in another order",
            "go on with the version of embodied that wrote it, or start from its weights alone: runner.ckpt_path",
        )
