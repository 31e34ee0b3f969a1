"""Fake envs without progress features, and with some that no number can be made of."""

from __future__ import annotations

import numpy as np

from embodied.testing import FakeEnv
from embodied.types import EnvSpec


class WithoutFeatures:
    """Offers a spec alone."""

    def __init__(self, success_distance: float = 0.0) -> None:
        self.spec: EnvSpec = FakeEnv(success_distance=success_distance).spec

    def preflight(self) -> None:
        pass


class NotFinite(FakeEnv):
    """Loses sight of its goal after some steps."""

    def progress_features(self) -> np.ndarray:
        found = super().progress_features()
        found[2] = np.nan if self._steps > 3 else found[2]
        return found
