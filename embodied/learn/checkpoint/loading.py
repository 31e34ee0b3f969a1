"""Reads checkpoints: the weights alone (:func:`load`), or everything that a run goes on from (:func:`resume`).

Several ranks load each for itself, so that any number of ranks can go on from what any other number saved.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException that stands for any failure in there
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from embodied.errors import CheckpointError, DamagedCheckpointError, EmbodiedError, Stopped
from embodied.learn.checkpoint.metadata import EARLIER, Meta, check_same_groups, meta_for, only_one_has_a_head
from embodied.learn.checkpoint.reading import Reader
from embodied.learn.checkpoint.snapshot import PARTS
from embodied.learn.checkpoint.state import (
    Learner,
    load_optimizer,
    optimizer_tree,
    pack,
    set_random_state,
    trainable,
    unpack,
)
from embodied.parallel import collectives as ranks
from embodied.parallel.group import Group
from embodied.protocols import HasExtraState, Policy

Named = Sequence[tuple[str, Tensor]]
HEAD_LEFT_OUT = "its value head is left out, as this policy has none"

# DCP warns at each save and load without process group; that is how it is meant here. For good, and not around each
# call: the list of filters is shared by all threads.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


def load(path: Path, policy: Policy, say: Callable[[str], None] | None = None) -> Meta:
    """Fill the policy's trainable parameters from a checkpoint: with the moving average of the weights if the run kept
    one (``actor.optim.ema_decay``), as its own evaluations did. A value head that the checkpoint lacks stays as it is,
    one that the policy lacks is left out.

    Args:
        say: is told so.

    Raises:
        CheckpointError: no checkpoint there, damaged, or of another model (names what differs). Nothing is overwritten.
    """
    meta = meta_for(path, policy, any_head=True)
    kept = any(name.startswith("average.") for name in meta.trainer)
    prefix = "trainer/average." if kept else "policy/"
    filled = [(name, p) for name, p in trainable(policy) if name in meta.parameters]
    like: dict[str, Tensor] = {f"{prefix}{name}": p for name, p in filled}
    tensors = _read(path, (prefix,), like)
    _check_whole(path, filled, tensors, prefix)
    _fill(policy, meta, filled, tensors, prefix)
    if say is not None and only_one_has_a_head(meta, (name for name, _ in trainable(policy))):
        lacks = len(filled) == len(meta.parameters)
        say(f"checkpoint {path}: {'it has no value head, so values are learned anew' if lacks else HEAD_LEFT_OUT}")
    return meta


def resume(path: Path, learner: Learner, contents: Sequence[str] = PARTS, among: Group | None = None) -> Meta:
    """Restore ``learner`` and this process's random generators to the state that the checkpoint holds.

    A rank that the saving run did not have keeps its generators. All ranks call it; if one fails, all do. ``path`` must
    be one folder for all of them, on several machines of a shared file system: rank 0 alone compares checksums.

    Args:
        contents: parts that are taken (``runner.checkpoint.load_contents``); the others stay as they are.
        among: the ranks that load; None = all.

    Raises:
        CheckpointError: as :func:`load`, or the optimizer's groups are others, or it lacks a part.
    """
    policy, optimizer = learner.policy, learner.optimizer
    device = optimizer.param_groups[0]["params"][0].device
    own = f"rng/{ranks.here(among)}/"

    def read() -> tuple[Meta, dict[str, Tensor]]:
        meta = meta_for(path, policy, bytes_too=ranks.here(among) == 0)  # one rank is enough: its error is everybody's
        with_optimizer = "optimizer" in contents
        if with_optimizer:
            _check_has_optimizer(path, meta)
            check_same_groups(path, meta, optimizer_tree(policy, optimizer))
        like: dict[str, Tensor] = dict(trainable(policy))
        pack(learner.state_dict(), "trainer", like)
        parts = ["policy/", "trainer/", *(["optimizer/"] if with_optimizer else [])]
        return meta, _read(path, (*parts, *([own] if "extra" in contents else [])), like)

    meta, tensors = ranks.together(read, among)
    parameters = list(trainable(policy))
    _check_whole(path, parameters, tensors)
    _fill(policy, meta, parameters, tensors)
    if "optimizer" in contents:
        load_optimizer(optimizer, unpack(meta.optimizer, tensors))
    learner.load_state_dict(unpack(meta.trainer, tensors))
    generators = {name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)}
    set_random_state(generators, device)
    return meta


def _check_has_optimizer(path: Path, meta: Meta) -> None:
    if not meta.optimizer:
        raise CheckpointError(
            f"checkpoint {path} has no optimizer state: it was saved without (runner.checkpoint.save_contents)",
            "set runner.checkpoint.load_contents=[model] to go on with an optimizer that begins anew",
        )


def _read(path: Path, prefixes: tuple[str, ...], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Loads tensors by name prefix, each rank for itself: sharded as in ``like``, the others whole in host memory.

    Args:
        like: parameter name → parameter, and other names in full.
    """
    try:
        reader = Reader(path)
        stored = reader.read_metadata().state_dict_metadata
        tensors = {
            name: _empty(facts, like.get(name, like.get(_parameter(name))))
            for name, facts in stored.items()
            if name.startswith(prefixes) and isinstance(facts, TensorStorageMetadata)
        }
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    except (Exception, CheckpointException) as error:
        if isinstance(error, CheckpointException):
            raise_if_stopped(error)
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: {_reason(error)}", EARLIER) from error
    _check_finite(path, tensors)
    return tensors


