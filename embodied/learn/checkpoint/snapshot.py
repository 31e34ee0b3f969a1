"""Collects the content of a checkpoint before it is written: tensors by name, and meta.json without file sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor

from embodied.learn.checkpoint.metadata import FORMAT, Meta, shapes
from embodied.learn.checkpoint.state import Learner, optimizer_tree, pack, random_state, trainable
from embodied.parallel import collectives as ranks
from embodied.parallel.group import Group
from embodied.protocols import HasExtraState

PARTS = ("model", "optimizer", "extra")
"""What a checkpoint may have: what is trained, what the optimizer keeps of it, the states of random generators."""


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint that is not written yet: this rank's tensors, and the content of meta.json without the
    files' sizes."""

    tensors: dict[str, Tensor]
    meta: Meta


def snapshot_of(
    learner: Learner, iteration: int, run_ids: Mapping[str, str], steps: int, origin: dict[str, Any],
    contents: Sequence[str] = PARTS, among: Group | None = None,
) -> Snapshot:  # fmt: skip
    """Takes a snapshot of the state of ``learner`` without copying its tensors. Of several ranks, rank 0 has what all
    share.

    Args:
        run_ids: under which the trackers know the run.
        steps: optimizer steps of the next iteration that are done as well.
        origin: what the checkpoint says of where its policy comes from.
        contents: of :data:`PARTS`, those that it has; it always has the model.
        among: the ranks that save; None = all.
    """
    policy, optimizer = learner.policy, learner.optimizer
    tensors: dict[str, Tensor] = {f"policy/{name}": p.detach() for name, p in trainable(policy)}
    meta = Meta(
        FORMAT,
        iteration,
        shapes(policy),
        dict(policy.describe()),
        dict(policy.extra_state()) if isinstance(policy, HasExtraState) else {},
        pack(optimizer_tree(policy, optimizer), "optimizer", tensors) if "optimizer" in contents else {},
        pack(learner.state_dict(), "trainer", tensors),
        dict(run_ids),
        ranks.count(among),
        steps,
        origin,
    )
    rank, device = ranks.here(among), optimizer.param_groups[0]["params"][0].device
    if rank != 0:  # tensors that are not sharded are the same on all ranks
        tensors = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    generators = random_state(device) if "extra" in contents else {}
    return Snapshot(tensors | {f"rng/{rank}/{name}": state for name, state in generators.items()}, meta)


class Stager:
    """Copies tensors to host memory: for a GPU to pinned memory that is kept for the next time."""

    def __init__(self) -> None:
        self._stager: BlockingAsyncStager | None = None
        self._kept: dict[str, tuple[torch.Size, torch.dtype]] = {}

    def __call__(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if not any(tensor.is_cuda for tensor in tensors.values()):
            return BlockingAsyncStager().stage(tensors)
        layout = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if self._stager is None or layout != self._kept:  # the optimizer has more state after its first step
            self._stager, self._kept = BlockingAsyncStager(cache_staged_state_dict=True), layout
        return self._stager.stage(tensors)
