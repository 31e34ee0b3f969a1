"""Estimates the noise scale and the signal-to-noise of an update from the gradients of its groups.

McCandlish et al., *An Empirical Model of Large-Batch Training* (arXiv 1812.06162), appendix A.1: from the mean squares
of gradients of batches of two sizes, here one group and the n groups of the update, follow without bias

    |G|² = (n |g_n|² − |g_1|²) / (n − 1)        tr Σ = (|g_1|² − |g_n|²) / (1 − 1/n)

of the true gradient G and of the covariance Σ of one group's gradient. Both are averaged over updates before their
ratio is taken: the mean of ratios is biased. An iteration with as many episodes as the noise scale ``tr Σ / |G|²`` (in
episodes) has a signal-to-noise of 1: as much of the squared gradient is signal as is noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch import Tensor

KEEP = 0.95
"""Share of the averages that stays with each update."""

SURE = 5
"""Updates that are measured before a standard error is: of fewer it is too uncertain itself."""


@dataclass
class NoiseScale:
    """Averages of both estimates over updates, but for a factor that both have in common."""

    square: float = 0.0  # |G|²
    trace: float = 0.0  # tr Σ of the gradient of one episode
    square_2: float = 0.0  # Σ w² |G|⁴ over updates, which have weights w in the averages
    cross_2: float = 0.0  # Σ w² |G|² tr Σ
    trace_2: float = 0.0  # Σ w² (tr Σ)²
    updates: int = 0

    def take(self, sums: Tensor, episodes: int) -> None:
        """Takes an update; leaves it out if it is not finite.

        Args:
            sums: the part of each of n ≥ 2 groups in the update's gradient, which is their sum; or sketches of these
                parts: float64 [n, K].
            episodes: of the update.
        """
        groups = len(sums)
        small, large = groups * sums.square().sum().item(), sums.sum(dim=0).square().sum().item()
        trace = (small - large) / (1 - 1 / groups) * episodes / groups
        square = (groups * large - small) / (groups - 1)
        if not math.isfinite(square * square + trace * trace):
            return
        new, kept = 1 - KEEP, KEEP**2
        self.square, self.trace = KEEP * self.square + new * square, KEEP * self.trace + new * trace
        self.square_2 = kept * self.square_2 + new**2 * square * square
        self.cross_2 = kept * self.cross_2 + new**2 * square * trace
        self.trace_2 = kept * self.trace_2 + new**2 * trace * trace
        self.updates += 1

    def metrics(self, episodes: int) -> dict[str, float]:
        """Returns the metrics of an update of ``episodes``; none before the first, or where no group has a gradient. A
        gradient that is not above its noise has a signal-to-noise of 0, and no noise scale."""
        if not self.trace > 0:
            return {}
        found = {"train/signal_to_noise": episodes * max(self.square, 0.0) / self.trace}
        found |= {"train/signal_to_noise_error": episodes * self._error()} if self.updates >= SURE else {}
        return found | ({"train/noise_scale_episodes": self.trace / self.square} if self.square > 0 else {})

    def _error(self) -> float:
        """Returns the standard error of ``square / trace``, by the scatter of updates: that of a ratio of means, to
        first order (the infinitesimal jackknife), with Bessel's factor for weights."""
        ratio = self.square / self.trace
        scatter = max(self.square_2 - 2 * ratio * self.cross_2 + ratio * ratio * self.trace_2, 0.0)
        weights = (1 - KEEP) * (1 + KEEP**self.updates) / ((1 + KEEP) * (1 - KEEP**self.updates))  # Σ w² / (Σ w)²
        return math.sqrt(scatter / (1 - weights)) / self.trace

    def state_dict(self) -> dict[str, float]:
        """Returns the averages, for checkpoints."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Loads what :meth:`state_dict` returned; nothing if it lacks a number, or has one that is not finite."""
        names = asdict(self)
        if state.keys() >= names.keys() and all(math.isfinite(state[name]) for name in names):
            for name, empty in names.items():
                setattr(self, name, type(empty)(state[name]))
