"""Turns torch's error about a full device into one that names the keys to lower, with their present values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from embodied import schema
from embodied.errors import DeviceMemoryError
from embodied.parallel.group import Group
from embodied.run.build.shares import slots_of
from embodied.run.build.simulators import policy_batch

Phase = Literal["rollout", "update"]


@contextmanager
def explained(device: torch.device, config: schema.Config, processes: Group, phase: Phase) -> Iterator[None]:
    """Context that turns torch's out-of-memory error into one with the memory's figures and the keys that matter in
    this phase.

    Raises:
        DeviceMemoryError: instead of ``torch.OutOfMemoryError``.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        doing = {"rollout": "while the policy acted", "update": "in the forward and backward passes"}[phase]
        raise DeviceMemoryError(
            f"{device} is out of memory {doing}: {str(error).splitlines()[0]}{_figures(device)}",
            "; or ".join(remedies(config, processes, phase)),
        ) from error


def remedies(config: schema.Config, processes: Group, phase: Phase, on_gpu: bool = True) -> list[str]:
    """Returns the settings that lower memory, the cheapest first, with present values.

    Args:
        on_gpu: it is a GPU's that is too small.
    """
    actor, model = config.actor, {**(config.actor.model.model_extra or {})}
    found = []
    if phase == "update" and actor.micro_batch_size > 1:
        found.append(_lower("actor.micro_batch_size", actor.micro_batch_size) + " (the result stays the same)")
    if phase == "rollout" and (rows := policy_batch(config.rollout, slots_of(config, processes))) > 1:
        found.append(_lower("rollout.policy_batch", rows))
    if phase == "rollout" and not (config.runner.only_eval or actor.offload_optimizer or actor.fsdp_config.cpu_offload):
        found.append("set actor.offload_optimizer=true (now false; the result stays the same)")
    if phase == "rollout" and config.rollout.backend != "native" and not actor.offload_weight:
        found.append("set actor.offload_weight=true (now false; the result stays the same)")
    judged = config.reward.use_reward_model and not config.reward.model.sharded
    if phase == "rollout" and judged and not config.algorithm.max_staleness:
        several = "" if processes.size > 1 else ", in several processes (torchrun)"
        found.append(f"set reward.model.strategy=fsdp2 (now replicate){several}")
    if phase == "update" and model.get("gradient_checkpointing") is False:
        found.append("set actor.model.gradient_checkpointing=true (now false)")
    if model.get("precision") == "fp32":
        found.append("set actor.model.precision=bf16 (now fp32)")
    size, learners = schema.context_parallel_size(config), processes.of("train").size
    if phase == "update" and "max_prompt_tokens" in model and learners % (2 * size) == 0:
        found.append(f"set actor.model.context_parallel_size={2 * size} (now {size}: processes that compute each text)")
    fewer_bits = _fewer_bits(config, model) if on_gpu and processes.size == 1 else []
    if phase == "update" and not fewer_bits:  # a card that is too small is one card
        found += _sharing(actor.fsdp_config, learners)
    found += fewer_bits
    return found or ["use a smaller model, or a device with more memory"]


def _fewer_bits(config: schema.Config, model: Mapping[str, Any]) -> list[str]:
    """Offers frozen weights of fewer bits to a policy that can have them and does not."""
    compiled = model.get("torch_compile") or config.rollout.use_torch_compile
    if model.get("quantization_bit", 4) is not None or not model.get("is_lora") or compiled:
        return []
    whole = "" if "max_prompt_tokens" in model else "; experiment=libero_12gb is a whole configuration with it"
    return [
        "set actor.model.quantization_bit=4 (now null: the frozen layers of the language model in 4 bits, "
        f"pip install 'embodied-rl[quantize]'{whole})"
    ]


def _sharing(fsdp: schema.FsdpConfig, processes: int) -> list[str]:
    if processes == 1:
        return ["start more processes, each with a part of the policy (torchrun, actor.fsdp_config.strategy=fsdp2)"]
    if fsdp.strategy in ("auto", "replicate"):
        return [f"set actor.fsdp_config.strategy=fsdp2 (now {fsdp.strategy})"]
    return [] if fsdp.cpu_offload else ["set actor.fsdp_config.cpu_offload=true (now false)"]


def _lower(key: str, value: int) -> str:
    return f"set {key}={value // 2} (now {value})"


def _figures(device: torch.device) -> str:
    """Returns a line with the bytes on the device, or nothing where it cannot tell them."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    used, most = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    numbers = {"of": total, "free": free, "held by this process": used, "at most": most}
    return "\n  memory: " + ", ".join(f"{name} {value / 2**30:.1f} GiB" for name, value in numbers.items())
