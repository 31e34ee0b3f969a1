"""The fake env with control steps of one length, so that no process waits for another whose starts are slow."""

from __future__ import annotations

from embodied.testing import FakeEnv
from embodied.types import Start


class Even(FakeEnv):
    def reset(self, start: Start) -> None:
        super().reset(start)
        self._pace = self._step_s
