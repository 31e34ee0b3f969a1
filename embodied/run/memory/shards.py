"""One process's share of a policy and of its gradients, by the strategy that shares them out.

| strategy | always | while it acts | in a pass | for sums of gradients |
|---|---|---|---|---|
| replicate | everything | | | all gradients once more |
| fsdp2 | its part of each sharded weight | all weights | the root's and a unit's | a unit's, and a buffer |
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from embodied.parallel.group import Group
from embodied.parallel.shard_sizes import is_shared, part_of, parts_of, shard_sizes
from embodied.parallel.sharding import DTYPES, strategy_of
from embodied.parallel.units import units_of
from embodied.protocols import Policy
from embodied.run.memory.footprint import NOTHING, Gathered, Weights
from embodied.schema import Config, FsdpConfig


@dataclass(frozen=True)
class RankShare:
    """Bytes of sharded weights that a process holds always, and bytes that it gathers at times."""

    weights: Weights
    gathered: Gathered = NOTHING


def share_of(policy: Policy, config: Config, group: Group, several_passes: bool) -> RankShare:
    """Counts the bytes of the process with the largest share of the sharded policy.

    Args:
        policy: whole, as one process builds it; its weights may have no memory.
        group: the processes that train.
        several_passes: an optimizer batch has several.
    """
    if strategy_of(policy, config.actor.fsdp_config, config.algorithm, group)[0] == "replicate":
        weights = _weights(policy, {})
        return RankShare(weights, Gathered(summed=weights.trained or 0) if group.size > 1 else NOTHING)
    assert isinstance(policy, nn.Module)
    fsdp = config.actor.fsdp_config
    units = units_of(policy, fsdp.wrap_policy)
    unit_of = {id(p): number for number, unit in enumerate(units) for p in unit.parameters()}  # inner ones come last
    sharded = [p for _, p in policy.named_parameters() if is_shared(p, fsdp)]
    parts = parts_of(fsdp, group.size)
    sizes = shard_sizes((unit_of.get(id(p)), _gathered(p, fsdp)) for p in sharded)
    weights = _weights(policy, {id(p): part_of(p.shape, parts) * p.element_size() for p in sharded})
    kept = _trained(sharded, fsdp) if fsdp.enable_gradient_accumulation and several_passes else 0
    held = sizes.gathered(fsdp.reshard_after_forward)
    return RankShare(weights, Gathered(sizes.whole, held, 2 * sizes.largest + kept, on_host=fsdp.cpu_offload))


def whole_of(policy: Policy) -> Weights:
    """Counts the bytes of a policy that one process holds whole."""
    return _weights(policy, {})


def _weights(policy: Policy, parts: dict[int, int]) -> Weights:
    """Adds up weights.

    Args:
        parts: bytes of a weight of which a process holds a part, by its identity.
    """
    sizes, head = {True: 0, False: 0}, 0
    for _, one in policy.named_buffers() if isinstance(policy, nn.Module) else ():
        sizes[False] += one.nbytes  # scales of weights in 8 or 4 bits, tables
    for name, one in policy.named_parameters():
        size = parts.get(id(one), one.nbytes)
        sizes[one.requires_grad] += size
        head += size if one.requires_grad and name.startswith("value_head") else 0
    return Weights(sizes[True] + sizes[False], sizes[True], head)


def _gathered(parameter: Tensor, fsdp: FsdpConfig) -> int:
    given = fsdp.mixed_precision.param_dtype
    return parameter.numel() * (DTYPES[given].itemsize if given else parameter.element_size())


def _trained(sharded: list[nn.Parameter], fsdp: FsdpConfig) -> int:
    return sum(_gathered(p, fsdp) for p in sharded if p.requires_grad)
