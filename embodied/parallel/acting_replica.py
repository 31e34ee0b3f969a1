"""The policy of a process that only collects episodes, while others share it out to train it."""

from __future__ import annotations

import torch
from torch import nn

from embodied.parallel.group import Group
from embodied.parallel.meshes import join
from embodied.parallel.shard_sizes import is_shared, parts_of
from embodied.parallel.sharding import DTYPES, Replicas, cast_buffers, strategy_of
from embodied.protocols import Policy
from embodied.schema import AlgorithmConfig, FsdpConfig


def make_acting_replica(policy: Policy, fsdp: FsdpConfig, algorithm: AlgorithmConfig, group: Group) -> Replicas:
    """Prepares ``policy`` in a process that only collects, with weights in the formats in which those of ``group``,
    which train, would act. Takes part in what they need to share it."""
    if strategy_of(policy, fsdp, algorithm, group)[0] == "fsdp2":
        join(group, parts_of(fsdp, group.size))
        _cast(policy, fsdp)
    return Replicas(policy, Group())


def acting_dtypes(policy: Policy, fsdp: FsdpConfig, sharded: bool) -> dict[str, torch.dtype]:
    """Returns the formats of the trained weights, by name, where a whole policy acts."""
    given = fsdp.mixed_precision.param_dtype if sharded else None
    return {name: DTYPES[given] if given else p.dtype for name, p in policy.named_parameters() if p.requires_grad}


@torch.no_grad()
def _cast(policy: Policy, fsdp: FsdpConfig) -> None:
    """Casts weights and buffers as FSDP2 does for a pass."""
    if name := fsdp.mixed_precision.param_dtype:
        for _, parameter in policy.named_parameters():
            if is_shared(parameter, fsdp):
                parameter.data = parameter.data.to(DTYPES[name])
    if isinstance(policy, nn.Module):
        cast_buffers(policy, fsdp)
