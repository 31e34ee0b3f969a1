"""Other values of the weights that are trained: those that training began with, for a KL penalty.

Only what is trained is kept a second time (adapters and heads with LoRA, all of it without). Exchanging is a swap of
pointers, or of values where a rank holds a part of each weight (fsdp2): the buffers in which the parts lie are known to
who gathers them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied.protocols import Policy


class OtherWeights:
    """Remembers the trainable weights that ``policy`` has now."""

    def __init__(self, policy: Policy) -> None:
        self._parameters = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self._kept = {name: p.detach().clone() for name, p in self._parameters.items()}

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Within it the policy has these weights, without gradients."""
        self._swap()
        try:
            with torch.no_grad():
                yield
        finally:
            self._swap()

    def follow(self, share: float) -> None:
        """Go so far towards the policy's present weights: 1 = become them."""
        with torch.no_grad():
            for name, kept in self._kept.items():
                kept.lerp_(self._parameters[name].detach(), share) if share < 1 else kept.copy_(self._parameters[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Name → what is kept, not a copy."""
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, kept in self._kept.items():
            kept.copy_(state[name])

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            if isinstance(parameter, DTensor):
                _exchange(parameter, self._kept[name])
            else:
                parameter.data, self._kept[name] = self._kept[name], parameter.data


@torch.no_grad()
def _exchange(one: Tensor, other: Tensor) -> None:
    assert isinstance(one, DTensor)
    assert isinstance(other, DTensor)
    before = one.to_local().clone()
    one.to_local().copy_(other.to_local())
    other.to_local().copy_(before)


class Reference(OtherWeights):
    """The policy that a KL is measured from. A resumed run builds the policy before it loads the checkpoint, so these
    are the weights of the run's beginning, unless ``algorithm.reference_reset_interval`` has moved them."""


class Average(OtherWeights):
    """The exponential moving average of the weights over optimizer steps (``actor.optim.ema_decay``)."""
