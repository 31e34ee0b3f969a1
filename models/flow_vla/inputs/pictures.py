"""Prepares pictures as the layouts do: scaled into a square without distortion, the rest black, from −1 to 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def prepare(images: Tensor, size: int, centred: bool) -> Tensor:
    """Prepares pictures uint8 [B, n, H, W, 3] → float32 [B, n, 3, size, size] of −1 … 1.

    Args:
        centred: put black all around, as π0 does; else left and above, as SmolVLA does.
    """
    rows = images.flatten(0, 1).permute(0, 3, 1, 2).float() / 255.0
    return (fitted(rows, size, centred) * 2.0 - 1.0).unflatten(0, images.shape[:2])


def fitted(rows: Tensor, size: int, centred: bool) -> Tensor:
    """Scales pictures [N, 3, H, W] of 0 … 1 by bilinear samples, and fills up to a square with black."""
    height, width = rows.shape[-2:]
    ratio = max(width / size, height / size)
    inner = int(height / ratio), int(width / ratio)
    if inner != (height, width):
        rows = F.interpolate(rows, inner, mode="bilinear", align_corners=False)
        rows = rows.clamp(0.0, 1.0)
    top, left = (
        (size - inner[0]) // 2 if centred else size - inner[0],
        (size - inner[1]) // 2 if centred else size - inner[1],
    )
    bottom, right = size - inner[0] - top, size - inner[1] - left
    return F.pad(rows, (left, right, top, bottom), value=0.0) if inner != (size, size) else rows


def black(batch: int, size: int, device: torch.device) -> Tensor:
    """Makes the picture of a camera that is not there: float32 [B, 3, size, size] of −1."""
    return torch.full((batch, 3, size, size), -1.0, device=device)
