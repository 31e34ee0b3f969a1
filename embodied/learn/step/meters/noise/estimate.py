"""Estimates the noise scale and the signal-to-noise of an update from the gradients of its groups.

McCandlish et al., *An Empirical Model of Large-Batch Training* (arXiv 1812.06162), appendix A.1: from the mean squares
of gradients of batches of two sizes, here one group and the n groups of the update, follow without bias

    |G|² = (n |g_n|² − |g_1|²) / (n − 1)        tr Σ = (|g_1|² − |g_n|²) / (1 − 1/n)

of the true gradient G and of the covariance Σ of one group's gradient. Both are averaged over updates before their
ratio is taken: the mean of ratios is biased. An iteration with as many episodes as the noise scale ``tr Σ / |G|²`` (in
episodes) has a signal-to-noise of 1: as much of the squared gradient is signal as is noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch import Tensor

KEEP = 0.95
"""Share of the averages that stays with each update."""


@dataclass
class NoiseScale:
    """Averages of both estimates over updates, but for a factor that both have in common."""

    square: float = 0.0  # |G|²
    trace: float = 0.0  # tr Σ of the gradient of one episode

    def take(self, sums: Tensor, episodes: int) -> None:
        """Takes an update.

        Args:
            sums: the part of each of n ≥ 2 groups in the update's gradient, which is their sum; or sketches of these
                parts: float64 [n, K].
            episodes: of the update.
        """
        groups = len(sums)
        small, large = groups * sums.square().sum().item(), sums.sum(dim=0).square().sum().item()
        trace = (small - large) / (1 - 1 / groups)
        square = (groups * large - small) / (groups - 1)
        self.square = KEEP * self.square + (1 - KEEP) * square
        self.trace = KEEP * self.trace + (1 - KEEP) * trace * episodes / groups

    def metrics(self, episodes: int) -> dict[str, float]:
        """Returns the metrics of an update of ``episodes``; none before the first, or where no group has a gradient. A
        gradient that is not above its noise has a signal-to-noise of 0, and no noise scale."""
        if not self.trace > 0:
            return {}
        found = {"train/signal_to_noise": episodes * max(self.square, 0.0) / self.trace}
        return found | ({"train/noise_scale_episodes": self.trace / self.square} if self.square > 0 else {})

    def state_dict(self) -> dict[str, float]:
        """Returns the averages, for checkpoints."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Loads what :meth:`state_dict` returned; an empty mapping loads nothing."""
        for name, value in state.items():
            setattr(self, name, float(value))
