"""Random actions where a policy is expected (``embodied play --random``)."""

from __future__ import annotations

from collections.abc import Mapping

from embodied.random import Stream, generator
from embodied.run.evaluation.non_policies import ImmediatePort, StandIn
from embodied.runtime.policy.policy_port import PolicyPort, Request
from embodied.runtime.slab import Slab
from embodied.types import ActionSpec, EnvSpec


class RandomActions(StandIn):
    """Random actions in place of a policy: each is drawn evenly from the env's range.

    Args:
        env: whose actions are drawn.
        seed: keys the draws; those of a decision are a function of the seed, the episode and the decision's number.
    """

    def __init__(self, env: EnvSpec, seed: int) -> None:
        super().__init__(env.action)
        self._seed = seed

    def port(self, slab: Slab) -> PolicyPort:
        """Makes the policy port that draws random actions (:class:`embodied.runtime.policy.policy_port.OffersPort`)."""
        return RandomPort(slab, self._action, self._seed)

    def describe(self) -> Mapping[str, str]:
        return {"actions": "random"}


class RandomPort(ImmediatePort):
    """A policy port that draws the action of each request into its row."""

    def __init__(self, slab: Slab, action: ActionSpec, seed: int) -> None:
        super().__init__(slab)
        self._action, self._seed = action, seed

    def answer(self, request: Request) -> None:
        drawn = generator(self._seed, Stream.RANDOM_ACTIONS, request.t, request.episode_id)
        self._slab.arrays["actions"][request.row] = self._action.sample(drawn, 1)
