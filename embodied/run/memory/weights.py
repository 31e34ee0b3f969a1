"""Weights by the kind of layer that they belong to, tensor by tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from embodied.protocols import Policy

KINDS: Mapping[str, str] = {
    "adapters": r"\.lora_",
    "value head": r"^value_head",
    "vision backbones": r"vision|featurizer",
    "projector": r"projector",
    "attention": r"\battn\b|self_attn",
    "mlp": r"\bmlp\b|feed_forward",
    "embeddings": r"embed|wte",
    "language model's head": r"lm_head",
    "norms": r"norm",
}
"""Kind → what stands in the names of its weights; the first that fits counts."""


@dataclass
class Kind:
    """Bytes and number of tensors in one kind of layer."""

    bytes: int = 0
    tensors: int = 0


def kinds_of(policy: Policy) -> dict[str, Kind]:
    """Counts parameters and buffers (scales of weights in few bits, tables) of a whole policy by kind; the bytes of
    all kinds are those of all weights."""
    found: dict[str, Kind] = {}
    buffers = policy.named_buffers() if isinstance(policy, nn.Module) else ()
    for name, one in (*policy.named_parameters(), *buffers):
        kind = found.setdefault(_kind(name), Kind())
        kind.bytes += one.nbytes
        kind.tensors += 1
    order = [*KINDS, "others"]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _kind(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "others")
