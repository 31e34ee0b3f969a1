"""Lets several processes share one policy and add up their gradients.

| strategy | a rank holds | after a backward pass | good for |
|---|---|---|---|
| replicate | all of the policy | one all-reduce of what is trained | LoRA: little is trained |
| fsdp2 | its part of what is trained | reduce-scatter, layer by layer | training all weights |

Gradients are *summed*: the weights of the loss already hold the denominators of the whole optimizer batch. With fsdp2
each forward and backward pass runs collectives, so all ranks make equally many. A rollout runs none, because
:meth:`Shards.acting` gathers the whole weights first. With both, several ranks may compute each text together
(:mod:`embodied.parallel.teams`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import nn

from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.parallel.meshes import mesh_of
from embodied.parallel.same_weights import check_same_weights
from embodied.parallel.shard_sizes import is_shared, parts_of
from embodied.parallel.teams import Teams, teams_of
from embodied.parallel.units import lists_of, units_of
from embodied.protocols import HasDemonstrationLoss, Policy, SplitsTexts
from embodied.schema import AlgorithmConfig, FsdpConfig
from embodied.schema.keys.sections.fsdp import OF_SHARDS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REPLICATE = "actor.fsdp_config.strategy=replicate (or actor.training_backend=ddp, if that was set)"


class Replicas:
    """Every rank holds the whole policy (data parallel); one process does too.

    Args:
        world: all ranks.
        teams: of those that compute each text together; None = each computes texts of its own.
    """

    collective_passes = False  # True: each forward and backward pass runs collectives of all ranks

    def __init__(self, policy: Policy, world: Group, notes: Sequence[str] = (), teams: Teams | None = None) -> None:
        self.world, self.teams = world, teams or Teams(Group(), world)
        self.group = self.teams.across  # group of ranks with different records, each at least one of its own
        self.in_step = self.teams.team  # the ranks whose passes are collectives with this one's
        self.notes, self._policy = notes, policy
        self._parameters = [p for _, p in policy.named_parameters() if p.requires_grad]

    def __str__(self) -> str:
        return f"each with the whole policy (replicate){self._together}"

    @property
    def _together(self) -> str:
        return f", {size} for each text" if (size := self.teams.team.size) > 1 else ""

    def splitting(self) -> AbstractContextManager[None]:
        """Context in which the ranks of a team compute each text of :meth:`Policy.evaluate` together."""
        if self.teams.team.size == 1:
            return nullcontext()
        assert isinstance(self._policy, SplitsTexts)
        return self._policy.splitting(self.teams.team)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Prepares the policy to act, on each rank for itself, until the block ends. All ranks enter it."""
        yield

    def reshard(self) -> None:
        """Drops gathered parameters. Call it after the weights change."""

    def last_pass(self, last: bool) -> None:
        """Announces a backward pass, and whether it is the last of the optimizer batch, after which gradients are
        reduced."""

    def sum_gradients(self) -> None:
        """Adds up the gradients over ranks. A missing gradient counts as zero; a parameter that has none on any rank
        stays without."""
        if self.world.size == 1:
            return
        for dtype in {p.dtype for p in self._parameters}:
            _sum_in_one([p for p in self._parameters if p.dtype == dtype], self.world)

    def check(self) -> None:
        """Raises :class:`RanksDifferError` unless all ranks still hold the same trained weights."""
        check_same_weights(self._policy, self.world, trained_only=True)

    def clip(self, max_norm: float) -> float:
        """Clips the gradients to ``max_norm``; returns their 2-norm before that, over all parameters."""
        return torch.nn.utils.clip_grad_norm_(self._parameters, max_norm).item()


