"""Second values of the trained weights: those of a KL penalty's reference, a moving average, and older ones that act
(:mod:`embodied.learn.acting`).

Only what is trained is kept a second time (adapters and heads with LoRA, everything without). An exchange swaps
pointers. With fsdp2 it swaps values, because FSDP knows the buffers in which a rank's parts lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied.learn.step.resting import give_back, to_device, to_host
from embodied.protocols import Policy


class OtherWeights:
    """A second set of trainable weights for ``policy``, beginning as a copy of those that it has now."""

    def __init__(self, policy: Policy) -> None:
        self._parameters = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self._kept = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._resting = False

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Context in which the policy has these weights, without gradients."""
        self._wake()
        self._swap()
        try:
            with torch.no_grad():
                yield
        finally:
            self._swap()

    def follow(self, share: float) -> None:
        """Moves the kept weights towards the policy's present ones: ``kept += share · (present − kept)``."""
        self._wake()
        with torch.no_grad():
            for name, kept in self._kept.items():
                kept.lerp_(self._parameters[name].detach(), share) if share < 1 else kept.copy_(self._parameters[name])

    def stand_in(self, copy: Policy) -> None:
        """Makes the kept tensors the trained weights of a copy of the policy. They must not rest from then on."""
        for name, parameter in copy.named_parameters():
            if name in self._kept:
                parameter.data = self._kept[name]

    def rest(self) -> None:
        """Moves the kept weights to host memory, until they are next needed."""
        self._kept, self._resting = {name: to_host(kept) for name, kept in self._kept.items()}, True
        for device in {parameter.device for parameter in self._parameters.values()}:
            give_back(device)

    def _wake(self) -> None:
        if self._resting:
            self._kept = {name: to_device(kept, self._parameters[name].device) for name, kept in self._kept.items()}
            self._resting = False

    def state_dict(self) -> dict[str, Tensor]:
        """The kept weights by name, not copies."""
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
    """The reference policy of a KL. It has the weights of the run's beginning, also in a resumed run, which
    builds the policy before it loads the checkpoint. ``algorithm.reference_reset_interval`` moves it."""

    def restarts(self, iteration: int, interval: int | None) -> bool:
        """Moves it to the policy's present weights if ``interval`` iterations are over; returns whether they are."""
        if interval is None or iteration == 0 or iteration % interval:
            return False
        self.follow(1.0)
        return True


class Average(OtherWeights):
    """The exponential moving average of the weights over optimizer steps (``actor.optim.ema_decay``)."""
