"""Random actions where a policy is expected (``embodied play --random``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from embodied.random import Stream, generator
from embodied.runtime.policy_port import Draw, PolicyPort, Request
from embodied.runtime.slab import Slab
from embodied.types import ActionSpec, ArraySpec, Elements, EnvSpec, Noise, PolicySpec


class RandomActions:
    """Stands where a policy is expected: each action is drawn evenly from the env's range.

    Args:
        env: whose actions are drawn.
        seed: keys the draws; those of a decision are a function of the seed, the episode and the decision's number.
    """

    def __init__(self, env: EnvSpec, seed: int) -> None:
        self._action, self._seed = env.action, seed

    @property
    def spec(self) -> PolicySpec:
        decision: dict[str, ArraySpec] = {"actions": self._action.field(1)}
        return PolicySpec(1, decision, Elements((1,)), Noise((1,)), entropy=False, distribution=False)

    def port(self, slab: Slab) -> PolicyPort:
        """See :class:`embodied.runtime.policy_port.OffersPort`."""
        return RandomPort(slab, self._action, self._seed)

    def bind(self, env: EnvSpec) -> None:
        """Does nothing: it was made for the env."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """There are none."""
        return iter(())

    def describe(self) -> Mapping[str, str]:
        return {"actions": "random"}


class RandomPort:
    """A policy port that draws the action of each request into its row."""

    def __init__(self, slab: Slab, action: ActionSpec, seed: int) -> None:
        self._slab, self._action, self._seed = slab, action, seed
        self._queue: list[Request] = []

    def begin(self, draw: Draw) -> None:
        self._queue = []

    def submit(self, requests: Sequence[Request]) -> None:
        self._queue.extend(requests)

    def poll(self) -> list[Request]:
        answered, self._queue = self._queue, []
        for one in answered:
            drawn = generator(self._seed, Stream.RANDOM_ACTIONS, one.t, one.episode_id)
            self._slab.arrays["actions"][one.row] = self._action.sample(drawn, 1)
        return answered

    def cancel(self, slot: int) -> None:
        self._queue = [request for request in self._queue if request.slot != slot]

    @property
    def pending(self) -> int:
        return len(self._queue)

    def value(self, requests: Sequence[Request]) -> None:
        """Writes nothing: an evaluation asks for no values."""

    def end(self) -> None:
        self._queue = []
