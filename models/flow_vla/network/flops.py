"""FLOPs of a record by formula: two for each multiply-add of a matrix product or convolution.

Norms, activations, adapters and the value head are left out. Shapes: N patches of a picture, P tokens of the prefix, S
of the suffix, H actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

from .blocks import AdaptiveNorm
from .model import FlowVLA


@dataclass(frozen=True)
class Part:
    """FLOPs of a forward pass through a part of the network, and what a backward pass does in it."""

    linears: int
    attention: int
    trained: bool  # its weights get gradients
    reached: bool  # a gradient goes through it

    def passes(self, training: bool) -> int:
        """FLOPs of the forward pass, with ``training`` of the backward pass too: one forward pass for the gradients of
        activations (of attention two), and one for those of weights."""
        if not training:
            return self.linears + self.attention
        return self.linears * (1 + self.reached + self.trained) + self.attention * (1 + 2 * self.reached)


def record_flops(model: FlowVLA, pictures: int, prompt: int, steps: int, training: bool) -> int:
    """Counts the FLOPs of a record: one pass of the trunk, and as many of the expert as it has stochastic steps.

    Args:
        pictures: that are read.
        prompt: tokens of the prompt, padding included.
        steps: stochastic steps of the record.
    """
    prefix = pictures * model.sizes.image_tokens + prompt + (model.sizes.state_place == "prefix")
    parts = [_tower(model, pictures), _trunk(model, prefix), _projected(model, prefix)]
    found = sum(part.passes(training) for part in parts)
    return found + steps * _expert(model, prefix).passes(training)


def _tower(model: FlowVLA, pictures: int) -> Part:
    tower, sizes = model.sizes.tower, model.sizes
    side = sizes.image_size // tower.patch
    patches = side * side
    products = patches * (_linears(model.vision.encoder) + 2 * 3 * tower.patch**2 * tower.width)
    products += sizes.image_tokens * _linears(model.projector)
    attention = tower.layers * 4 * patches * patches * tower.width
    trained = _trained(model.vision, model.projector)
    return Part(pictures * products, pictures * attention, trained, trained)


def _trunk(model: FlowVLA, prefix: int) -> Part:
    """The trunk and, in SmolVLA, the state in front of it."""
    sizes, streams = model.sizes, [layer.trunk for layer in _layers(model)]
    whole = sum(hasattr(stream, "mlp") for stream in streams)
    first = [model.state_proj] if sizes.state_place == "prefix" else []
    products = prefix * sum(map(_linears, streams)) + sum(map(_linears, first))
    attention = whole * 4 * prefix * prefix * sizes.heads * sizes.head_dim
    below = _trained(model.vision, model.projector, model.embed_tokens, *first, *streams, adapters=True)
    return Part(products, attention, _trained(*streams), below)


def _projected(model: FlowVLA, prefix: int) -> Part:
    """The trunk's keys and values as layers of cross-attention project them, once for all steps."""
    projections = [layer.expert.self_attn for layer in _layers(model) if layer.cross]
    products = prefix * sum(_linears(one.k_proj) + _linears(one.v_proj) for one in projections)
    below = _trained(model.vision, model.projector, *(layer.trunk for layer in _layers(model)), adapters=True)
    return Part(products, 0, _trained(*projections), below)


def _expert(model: FlowVLA, prefix: int) -> Part:
    """One denoising step."""
    sizes = model.sizes
    first = [model.state_proj] if sizes.state_place == "suffix" else []
    suffix = sizes.horizon + len(first)
    streams = [layer.expert for layer in _layers(model)]
    norms = [part for part in (*chain(*(s.modules() for s in streams)), model.expert_norm)
             if isinstance(part, AdaptiveNorm)]  # fmt: skip
    once = sum(map(_linears, (*norms, *first)))
    times = _linears(model.time_mlp_in) + _linears(model.time_mlp_out)
    actions = _linears(model.action_in_proj) + _linears(model.action_out_proj)
    crossed = [layer.expert.self_attn for layer in _layers(model) if layer.cross]
    layers = sum(map(_linears, streams)) - sum(_linears(one.k_proj) + _linears(one.v_proj) for one in crossed)
    layers -= sum(_linears(norm) for norm in norms if norm is not model.expert_norm)
    products = suffix * layers + sizes.horizon * actions + once + times * (1 if sizes.adaptive else sizes.horizon)
    seen = len(crossed) * prefix + (len(streams) - len(crossed)) * (prefix + suffix)
    return Part(products, 4 * suffix * seen * sizes.heads * sizes.head_dim, _trained(*streams), True)


def _layers(model: FlowVLA) -> list[Any]:
    return list(model.layers)


def _linears(module: nn.Module) -> int:
    """FLOPs of a token through all linear layers of a module, without adapters."""
    linears = [m for name, m in module.named_modules() if isinstance(m, nn.Linear) and "lora_" not in name]
    return sum(2 * linear.in_features * linear.out_features for linear in linears)


def _trained(*modules: nn.Module, adapters: bool = False) -> bool:
    """Returns whether weights of these modules are trained; with ``adapters`` or their adapters."""
    named = chain(*(module.named_parameters() for module in modules))
    return any(p.requires_grad for name, p in named if adapters or ".lora_" not in name)
