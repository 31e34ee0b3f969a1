"""The policy that acts where some processes only collect and others train: its weights are sent, or received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from embodied.learn.acting import Acting
from embodied.learn.ranks.weights import Named, Receiver, Sender
from embodied.protocols import Policy


class Sent(Acting):
    """Weights that act in this process, if it collects, and that it sends to those that only collect.

    Args:
        own: chooses the weights.
        acts: this process collects as well.
    """

    def __init__(self, own: Acting, sender: Sender, acts: bool, average: bool) -> None:
        self._own, self._sender, self._acts, self._average = own, sender, acts, average
        super().__init__(own.policy)
        self._present = 0

    def takes(self, iteration: int) -> bool:
        return self._own.takes(iteration)

    def begin(self, iteration: int, version: int) -> None:
        self._own.begin(iteration, version)
        self.version = self._own.version

    def weights(self) -> AbstractContextManager[None]:
        self._sender.send(self._own.trained(), self.version)
        return self._own.weights() if self._acts else nullcontext()

    def send_ahead(self, learns: Policy, version: int) -> None:
        """Sends the weights of ``learns`` ahead."""
        self._sender.send_ahead(_trained(learns), version)

    def check(self) -> None:
        self._sender.check()

    def evaluates(self, learns: Policy, version: int) -> AbstractContextManager[None]:
        """Context in which the policy that acts, here and elsewhere, has the weights of ``learns``."""
        self._sender.send(_trained(learns), version, self._average)
        return self._own.evaluated()

    def state_dict(self) -> dict[str, Any]:
        return self._own.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        self._own.load_state_dict(state, version)
        self.version = self._own.version
        self._sender.forget()


class Received(Acting):
    """The policy of a process that only collects: its trained tensors come from those that train."""

    def __init__(self, policy: Policy, receiver: Receiver) -> None:
        super().__init__(policy)
        self._receiver = receiver

    def weights(self) -> AbstractContextManager[None]:
        self.version = self._receiver.receive()
        return nullcontext()

    def check(self) -> None:
        self._receiver.check()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        self._receiver.receive()
        yield


def _trained(policy: Policy) -> Named:
    return {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}
