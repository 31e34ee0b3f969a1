"""Writes a policy's decision on a video: its value and its probability. Both are read from the record's row, so that a
video asks the policy for nothing. Imports no torch: env workers use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embodied.types import Elements, PolicySpec


@dataclass(frozen=True)
class Shown:
    """Formats a decision in a few words for a video: value, probability.

    Args:
        elements: what of a decision has a log-prob.
        probabilities: exp of a log-prob is a probability. Of continuous actions it is a density instead, so that the
            mean log-prob is shown.
        value: show the value. A value head that nothing trains says nothing of the observation.
    """

    elements: Elements
    probabilities: bool
    value: bool = True

    @classmethod
    def of(cls, spec: PolicySpec, value: bool) -> Shown | None:
        """Chooses what to show of this policy's decisions; None if they have no log-probs that are known. A policy that
        draws with normal noise has continuous actions."""
        known = "logprobs" in spec.decision and spec.scored
        return cls(spec.elements, spec.noise.kind != "normal", value) if known else None

    def text(self, arrays: Mapping[str, np.ndarray], row: int) -> str:
        """The decision in ``row`` of the slab's ``arrays``, e.g. ``value 0.73   probability 0.41``.

        The probability is the geometric mean of the elements' own: exp of their mean log-prob. Of several values the
        first counts, that of the observation.
        """
        found = [f"value {arrays['value'][row].flat[0]:.2f}"] if self.value and "value" in arrays else []
        logprobs = arrays["logprobs"][row].reshape(self.elements.shape).astype(np.float64)
        if self.elements.length_axis is not None:
            logprobs = logprobs.take(range(int(arrays["length"][row])), self.elements.length_axis)
        if logprobs.size:
            mean = float(logprobs.mean())
            found.append(f"probability {np.exp(mean):.2g}" if self.probabilities else f"log-prob {mean:.2f}")
        return "   ".join(found)
