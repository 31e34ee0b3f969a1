"""Checkpoints: what is trainable, the optimizer, and where the run stands. Written aside and renamed, so that the
newest complete one is always whole; the frozen base is not saved, since ``actor.model`` says how to make it again.

    checkpoints/000004/           after 4 iterations
        .metadata, __0_0.distcp   torch.distributed.checkpoint: policy and optimizer
        meta.json                 iteration, weight version, names and shapes of the parameters, facts of the policy
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException that stands for any failure in there
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from embodied.errors import CheckpointError
from embodied.protocols import Policy

FORMAT = 1
SHOWN = 5  # names that an error lists


@dataclass(frozen=True)
class Meta:
    """``meta.json``: what can be said of a checkpoint without loading it."""

    format: int
    iteration: int  # iterations done
    weight_version: int
    parameters: dict[str, list[int]]  # trainable parameter → shape
    policy: dict[str, str]  # Policy.describe()
    files: dict[str, int]  # name → bytes of the other files: what is shorter or gone was damaged later


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: ``<run>/checkpoints``.
        max_keep: how many stay.
    """

    def __init__(self, folder: Path, max_keep: int) -> None:
        self.folder, self._max_keep = folder, max_keep

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(p for p in self.folder.glob("[0-9]*") if (p / "meta.json").is_file())

    def save(self, policy: Policy, optimizer: torch.optim.Optimizer, iteration: int, weight_version: int) -> Path:
        """Write a checkpoint and delete the oldest beyond ``max_keep``.

        Raises:
            CheckpointError: the disk is full or the folder cannot be written; what was there stays.
        """
        final, aside = self.folder / f"{iteration:06d}", self.folder / f".writing-{iteration:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir(parents=True)
            with _quiet():
                dcp.save(_state(policy, optimizer), checkpoint_id=aside, no_dist=True)
            files = {file.name: file.stat().st_size for file in sorted(aside.iterdir())}
            meta = Meta(FORMAT, iteration, weight_version, _shapes(policy), dict(policy.describe()), files)
            _write_synced(aside / "meta.json", json.dumps(asdict(meta), indent=1))
            shutil.rmtree(final, ignore_errors=True)
            aside.rename(final)
        except (OSError, CheckpointException) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"cannot write checkpoint {final}: {error}",
                "free space or fix the permissions, then run the same command again; earlier checkpoints are intact",
            ) from error
        for old in self.all()[: -self._max_keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def newest_loadable(self, say: Any = print) -> tuple[Path, Meta] | None:
        """The newest checkpoint whose files are whole; damaged ones are named and passed over."""
        for path in reversed(self.all()):
            try:
                meta = read_meta(path)
                _check_files(path, meta)
            except CheckpointError as error:
                say(f"{error.message}; trying the one before it")
                continue
            return path, meta
        return None


def load(path: Path, policy: Policy, optimizer: torch.optim.Optimizer | None = None) -> Meta:
    """Fill the policy's trainable parameters, and the optimizer if given, from a checkpoint.

    Raises:
        CheckpointError: no checkpoint there, damaged, or of another model (names what differs). Nothing is overwritten.
    """
    meta = read_meta(path)
    _check_same_model(path, meta, policy)
    _check_files(path, meta)
    state = _state(policy, optimizer)
    planner = dcp.DefaultLoadPlanner(
        allow_partial_load=optimizer is not None
    )  # parameters without a gradient have no state
    try:
        with _quiet():
            dcp.load(state, checkpoint_id=path, planner=planner, no_dist=True)
    except (Exception, CheckpointException) as error:
        raise CheckpointError(
            f"checkpoint {path} is damaged: {type(error).__name__}: {error}",
            "give an earlier one, or remove this folder: the run then goes on from the one before it",
        ) from error
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(state["policy"][name])
    if optimizer is not None:
        set_optimizer_state_dict(policy, optimizer, state["optimizer"], options=_OPTIONS)  # type: ignore[arg-type]
    return meta


def read_meta(path: Path) -> Meta:
    """Raises :class:`CheckpointError` if there is no checkpoint, or of a format that this version does not know."""
    try:
        fields = json.loads((path / "meta.json").read_text())
        meta = Meta(**fields)
    except FileNotFoundError:
        raise CheckpointError(
            f"no checkpoint at {path} (no meta.json)",
            "give the folder of one checkpoint, e.g. runs/NAME/checkpoints/000004",
        ) from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {path}: meta.json is damaged: {error}", "give an earlier checkpoint"
        ) from error
    if meta.format != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {meta.format}, this version reads {FORMAT}", "use the version that wrote it"
        )
    return meta


def _check_files(path: Path, meta: Meta) -> None:
    for name, size in meta.files.items():
        there = (path / name).stat().st_size if (path / name).is_file() else 0
        if there != size:
            raise CheckpointError(
                f"checkpoint {path} is damaged: {name} has {there} bytes instead of {size}",
                "give an earlier one, or remove this folder: the run then goes on from the one before it",
            )


_OPTIONS = StateDictOptions(ignore_frozen_params=True)


def _state(policy: Policy, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    state: dict[str, Any] = {"policy": {n: p.detach() for n, p in policy.named_parameters() if p.requires_grad}}
    state["policy"] = {name: value.clone() for name, value in state["policy"].items()}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(policy, optimizer, options=_OPTIONS)  # type: ignore[arg-type]
    return state


def _shapes(policy: Policy) -> dict[str, list[int]]:
    return {name: list(p.shape) for name, p in policy.named_parameters() if p.requires_grad}


def _check_same_model(path: Path, meta: Meta, policy: Policy) -> None:
    ours, theirs = _shapes(policy), meta.parameters
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


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _quiet() -> Iterator[None]:
    """DCP warns on each save that there is no process group; that is how it is meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
