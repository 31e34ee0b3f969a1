"""Reads ``meta.json`` of a checkpoint, without its tensors; errors for one that is damaged or does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.learn.checkpoint.state import trainable
from embodied.lib import weights_folder
from embodied.lib.files import check_checksums, check_folder, check_seal, checkpoint_near, inside, read_json
from embodied.protocols import HasValueParts, Policy

FORMAT = 2
SHOWN = 5  # names that an error lists
VALUE_HEAD = "value_head"  # its parameters begin so, in each model
EARLIER = "give an earlier one, or remove this folder: the run then goes on from the one before it"


@dataclass(frozen=True)
class Meta:
    """Content of ``meta.json``: the facts about a checkpoint that need no tensors."""

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
    checksums: dict[str, str] = field(default_factory=dict)  # name → checksum (lib/files): other bytes = damaged later

    @property
    def weight_version(self) -> int:
        """Optimizer steps behind the weights."""
        return int(self.trainer["weight_version"])

    @property
    def identity(self) -> str | None:
        """A short text that tells these weights from others (:func:`embodied.lib.weights_folder.identity`)."""
        return weights_folder.identity(asdict(self))


PLAIN: dict[str, type | tuple[type, ...]] = {
    name: annotation
    for annotation, names in (
        (int, ("format", "iteration", "ranks", "steps")),
        (dict, ("parameters", "policy", "settled", "optimizer", "trainer", "trackers", "origin", "files", "checksums")),
    )
    for name in names
}
"""Field of :class:`Meta` → its type in the file."""


def read_meta(path: Path) -> Meta:
    """Reads ``meta.json``. Raises :class:`CheckpointError` if there is no checkpoint, or its format is unknown."""
    if not (path / "meta.json").exists():
        raise CheckpointError(
            f"no checkpoint at {path} (no meta.json)",
            f"give the folder of one checkpoint, e.g. {checkpoint_near(path)}",
        )
    try:
        fields = read_json(inside(path, "meta.json"))
        written = fields["format"]
        meta = _checked(fields, path) if written == FORMAT else None
    except (ValueError, TypeError, KeyError, DamagedCheckpointError) as error:
        reason = error.message if isinstance(error, DamagedCheckpointError) else error
        raise DamagedCheckpointError(f"checkpoint {path}: meta.json is damaged: {reason}", EARLIER) from error
    if meta is None:
        raise CheckpointError(
            f"checkpoint {path} has format {written}, this version reads {FORMAT}",
            "use the version of embodied that wrote it, or start anew under another runner.experiment_name",
        )
    return meta


def _checked(fields: dict[str, Any], path: Path) -> Meta:
    """Raises TypeError, or DamagedCheckpointError if they are not what was written."""
    meta = Meta(**check_seal(path / "meta.json", fields))
    for name, kind in PLAIN.items():
        if not isinstance(value := getattr(meta, name), kind):
            raise TypeError(f"{name} is {value!r}")
    int(meta.trainer["weight_version"])
    return meta


def meta_for(path: Path, policy: Policy, bytes_too: bool = True, any_head: bool = False) -> Meta:
    """Reads ``meta.json`` of a checkpoint, and checks that ``policy`` can be filled from it.

    Args:
        bytes_too: as in :func:`check_files`.
        any_head: a value head that one of the two has and the other not is no difference.
    """
    meta = read_meta(path)
    _check_same_model(path, meta, policy, any_head)
    check_files(path, meta, bytes_too)
    return meta


def check_files(path: Path, meta: Meta, bytes_too: bool = True) -> None:
    """Check that the other files are those that were written.

    Args:
        bytes_too: compare their checksums, for which they are read.

    Raises:
        DamagedCheckpointError: a file is gone or another one.
        CheckpointError: the folder has links that leave it.
    """
    check_folder(path)
    for name, size in meta.files.items():
        there = file.stat().st_size if (file := inside(path, name)).is_file() else 0
        if there != size:
            raise DamagedCheckpointError(
                f"checkpoint {path} is damaged: {name} has {there} bytes instead of {size}", EARLIER
            )
    try:
        check_checksums(path, meta.checksums if bytes_too else {})
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {error.message}", EARLIER) from error


def shapes(policy: Policy) -> dict[str, list[int]]:
    """Returns the shapes of the trainable parameters, by name."""
    return {name: list(p.shape) for name, p in trainable(policy)}


def only_one_has_a_head(meta: Meta, names: Iterable[str]) -> bool:
    """Returns whether only one of checkpoint and policy (trainable parameters ``names``) has a value head."""
    return _has_head(meta.parameters) != _has_head(names)


def _has_head(names: Iterable[str]) -> bool:
    return any(name.startswith(VALUE_HEAD) for name in names)


def _check_same_model(path: Path, meta: Meta, policy: Policy, any_head: bool) -> None:
    ours, theirs = shapes(policy), meta.parameters
    lacking, surplus = set(ours) - set(theirs), set(theirs) - set(ours)
    if any_head and only_one_has_a_head(meta, ours):
        apart = (VALUE_HEAD, *(policy.value_parts() if isinstance(policy, HasValueParts) else ()))
        lacking, surplus = ({n for n in names if not n.startswith(apart)} for names in (lacking, surplus))
    missing, extra = sorted(lacking), sorted(surplus)
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
    """Raises :class:`CheckpointError` unless the checkpoint's optimizer groups hold as many parameters, in order, as
    ours."""
    there, here = ([group["params"] for group in tree["groups"]] for tree in (meta.optimizer, ours))
    if there != here:
        raise CheckpointError(
            f"checkpoint {path}: its optimizer has groups of {list(map(len, there))} parameters, this one of "
            f"{list(map(len, here))}, or they come in another order",
            "go on with the version of embodied that wrote it, or start from its weights alone: runner.ckpt_path",
        )
