"""Where the rewards of a decision stand, and with them its values and its advantages.

Shape letters as in :mod:`embodied.algorithms.layout`: N decisions, K actions of a decision, M elements of a decision at
some level, M₀ its log-probs; V rewards of a decision.

| ``algorithm.reward_type`` | V | reward counts if |
|---|---|---|
| ``chunk_level`` | 1: the sum over the control steps | always |
| ``action_level`` | K: one a control step | its step was executed |
| ``token_level``, of texts | M₀: that of the text at its last token, 0 before | its token was generated |
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied.algorithms.layout import Counts, Layout, step_mask
from embodied.errors import ConfigError, unknown_name

REWARD_LEVELS = ("chunk_level", "action_level", "token_level")


class Rewards:
    """Masks and reduces rewards of K control steps to V rewards a record, as ``reward_type`` says. Made once, used
    wherever rewards are read.

    Args:
        reward_type: ``algorithm.reward_type``, one of :data:`REWARD_LEVELS`.

    Raises:
        UnknownNameError: ``reward_type`` is not known.
        ConfigError: ``token_level``, and decisions that are no texts.

    >>> from embodied.types import Elements
    >>> texts = Rewards(Layout(Elements((3,), length_axis=0), num_actions=1), "token_level")
    >>> texts.reduce(torch.tensor([[2.0]]), Counts(torch.tensor([1]), torch.tensor([2]))).tolist()
    [[0.0, 2.0, 0.0]]
    """

    def __init__(self, layout: Layout, reward_type: str) -> None:
        if reward_type not in REWARD_LEVELS:
            raise unknown_name("reward type", reward_type, REWARD_LEVELS, "algorithm.reward_type")
        if reward_type == "token_level" and not layout.is_text:
            raise ConfigError(
                "algorithm.reward_type is token_level, and this policy's decisions are no texts: its log-probs have "
                f"the shape {list(layout.elements.shape)}",
                "set algorithm.reward_type=chunk_level or algorithm.reward_type=action_level",
            )
        self._layout, self.reward_type = layout, reward_type

    @property
    def width(self) -> int:
        """V, the number of rewards of a record."""
        layout = self._layout
        return {"chunk_level": 1, "action_level": layout.num_actions, "token_level": layout.size}[self.reward_type]

    def mask(self, counts: Counts) -> Tensor:
        """Which rewards count: bool [N, V]."""
        if self.reward_type == "token_level":
            return self._layout.element_mask(counts)
        steps = step_mask(counts.num_steps, self._layout.num_actions)
        return steps if self.reward_type == "action_level" else steps.any(dim=1, keepdim=True)

    def reduce(self, rewards: Tensor, counts: Counts) -> Tensor:
        """Places the rewards of the K steps: float [N, K] → float [N, V]. What was not executed may be anything."""
        steps = step_mask(counts.num_steps, self._layout.num_actions)
        counted = torch.where(steps, rewards, torch.zeros_like(rewards))
        if self.reward_type == "action_level":
            return counted
        whole = counted.sum(dim=1, keepdim=True)
        if self.reward_type == "chunk_level":
            return whole
        assert counts.lengths is not None
        return whole.new_zeros(len(counts), self.width).scatter_(1, counts.lengths[:, None] - 1, whole)

    def sum(self, values: Tensor, level: str) -> Tensor:
        """Sums the elements that belong to each reward: float [N, M] at ``level``, zero where nothing counts → [N, V].

        Raises:
            ValueError: one element a decision, and several rewards.
        """
        if self.width == 1:
            return values.sum(dim=1, keepdim=True)
        if self.reward_type == "action_level":
            return self._layout.sum_to_actions(values, level)
        if level != "token_level":
            raise ValueError(f"got elements at {level}, and a reward for each of {self.width} tokens")
        return values
