"""Counts the weights of a reward model that a process holds, from the headers of its files. Needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from embodied.parallel.shard_sizes import part_of, shard_sizes
from embodied.schema.keys.sections.reward import RewardModelConfig
from embodied.weights.header import read_header
from embodied.weights.listing import counted_files

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
ELEMENT = re.compile(r"(.*?\.\d+)\.")  # an element of the outermost list of modules, in the name of a weight


@dataclass(frozen=True)
class RewardMemory:
    """Bytes of a reward model's weights in one process."""

    held: int  # bytes at all times
    gathered: int = 0  # bytes added while several processes score: the largest layer, and all weights outside layers
    waits: bool = False  # True: rests in host memory until it scores


def of_reward_model(model: RewardModelConfig, size: int) -> RewardMemory | None:
    """Returns the memory of a reward model in each of ``size`` processes. None: its folder has no files of
    safetensors, or it has no folder."""
    given = model.model_extra or {}
    found: dict[str, Sequence[int]] = {}
    for file in counted_files(given.get("model_path")):
        found |= {name: entry.shape for name, entry in read_header(file).items()}
    if not found:
        return None
    each, waits = BYTES.get(str(given.get("precision")), 4), bool(given.get("offload_weight"))
    if size == 1 or not model.sharded:
        return RewardMemory(sum(map(math.prod, found.values())) * each, waits=waits)
    held = sum(part_of(shape, size) for shape in found.values())
    layers = ((inside[1] if (inside := ELEMENT.match(name)) else None, math.prod(found[name])) for name in found)
    gathered = shard_sizes(layers, model.wrap_policy.min_num_params).gathered()
    return RewardMemory(held * each, gathered * each, waits)
