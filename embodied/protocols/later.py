"""What a policy may offer whose answers are computed elsewhere and come when they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from embodied.types import Sampling


@runtime_checkable
class AnswersLater(Protocol):
    """Interface of a policy that is asked now and answers later, such as one behind a policy server; offered beside
    :class:`embodied.protocols.Policy`, whose ``act`` asks for all and waits for all. Then
    ``embodied.runtime.policy.later`` answers observations, each as soon as its answer is there.

    Promises: an answer is a function of weights, observation, instruction, noise and sampling, as far as what computes
    it is repeatable. Neither its number nor what else is asked changes it. A policy around another one delegates to it.

    Methods are called from one thread at a time.
    """

    def ask(
        self, number: int, obs: Mapping[str, np.ndarray], instruction: str, noise: np.ndarray, sampling: Sampling,
        place: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Asks for the decision on one observation, and returns at once. It may be sent only by the next
        :meth:`answers`, together with what else was asked before that.

        Args:
            number: names the answer; no other that was not forgotten has it.
            obs: fields of ``EnvSpec.obs``, without the batch axis. The arrays may change after this returns.
            noise: float32 [*spec.noise.shape], the only source of randomness.
            sampling: as in :meth:`embodied.protocols.Policy.act`.
            place: id of the episode and index of the decision in it, for servers that must be told; None: not known.
        """
        ...

    def answers(self, timeout_s: float) -> Sequence[tuple[int, Mapping[str, np.ndarray]]]:
        """Waits until an answer is there, at most ``timeout_s`` seconds; returns all that are, in any order.

        Each is a number that was asked and not forgotten, with the decision: the fields of ``spec.decision``, without
        the batch axis.

        Raises:
            EmbodiedError: something that was asked cannot be answered. The rollout ends.
        """
        ...

    def forget(self, number: int) -> None:
        """Drops what was asked under ``number``: it is never returned. Nothing happens if it was answered."""
        ...

    def check(self) -> None:
        """Checks that what answers is what answered first, when nothing is under way: before a rollout and after it.

        Raises:
            PolicyChangedError: it is another policy. No episode of the rollout counts.
        """
        ...


@runtime_checkable
class NamesWeights(Protocol):
    """Interface of a policy whose weights are elsewhere, where nobody but itself can say whose they are. An evaluation
    that was interrupted goes on with equal ones alone."""

    def weights(self) -> Mapping[str, str]:
        """Returns what is known of the weights that answer, e.g. ``{"server": "ws://…", "fingerprint": "3f0c…"}``.
        Called after ``bind``."""
        ...
