"""Masks log-probs that do not count, and reduces the others to token, action or chunk level.

Shape letters: N decisions, K actions of a decision (control steps), M₀ elements of a decision (its log-probs, flattened
in row-major order), M elements at some level: M₀ (``token_level``), K (``action_level``) or 1 (``chunk_level``: of a
text the whole sequence), V rewards of a decision (:mod:`embodied.algorithms.rewards`).

| decision | ``Elements`` | element counts if |
|---|---|---|
| K actions of A tokens | ``(K, A), action_axis=0`` | its action was executed |
| one log-prob an action | ``(K,), action_axis=0`` | its action was executed |
| a chain of D denoising steps | ``(D, K, A), action_axis=1`` | its action was executed |
| a chain that may end early | ``(D, K, A), action_axis=1, length_axis=0`` | both its action and its step were made |
| text of up to n tokens | ``(n,), length_axis=0`` | its token was generated |

A decision stops at the step that ends the episode; its remaining actions were never executed. What is stored there may
be anything, NaN included. So every function here *selects* before any other arithmetic, instead of multiplying by zero:
neither a value nor a gradient passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.errors import ConfigError, SpecMismatchError, unknown_name
from embodied.types import Elements

LEVELS = ("token_level", "action_level", "chunk_level")


@dataclass(frozen=True)
class Counts:
    """Executed control steps of each of N decisions, and how long each is along its length axis."""

    num_steps: Tensor  # int64 [N], executed control steps, each in 1..K
    lengths: Tensor | None = None  # int64 [N], made along the length axis, each in 1..shape[length_axis]; None without

    def __len__(self) -> int:
        return len(self.num_steps)

    def at(self, index: Tensor) -> Counts:
        """Selects the counts of the decisions ``index`` int64 [n]."""
        return Counts(self.num_steps[index], None if self.lengths is None else self.lengths[index])

    def to(self, device: torch.device) -> Counts:
        return Counts(self.num_steps.to(device), None if self.lengths is None else self.lengths.to(device))


class Layout:
    """Masks log-probs, sums them to tokens, actions or chunks, and spreads advantages over them, as a policy declares
    its elements. Made once, used wherever log-probs are read.

    Args:
        elements: ``PolicySpec.elements``.
        num_actions: K.

    Raises:
        SpecMismatchError: an axis does not exist, the action axis has not K entries, or a declared level cannot be.

    >>> layout = Layout(Elements((2, 3), action_axis=0), num_actions=2)
    >>> layout.mask(Counts(torch.tensor([1])), "token_level").tolist()
    [[True, True, True, False, False, False]]
    """

    def __init__(self, elements: Elements, num_actions: int) -> None:
        self.elements, self.num_actions = elements, num_actions
        self.size = 1
        for length in elements.shape:
            self.size *= length
        possible = tuple(level for level in LEVELS if level != "action_level" or elements.action_axis is not None)
        self.levels = elements.levels or possible
        self._check(possible)
        self._action_of = self._find_actions()

    def _check(self, possible: tuple[str, ...]) -> None:
        elements, axes = self.elements, len(self.elements.shape)
        for name in ("action_axis", "length_axis"):
            axis = getattr(elements, name)
            if axis is not None and not 0 <= axis < axes:
                raise _broken(f"{name} {axis} of {axes} axes", f"give an axis of shape {elements.shape}, or None")
        if elements.action_axis is not None and elements.shape[elements.action_axis] != self.num_actions:
            raise _broken(
                f"shape {elements.shape} and no K = {self.num_actions} entries on axis {elements.action_axis}",
                "let the action axis count the actions of a decision (PolicySpec.num_action_chunks)",
            )
        if unknown := [level for level in self.levels if level not in possible]:
            raise _broken(f"levels {', '.join(unknown)}", f"declare some of {', '.join(possible)}")

    def _find_actions(self) -> Tensor | None:
        """The action of each element, int64 [M₀]; None if elements belong to the decision as a whole."""
        axis, shape = self.elements.action_axis, self.elements.shape
        if axis is None:
            return None
        return self._along(axis, torch.arange(self.num_actions)[None]).expand(1, *shape).flatten()

    def _along(self, axis: int, values: Tensor) -> Tensor:
        """[N, n] → [N, 1, …, n, …, 1] with n at ``axis`` of the elements' shape."""
        shape = [len(values), *[1] * len(self.elements.shape)]
        shape[axis + 1] = values.shape[1]
        return values.view(shape)

    @property
    def is_text(self) -> bool:
        """Whether a decision is a text: a row of tokens, each with a log-prob, of which the first ``length`` count."""
        return len(self.elements.shape) == 1 and self.elements.length_axis == 0 and self.elements.action_axis is None

    def check(self, level: str, key: str) -> None:
        """Raises :class:`ConfigError`, naming ``key``, for a level that these log-probs do not have.

        Args:
            key: configuration key that asked for it, e.g. ``algorithm.logprob_type``.

        Raises:
            UnknownNameError: ``level`` is none of :data:`LEVELS`.
            ConfigError: the policy does not offer it.
        """
        if level not in LEVELS:
            raise unknown_name("level", level, LEVELS, key)
        if level not in self.levels:
            raise ConfigError(
                f"{key} is {level}, and this policy's log-probs {list(self.elements.shape)} are counted by "
                f"{' or '.join(self.levels)}",
                f"set {key}={self.levels[-1]}",
            )

    def width(self, level: str) -> int:
        """M: elements of a decision at ``level``."""
        self.check(level, "algorithm.logprob_type")
        return {"token_level": self.size, "action_level": self.num_actions, "chunk_level": 1}[level]

    def mask(self, counts: Counts, level: str) -> Tensor:
        """Which elements count at ``level``: bool [N, M]. An action or a chunk counts if any of its elements does."""
        self.check(level, "algorithm.logprob_type")
        fine = self.element_mask(counts)
        if level == "token_level":
            return fine
        return self._by_action(fine).any(dim=2) if level == "action_level" else fine.any(dim=1, keepdim=True)

    def reduce(self, values: Tensor, counts: Counts, level: str) -> Tensor:
        """Sums log-probs, entropies or KL of the elements to ``level``; zero where nothing counts.

        The log-prob of an action is the sum over its elements. That of a chunk is the sum over its executed actions.

        Args:
            values: float [N, *shape], or [N, M₀].

        Returns:
            float [N, M].

        Raises:
            SpecMismatchError: ``values`` has another number of elements.
        """
        self.check(level, "algorithm.logprob_type")
        flat = values.flatten(1)
        if flat.shape[1] != self.size:
            raise _broken(
                f"shape {self.elements.shape}, and it gives {flat.shape[1]} values a decision",
                f"give float32 [B, {self.size}], or declare the elements that it gives",
            )
        counted = _select(flat, self.element_mask(counts))
        if level == "token_level":
            return counted
        if self._action_of is None:
            return counted.sum(dim=1, keepdim=True)
        per_action = self._by_action(counted).sum(dim=2)
        return per_action if level == "action_level" else per_action.sum(dim=1, keepdim=True)

    def spread(self, advantages: Tensor, level: str) -> Tensor:
        """Gives each element at ``level`` its advantage: float [N, V] → float [N, M].

        Raises:
            ValueError: several advantages, but elements that belong to none of them alone.
        """
        self.check(level, "algorithm.logprob_type")
        decisions, per_decision = advantages.shape
        if level == "token_level" and self.is_text and per_decision == self.size:
            return advantages
        if per_decision not in (1, self.num_actions):
            raise ValueError(f"got {per_decision} advantages a record, expected 1 or K = {self.num_actions}")
        if per_decision > 1 and (level == "chunk_level" or self._action_of is None):
            raise ValueError(
                f"got {per_decision} advantages a record for one ratio: with algorithm.reward_type action_level, "
                "algorithm.logprob_type must be token_level or action_level"
            )
        if level == "token_level" and per_decision > 1:
            return advantages[:, self._action_of]
        return advantages.expand(decisions, self.width(level))

    def sum_to_actions(self, values: Tensor, level: str) -> Tensor:
        """Sums the elements of each action: float [N, M] at ``level``, zero where nothing counts → [N, K].

        Raises:
            ValueError: the elements belong to no single action.
        """
        if level == "chunk_level" or self._action_of is None:
            raise ValueError(f"got one element a record, and K = {self.num_actions} rewards")
        return self._by_action(values).sum(dim=2) if level == "token_level" else values

    def element_mask(self, counts: Counts) -> Tensor:
        """Which elements count, whatever levels the policy offers: bool [N, M₀]."""
        shape, decisions = self.elements.shape, len(counts)
        mask = torch.ones(decisions, *shape, dtype=torch.bool, device=counts.num_steps.device)
        if self.elements.action_axis is not None:
            axis = self.elements.action_axis
            mask &= self._along(axis, step_mask(counts.num_steps, shape[axis]))
        if self.elements.length_axis is not None:
            axis = self.elements.length_axis
            if counts.lengths is None:
                raise _broken("a length axis, and its records have no field 'length'", "add it to PolicySpec.decision")
            mask &= self._along(axis, step_mask(counts.lengths, shape[axis]))
        return mask.flatten(1)

    def _by_action(self, flat: Tensor) -> Tensor:
        """[N, M₀] → [N, K, M₀ / K]."""
        axis = self.elements.action_axis
        assert axis is not None
        return (
            flat.unflatten(1, self.elements.shape)
            .movedim(axis + 1, 1)
            .reshape(len(flat), self.num_actions, self.size // self.num_actions)
        )


def step_mask(num_steps: Tensor, num_actions: int) -> Tensor:
    """Which of the K actions were executed: ``num_steps`` int [N], each in 1..K → bool [N, K]."""
    return torch.arange(num_actions, device=num_steps.device) < num_steps[:, None]


def _select(values: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, values, torch.zeros_like(values))


def _broken(what: str, remedy: str) -> SpecMismatchError:
    return SpecMismatchError(f"the policy declares elements with {what}", f"correct PolicySpec.elements: {remedy}")
