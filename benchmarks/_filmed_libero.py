"""LIBERO as it is looked at: the policy's pictures stay as small as they are, those of a video are large."""

from __future__ import annotations

from typing import Any

import numpy as np
from embodied.envs.libero import LiberoEnv

PIXELS = 320


class FilmedLibero(LiberoEnv):
    """Draws the frames of videos with a second env that takes over the state: an episode is the same to the bit."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        large = {"camera_names": ["agentview"], "camera_heights": PIXELS, "camera_widths": PIXELS}
        self._film = LiberoEnv(**{**arguments, "init_params": large})

    def frame(self) -> np.ndarray:
        self._film.set_state(self.get_state())
        return np.ascontiguousarray(self._film.frame()[:, ::-1])  # LIBERO's pictures are mirrored

    def close(self) -> None:
        self._film.close()
        super().close()
