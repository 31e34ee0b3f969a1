"""Carries out a variation of LIBERO-Plus in an env slot: the arm, the camera, and what the picture's noise draws."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from embodied.errors import ConfigError

from ..files import LiberoTask
from ..rendering import Pictures
from .cameras import CAMERA, pose
from .files import PlusPaths, arm, paths_of
from .names import Variation
from .noise import LARGEST, corrupted
from .scenes import problem_of


class Varied:
    """The variation of the task that an env slot is in. Other suites' tasks have none.

    The package draws noise from numpy's global generator, which nobody seeds. Here a picture's noise is a function of
    the task's name, the start's seed and the control steps since the reset.
    """

    def __init__(self, task: LiberoTask | None = None, seed: int = 0) -> None:
        self._task, self._picture = task, (-1, np.zeros(0, np.uint8))
        self.seed, self.steps = seed, 0

    @property
    def _variation(self) -> Variation | None:
        return self._task.variation if self._task else None

    def arm(self) -> np.ndarray | None:
        """Returns the joints (rad) [7] from which the arm is reset; None: LIBERO's."""
        if self._variation is None or not self._variation.robot:
            return None
        return arm(*self._scene(), self._variation.robot)

    def camera(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the pose of ``agentview`` (m; w, x, y, z), which LIBERO-Plus rounds in each of its tasks; None for
        other tasks."""
        return None if self._variation is None else pose(self._scene()[1], self._variation.view)

    def _scene(self) -> tuple[PlusPaths, str]:
        assert self._task is not None
        paths = paths_of(self._task.bddl_file)
        assert paths is not None
        return paths, problem_of(self._task.bddl_file)

    def picture(self, camera: str, picture: np.ndarray) -> np.ndarray:
        """Returns a picture, uint8 [H, W, 3] as policies see it, with its noise if it has any."""
        if self._variation is None or not self._variation.noise or camera != CAMERA:
            return picture
        if self._picture[0] != self.steps:
            seed = noise_seed(self._task.name if self._task else "", self.seed, self.steps)
            noisy = corrupted(picture[::-1, ::-1], self._variation.noise, seed)
            self._picture = self.steps, noisy[::-1, ::-1].copy()
        return self._picture[1]


def check_pictures(tasks: Sequence[LiberoTask], pictures: Pictures) -> None:
    """Raises :class:`ConfigError` if a task has noise that pictures of this size cannot have."""
    sides, noisy = (pictures.height, pictures.width), any(task.variation and task.variation.noise for task in tasks)
    if noisy and CAMERA in pictures.cameras and (sides[0] != sides[1] or sides[0] > LARGEST):
        raise ConfigError(
            f"LIBERO-Plus's noise is made for square pictures of at most {LARGEST} pixels, not {sides[0]} × {sides[1]}",
            f"set init_params.camera_heights and camera_widths to {LARGEST}, or leave noise out of kinds",
        )


def noise_seed(task: str, seed: int, steps: int) -> int:
    """Returns the seed of a picture's noise. All tasks of an evaluation may have equal seeds, so their names tell them
    apart."""
    return int(np.random.SeedSequence([zlib.crc32(task.encode()), seed, steps]).generate_state(1)[0])
