"""Scores demonstrated decisions with a policy: log-probs of the tokens that stand for the actions, or a loss.

A policy of tokens offers ``encode_actions`` (:class:`embodied.protocols.Clonable`), and its log-probs are taken one by
one. Any other offers ``demonstration_loss`` (:class:`embodied.protocols.HasDemonstrationLoss`), a loss of each action;
its negative then stands where a log-prob would, so that one term (:mod:`embodied.learn.terms.nll`) serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.layout import Counts, Layout, step_mask
from embodied.errors import ConfigError, SpecMismatchError
from embodied.learn.terms.term import OptimizerBatch
from embodied.protocols import Clonable, HasDemonstrationLoss, Policy
from embodied.random import Stream, generator
from embodied.types import PolicySpec, Sampling

LIKELIEST = Sampling(do_sample=False)
WRITE = "demonstration_loss(records, actions, noise) (embodied.protocols.HasDemonstrationLoss)"


class Imitation(Protocol):
    """Scores demonstrated decisions with one policy. A decision has M elements, of which some count."""

    horizon: int
    """H, the actions of each demonstrated chunk; usually as many as the policy's decisions have."""

    @property
    def length_axis(self) -> int | None:
        """The axis along which decisions end early, as texts do."""
        ...

    def encode(self, actions: Tensor) -> Mapping[str, Tensor]:
        """The fields of a decision that stand for the actions [m, H, …]."""
        ...

    def counts(self, steps: Tensor, actions: Callable[[], Tensor]) -> Counts:
        """Returns the control steps and lengths of n decisions that count.

        Args:
            steps: actions of each that were taken, int64 [n].
            actions: reads those of the n decisions, if they are needed.
        """
        ...

    def mask(self, counts: Counts) -> Tensor:
        """Returns the mask of elements that count, bool [n, M]."""
        ...

    def logprobs(
        self, records: Mapping[str, Tensor], encoded: Mapping[str, Tensor], numbers: np.ndarray, validation: bool
    ) -> Tensor:
        """Log-probs of m decisions or the negatives of their losses, float32 [m, M].

        Args:
            numbers: of the samples, by which their noise is drawn, int64 [m].
        """
        ...

    def likeliest(self, records: Mapping[str, Tensor], encoded: Mapping[str, Tensor]) -> Tensor | None:
        """Returns where the policy would choose the demonstrated token, bool [m, M]; None with continuous actions."""
        ...


def make_imitation(policy: Policy, seed: int) -> Imitation:
    """Chooses the loss that the policy brings, else the log-probs of tokens.

    Args:
        seed: of the run.

    Raises:
        ConfigError: the policy offers neither.
    """
    if isinstance(policy, HasDemonstrationLoss):
        return Losses(policy, seed)
    return Tokens(policy)


class Tokens(Imitation):
    """Scores demonstrated decisions with the log-probs of the tokens that
    :meth:`embodied.protocols.Clonable.encode_actions` gives."""

    def __init__(self, policy: Policy) -> None:
        name, spec = type(policy).__name__, policy.spec
        self.horizon = spec.num_action_chunks
        if not isinstance(policy, Clonable):
            raise ConfigError(
                f"{name} cannot learn from demonstrations",
                "choose another model, or add encode_actions (embodied.protocols.Clonable) for actions that are "
                f"tokens, {WRITE} for any others",
            )
        self._policy: Any = policy
        self._layout = Layout(spec.elements, spec.num_action_chunks)
        if "token_level" not in self._layout.levels:
            raise ConfigError(
                f"{name} counts its log-probs by {' or '.join(self._layout.levels)}, and learning "
                "from demonstrations takes them one by one",
                f"write its method {WRITE}, or choose another model",
            )

    @property
    def length_axis(self) -> int | None:
        return self._layout.elements.length_axis

    def encode(self, actions: Tensor) -> Mapping[str, Tensor]:
        fields: Mapping[str, Tensor] = self._policy.encode_actions(actions)
        return fields

    def counts(self, steps: Tensor, actions: Callable[[], Tensor]) -> Counts:
        if self.length_axis is None:
            return Counts(steps, None)
        return Counts(steps, self.encode(actions())["length"].long().cpu())

    def mask(self, counts: Counts) -> Tensor:
        return self._layout.mask(counts, "token_level")

    def logprobs(
        self, records: Mapping[str, Tensor], encoded: Mapping[str, Tensor], numbers: np.ndarray, validation: bool
    ) -> Tensor:
        logprobs: Tensor = self._policy.evaluate({**records, **encoded}, Sampling()).logprobs
        return logprobs.flatten(1)

    def likeliest(self, records: Mapping[str, Tensor], encoded: Mapping[str, Tensor]) -> Tensor | None:
        names, spec = [name for name in encoded if name in self._policy.spec.categories], self._policy.spec
        if not names or spec.noise.greedy:  # then there is no likeliest token
            return None
        m, device = len(records["actions"]), records["actions"].device
        chosen = self._policy.act(records, torch.zeros(m, *spec.noise.shape, device=device), LIKELIEST).fields
        return torch.stack([chosen[name] == encoded[name] for name in names]).all(dim=0).flatten(1)


class Losses(Imitation):
    """Scores demonstrated decisions with the policy's own loss of each action. A decision has H elements."""

    length_axis = None

    def __init__(self, policy: Any, seed: int) -> None:
        spec: PolicySpec = policy.spec
        self._policy, self._seed, self.horizon = policy, seed, spec.horizon or spec.num_action_chunks
        self._declared = spec.demonstration_noise or spec.noise

    def encode(self, actions: Tensor) -> Mapping[str, Tensor]:
        return {}

    def counts(self, steps: Tensor, actions: Callable[[], Tensor]) -> Counts:
        return Counts(steps, None)

    def mask(self, counts: Counts) -> Tensor:
        return step_mask(counts.num_steps, self.horizon)

    def logprobs(
        self, records: Mapping[str, Tensor], encoded: Mapping[str, Tensor], numbers: np.ndarray, validation: bool
    ) -> Tensor:
        actions = records["actions"]
        noise = torch.from_numpy(self._noise(numbers, validation)).to(actions.device)
        losses: Tensor = self._policy.demonstration_loss(records, actions, noise)
        wanted = (len(actions), self.horizon)
        if losses.shape != wanted:
            raise SpecMismatchError(
                f"demonstration_loss() of {type(self._policy).__name__}: got shape {list(losses.shape)}, expected "
                f"{list(wanted)}",
                "give a loss of each of the actions; the runtime averages over those that were taken",
            )
        return -losses

    def _noise(self, numbers: np.ndarray, validation: bool) -> np.ndarray:
        """Float32 [m, *noise.shape], of each sample by its number."""
        stream = Stream.DEMONSTRATION_NOISE
        drawn = (generator(self._seed, stream, int(number), int(validation)) for number in numbers)
        return np.stack([self._declared.draw(one) for one in drawn])

    def likeliest(self, records: Mapping[str, Tensor], encoded: Mapping[str, Tensor]) -> Tensor | None:
        return None


def demonstrated(counts: Counts, mask: Tensor) -> OptimizerBatch:
    """Makes an optimizer batch of n demonstrated decisions, each with equal weight."""
    n, elements = len(mask), int(mask.sum())
    return OptimizerBatch(
        counts, torch.arange(n), mask, mask.float() / max(elements, 1), torch.ones(mask.shape),
        torch.ones(n, dtype=torch.bool), torch.zeros(n, 1), None, None, elements=elements,
    )  # fmt: skip
