"""Random crops and brightness for supervised training: the same sample of the same step always changes alike."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embodied.random import Stream, generator


class Augmentation:
    """Crops every picture (each camera of each sample) at a place of its own. The pictures of a sample share one
    brightness.

    Args:
        crop: share of the area that stays, 1 = off. The crop is enlarged to the old size, bilinearly.
        brightness: pixels are multiplied by a factor in 1 ± this, 0 = off.
    """

    def __init__(self, crop: float, brightness: float, seed: int) -> None:
        self._side, self._brightness, self._seed = crop**0.5, brightness, seed
        self.active = crop < 1 or brightness > 0

    def __call__(self, images: Tensor, numbers: np.ndarray) -> Tensor:
        """Changes pictures, uint8 [B, C, H, W, 3] → the same shape.

        Args:
            numbers: the place of each sample in the run's sequence of samples, int64 [B]. Its changes depend on that
                place and the seed alone.
        """
        if not self.active:
            return images
        batch, cameras = images.shape[:2]
        rows = np.stack([self._draw(int(number), cameras) for number in numbers])  # [B, 1 + 2·C] in −1 … 1
        drawn = torch.from_numpy(rows).float().to(images.device)
        pictures = images.flatten(0, 1).permute(0, 3, 1, 2).float()
        pictures = self._crop(pictures, drawn[:, 1:].reshape(batch * cameras, 2))
        factor = (1 + self._brightness * drawn[:, :1]).repeat_interleave(cameras, 0)[:, :, None, None]
        changed = (pictures * factor).clamp(0, 255).round().to(torch.uint8)
        return changed.permute(0, 2, 3, 1).unflatten(0, (batch, cameras))

    def _draw(self, number: int, cameras: int) -> np.ndarray:
        return generator(self._seed, Stream.AUGMENTATION, number).uniform(-1, 1, 1 + 2 * cameras)

    def _crop(self, pictures: Tensor, places: Tensor) -> Tensor:
        """Crops pictures float [n, 3, H, W], enlarged to the old size.

        Args:
            places: of the crops' centres [n, 2], −1 and 1 = as far to a side as the crop allows.
        """
        if self._side == 1:
            return pictures
        theta = torch.zeros(len(pictures), 2, 3, device=pictures.device)
        theta[:, 0, 0] = theta[:, 1, 1] = self._side
        theta[:, :, 2] = places * (1 - self._side)
        grid = F.affine_grid(theta, list(pictures.shape), align_corners=False)
        return F.grid_sample(pictures, grid, mode="bilinear", padding_mode="border", align_corners=False)
