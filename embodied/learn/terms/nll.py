"""−log-prob of what was demonstrated: the loss of supervised training."""

from __future__ import annotations

import torch
from torch import Tensor

from embodied.algorithms.layout import Counts, Layout
from embodied.errors import ConfigError
from embodied.types import PolicySpec


class NllTerm:
    """``−Σ log p / count`` over the elements that count. The count is that of the whole optimizer step.

    Args:
        name: of the policy, for messages.

    Raises:
        ConfigError: the policy does not count its log-probs one by one.
    """

    def __init__(self, spec: PolicySpec, name: str) -> None:
        self._layout = Layout(spec.elements, spec.num_action_chunks)
        if "token_level" not in self._layout.levels:
            raise ConfigError(
                f"{name} counts its log-probs by {' or '.join(self._layout.levels)}, and learning "
                "from demonstrations takes them one by one",
                "add token_level to the levels of its PolicySpec.elements, or choose another model",
            )

    @property
    def needs_length(self) -> bool:
        """Whether a decision's own ``length`` says which of its elements count."""
        return self._layout.elements.length_axis is not None

    def mask(self, steps: Tensor, lengths: Tensor | None) -> Tensor:
        """Which elements of n demonstrated decisions count: bool [n, M₀].

        Args:
            steps: actions of each that were taken, int64 [n].
            lengths: of each along the length axis, int64 [n]; None without one.
        """
        return self._layout.mask(Counts(steps, lengths), "token_level")

    def chosen(self, logprobs: Tensor, mask: Tensor) -> Tensor:
        """The log-probs that count, float32 [c].

        Args:
            logprobs: of m decisions, float32 [m, …] as the policy gave them.
        """
        return logprobs.flatten(1)[mask]

    def share(self, counting: Tensor, count: int) -> Tensor:
        """What the elements of a pass add to the loss of a step, [].

        Args:
            counting: their log-probs, float32 [c]; they may be none.
            count: elements of the whole step.
        """
        return -counting.sum() / count

    def mean(self, counting: Tensor) -> float:
        """−log-prob, the mean over the elements of a validation, float [c]."""
        return -torch.mean(counting).item()
