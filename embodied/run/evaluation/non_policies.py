"""Stand-ins for a policy in evaluations: random actions, and answers from a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch

from embodied.runtime.policy.policy_port import Draw, PolicyPort, Request
from embodied.runtime.slab import Slab
from embodied.types import ActionSpec, ArraySpec, Elements, EnvSpec, Noise, PolicySpec


class StandIn:
    """Base class of stand-ins for a policy in evaluations: they have an action and no weights.

    Args:
        action: what the env takes; each decision is one of them.
    """

    def __init__(self, action: ActionSpec) -> None:
        self._action = action

    @property
    def spec(self) -> PolicySpec:
        decision: dict[str, ArraySpec] = {"actions": self._action.field(1)}
        return PolicySpec(1, decision, Elements((1,)), Noise((1,)), entropy=False, distribution=False)

    def bind(self, env: EnvSpec) -> None:
        """Does nothing: the stand-in was made for its env."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yields nothing: there are no parameters."""
        return iter(())


class ImmediatePort(PolicyPort, ABC):
    """Base class of a policy port that answers everything pending at each poll
    (:class:`embodied.runtime.policy.policy_port.PolicyPort`)."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._queue: list[Request] = []

    @abstractmethod
    def answer(self, request: Request) -> None:
        """Writes the decision into the row of a request."""

    def begin(self, draw: Draw) -> None:
        self._queue = []

    def submit(self, requests: Sequence[Request]) -> None:
        self._queue.extend(requests)

    def poll(self) -> list[Request]:
        answered, self._queue = self._queue, []
        for request in answered:
            self.answer(request)
        return answered

    def cancel(self, slot: int) -> None:
        """Drops the pending request of a slot."""
        self._queue = [request for request in self._queue if request.slot != slot]

    @property
    def pending(self) -> int:
        return len(self._queue)

    def value(self, requests: Sequence[Request]) -> None:
        """Writes nothing: an evaluation asks for no values."""

    def end(self, whole: bool = True) -> None:
        self._queue = []