def _reason(error: BaseException) -> str:
    if isinstance(error, EmbodiedError):
        return error.message
    return reason_of(error) if isinstance(error, CheckpointException) else f"{type(error).__name__}: {error}"


def _parameter(name: str) -> str:
    """``optimizer/state/head.weight/exp_avg`` → head.weight, also of ``policy/head.weight``."""
    parts = name.split("/")
    return parts[2] if parts[0] == "optimizer" else parts[1]


def _empty(stored: TensorStorageMetadata, like: Tensor | None) -> Tensor:
    if isinstance(like, DTensor) and like.shape == stored.size:
        return torch.empty_like(like, dtype=stored.properties.dtype, requires_grad=False)
    return torch.empty(stored.size, dtype=stored.properties.dtype)


def _check_whole(path: Path, parameters: Named, tensors: Mapping[str, Tensor], prefix: str = "policy/") -> None:
    """Checks, before anything is overwritten, that all trained parameters are there. Raises DamagedCheckpointError."""
    for name, parameter in parameters:
        found = tensors.get(f"{prefix}{name}")
        if found is None or found.shape != parameter.shape:
            shown = "nothing" if found is None else list(found.shape)
            reason = f"its files have {shown} of {prefix}{name}, meta.json says {list(parameter.shape)}"
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: {reason}", EARLIER)


def _check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if name.startswith(("policy/", "trainer/average.")) and not _finite(tensor):
            raise DamagedCheckpointError(
                f"checkpoint {path} is damaged: {name} has numbers that are not finite", EARLIER
            )


def _finite(tensor: Tensor) -> bool:
    """Returns whether this rank's part of a tensor is finite, in one pass without a copy."""
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if part.numel() == 0 or not part.is_floating_point():
        return True
    return all(math.isfinite(end.item()) for end in torch.aminmax(part))


@torch.no_grad()
def _fill(
    policy: Policy, meta: Meta, parameters: Named, tensors: Mapping[str, Tensor], prefix: str = "policy/"
) -> None:
    for name, parameter in parameters:
        parameter.copy_(tensors[f"{prefix}{name}"])
    if meta.settled and isinstance(policy, HasExtraState):
        policy.load_extra_state(meta.settled)


def raise_if_stopped(error: CheckpointException) -> None:
    """Re-raises a stop signal that torch's distributed checkpointing (DCP) took for a failure of its own."""
    for cause, _ in error.failures.values():
        if isinstance(cause, Stopped | KeyboardInterrupt):
            raise cause from None


def reason_of(error: CheckpointException) -> str:
    """Returns each rank's error without its traceback, which is torch's own."""
    several = len(error.failures) > 1
    reasons = {rank: str(cause) or type(cause).__name__ for rank, (cause, _) in error.failures.items()}
    return "; ".join(f"rank {rank}: {reason}" if several else reason for rank, reason in reasons.items())
