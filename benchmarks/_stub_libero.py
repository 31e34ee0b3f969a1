"""LIBERO without the cost of its pictures, in a module that workers can import."""

from __future__ import annotations

import numpy as np
from embodied.envs.libero import LiberoEnv


class StubLibero(LiberoEnv):
    """This project's adapter; its pictures are black and cost nothing."""

    def prepare(self) -> None:
        super().prepare()
        from embodied.envs.libero.simulator import TaskSimulator

        black = np.zeros(self.spec.obs["images"].shape[1:], np.uint8)
        TaskSimulator.render = lambda self, camera: black