class Shards(Replicas):
    """Every rank holds a part of each weight of the policy (FSDP2)."""

    collective_passes = True

    def __init__(
        self, policy: Policy, fsdp: FsdpConfig, world: Group, device: torch.device, notes: Sequence[str] = (),
        teams: Teams | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(policy, nn.Module)
        self._reshard, self._accumulate = fsdp.reshard_after_forward, fsdp.enable_gradient_accumulation
        self._root: Any = policy
        passes = ["evaluate", *(["demonstration_loss"] if isinstance(policy, HasDemonstrationLoss) else [])]
        self._units = shard(policy, fsdp, world, device, *passes)
        super().__init__(policy, world, notes, teams)
        self.in_step = world

    def __str__(self) -> str:
        return f"each with its part of the policy (fsdp2, {len(self._units)} units){self._together}"

    @contextmanager
    def acting(self) -> Iterator[None]:
        self.reshard()
        for unit in self._units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        try:
            yield
        finally:
            for unit in self._units:
                unit.reshard()
                unit.set_reshard_after_forward(self._reshard and unit is not self._root, recurse=False)

    def reshard(self) -> None:
        for unit in self._units:
            unit.reshard()

    def last_pass(self, last: bool) -> None:
        if self._accumulate:
            self._root.set_requires_gradient_sync(last)

    def sum_gradients(self) -> None:
        """Does nothing: the backward pass has summed them."""

    def check(self) -> None:
        """Does nothing: no weight is held twice."""

    def clip(self, max_norm: float) -> float:
        norm: Any = torch.nn.utils.clip_grad_norm_(self._parameters, max_norm)
        return float((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item())


class Planned(Replicas):
    """Describes how a policy without memory would be shared, for a dry run. No process is connected."""

    units = 0  # fsdp2: how many

    def __str__(self) -> str:
        if self.units:
            return f"each with its part of the policy (fsdp2, {self.units} units){self._together}"
        return super().__str__()


Parallel = Replicas | Shards


def make_parallel(
    policy: Policy, fsdp: FsdpConfig, algorithm: AlgorithmConfig, group: Group, device: torch.device
) -> Parallel:
    """Shares ``policy`` as ``fsdp`` says. Call it before the optimizer is made: fsdp2 replaces the parameters.

    Raises:
        ConfigError: what was asked for does not work with fsdp2.
    """
    strategy, notes = strategy_of(policy, fsdp, algorithm, group)
    teams = teams_of(policy, group)
    if strategy == "replicate":
        return Replicas(policy, group, [*notes, *_without_effect(fsdp)], teams)
    _check_can_shard(policy, fsdp, algorithm, device)
    if not fsdp.offload_pin_memory and not fsdp.cpu_offload:
        notes.append("actor.fsdp_config.offload_pin_memory false: without cpu_offload nothing is kept on the host")
    return Shards(policy, fsdp, group, device, notes, teams)


def plan_parallel(
    policy: Policy, fsdp: FsdpConfig, algorithm: AlgorithmConfig, group: Group, device: torch.device
) -> Planned:
    """Like :func:`make_parallel`, for a policy without memory whose processes are not connected: nothing is shared."""
    strategy, notes = strategy_of(policy, fsdp, algorithm, group)
    teams = teams_of(policy, group)
    if strategy == "replicate":
        return Planned(policy, group, [*notes, *_without_effect(fsdp)], teams)
    _check_can_shard(policy, fsdp, algorithm, device)
    assert isinstance(policy, nn.Module)
    found = Planned(policy, group, notes, teams)
    found.collective_passes, found.units = True, 1 + len(units_of(policy, fsdp.wrap_policy))
    return found


def strategy_of(
    policy: Policy, fsdp: FsdpConfig, algorithm: AlgorithmConfig, group: Group
) -> tuple[Literal["replicate", "fsdp2"], list[str]]:
    """Returns how processes share ``policy``, and lines that say so. One process has a replica."""
    notes = ["actor.fsdp_config.strategy fsdp: it is FSDP2 that is used"] if fsdp.strategy == "fsdp" else []
    sharded = fsdp.strategy in ("fsdp", "fsdp2")
    if group.size == 1:
        return "replicate", [*notes, *(["fsdp2 shards nothing in one process"] if sharded else [])]
    trained = [p.requires_grad for _, p in policy.named_parameters()]
    if sharded and not all(trained) and not fsdp.shard_frozen:
        notes.append(
            f"fsdp2: {sum(trained)} of {len(trained)} weights are trained and shared out; the others each of the "
            f"{group.size} processes holds whole (actor.fsdp_config.shard_frozen=true shares them out, too)"
        )
    if fsdp.strategy == "auto":
        sharded = all(trained) and not algorithm.use_kl_in_reward
        told = "fsdp2" if sharded else "replicate"
        notes.append(f"{group.size} processes, {told}: {sum(trained)} of {len(trained)} weights are trained")
    return "fsdp2" if sharded else "replicate", notes


def _without_effect(fsdp: FsdpConfig) -> list[str]:
    """Names the keys without effect: those of fsdp2, where each process holds all of the policy."""
    given, usual = fsdp.model_dump(), FsdpConfig().model_dump()
    keys = [f"actor.fsdp_config.{name}" for name in OF_SHARDS if given[name] != usual[name]]
    return [f"without effect, as each process holds the whole policy: {', '.join(keys)}"] if keys else []


def _check_can_shard(policy: Policy, fsdp: FsdpConfig, algorithm: AlgorithmConfig, device: torch.device) -> None:
    if algorithm.use_kl_in_reward:
        raise ConfigError(
            "algorithm.use_kl_in_reward is true: each rank looks at its own records, and with fsdp2 all must make "
            "equally many passes",
            f"set {REPLICATE} or algorithm.use_kl_in_reward=false (the KL is then in the loss)",
        )
    if fsdp.cpu_offload and device.type == "cpu":
        raise ConfigError("actor.fsdp_config.cpu_offload is true, and the device is a CPU", "set it to false")
    if any(not p.is_floating_point() for _, p in policy.named_parameters()):
        raise ConfigError(
            "the policy has layers in 8 or 4 bits (actor.model.quantization_bit), which fsdp2 cannot share out",
            f"set {REPLICATE}, or actor.model.quantization_bit=null",
        )
    if not isinstance(policy, nn.Module):
        raise ConfigError(
            f"{type(policy).__name__} is no torch.nn.Module, which fsdp2 needs",
            f"set {REPLICATE}",
        )


def shard(policy: nn.Module, fsdp: FsdpConfig, group: Group, device: torch.device, *methods: str) -> list[Any]:
    """Wraps the units of ``policy`` and the rest of it; returns all of them, the root last. A collective.

    Args:
        policy: any network. What lies on the CPU is moved to ``device`` unit by unit.
        methods: names of its methods that make a forward pass, beside ``forward``.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method

    # Nothing here writes into what the policy answers, which may well be a view.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = mesh_of(group, parts_of(fsdp, group.size), device.type)
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": _precision(fsdp),
        "offload_policy": CPUOffloadPolicy(pin_memory=fsdp.offload_pin_memory) if fsdp.cpu_offload else OffloadPolicy(),
        "ignored_params": {p for p in policy.parameters() if not is_shared(p, fsdp)},
    }
    cast_buffers(policy, fsdp)
    units = [m for m in units_of(policy, fsdp.wrap_policy) if m is not policy]
    for unit in units:
        fully_shard(unit, reshard_after_forward=fsdp.reshard_after_forward, **options)
    fully_shard(policy, reshard_after_forward=False, **options)
    for method in methods:
        register_fsdp_forward_method(policy, method)
    wrapped: list[Any] = [*units, policy]
    for unit in wrapped:
        unit.set_gradient_divide_factor(1.0)  # the sum, not the mean
        unit.set_force_sum_reduction_for_comms(True)  # gloo has no other way to divide by one
    _set_prefetch(policy, units, fsdp)
    # A policy acts before its first pass, and then calls units without the root: torch would take one of them as root.
    wrapped[-1]._get_fsdp_state()._lazy_init()
    return wrapped


def _set_prefetch(policy: Any, units: Sequence[Any], fsdp: FsdpConfig) -> None:
    """Sets which units FSDP2 gathers before their turn. By itself, it prefetches in the backward pass alone.

    Only the elements of one list follow each other for certain. What is gathered early and then not used would be
    there in the next pass, with weights of before.
    """
    if fsdp.forward_prefetch:
        for layers in lists_of(policy):
            own: list[Any] = [layer for layer in layers if layer in units]
            for layer, following in pairwise(own):
                layer.set_modules_to_forward_prefetch([following])
    if fsdp.backward_prefetch in (False, "post", "backward_post"):
        for unit in (*units, policy):
            unit.set_modules_to_backward_prefetch([unit])  # prefetches itself, which is there by then: no prefetch


def cast_buffers(policy: nn.Module, fsdp: FsdpConfig) -> None:
    """Casts floating-point buffers to ``mixed_precision.buffer_dtype``; FSDP2 itself leaves buffers as they are."""
    if (name := fsdp.mixed_precision.buffer_dtype) is not None:
        for buffer in policy.buffers():
            if buffer.is_floating_point():
                buffer.data = buffer.data.to(DTYPES[name])


def _precision(fsdp: FsdpConfig) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    mixed = fsdp.mixed_precision
    return MixedPrecisionPolicy(
        param_dtype=DTYPES[mixed.param_dtype] if mixed.param_dtype else None,
        reduce_dtype=DTYPES[mixed.reduce_dtype] if mixed.reduce_dtype else None,
        cast_forward_inputs=False,  # log-probs at action time are an input, and must stay as they are
    )


def _sum_in_one(parameters: Sequence[nn.Parameter], group: Group) -> None:
    """Sums the gradients of ``parameters``, all of one format, in a buffer that ends with how many ranks have each."""
    device = parameters[0].device
    have = torch.tensor([p.grad is not None for p in parameters], dtype=parameters[0].dtype, device=device)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    buffer = group.sum(torch.cat([*(grad.flatten() for grad in grads), have]))
    *sums, counts = buffer.split([*(p.numel() for p in parameters), len(parameters)])
    for parameter, total, count in zip(parameters, sums, counts.tolist(), strict=True):
        parameter.grad = total.view_as(parameter) if count else None
