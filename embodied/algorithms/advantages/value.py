"""Losses of the value head, element by element; an element is a record or an action (``algorithm.reward_type``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from embodied.errors import unknown_name

ValueLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(values, old_values, targets) → loss``, all float [N, V]."""


def make_value_loss(value_loss: str, value_clip: float | None, huber_delta: float) -> ValueLoss:
    """The loss called ``value_loss`` (``algorithm.value_loss``), clipped around the old values if ``value_clip``.

    Raises:
        UnknownNameError: ``value_loss`` is not known.
    """
    known: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"huber": partial(huber, delta=huber_delta), "mse": squared}
    if value_loss not in known:
        raise unknown_name("value loss", value_loss, known, "algorithm.value_loss")
    return partial(clipped, loss=known[value_loss], value_clip=value_clip)


def huber(values: Tensor, targets: Tensor, delta: float) -> Tensor:
    """``d²/2`` where ``|d| ≤ δ``, else ``δ(|d| − δ/2)``, with ``d = V − target``: Huber (1964), equation 2.6."""
    return F.huber_loss(values, targets, reduction="none", delta=delta)


def squared(values: Tensor, targets: Tensor) -> Tensor:
    """``d²/2``, so that ``huber`` of a large δ is the same."""
    return 0.5 * (values - targets) ** 2


def clipped(
    values: Tensor, old_values: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor],
    value_clip: float | None,
) -> Tensor:  # fmt: skip
    """``max(L(V), L(clip(V, V_old ± value_clip)))``: the value clip of PPO's reference code (arXiv 2005.12729, section
    3). An element beyond the clip has no gradient unless it lies on the side away from its target.

    Args:
        values: now, differentiable [N, V].
        old_values: at action time [N, V].
        targets: [N, V].
        value_clip: None for off.
    """
    plain = loss(values, targets)
    if value_clip is None:
        return plain
    return torch.maximum(plain, loss(old_values + (values - old_values).clamp(-value_clip, value_clip), targets))
