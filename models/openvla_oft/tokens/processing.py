"""Turns an env's instruction and pictures into the prompt's text and pixels, on the policy's device.

Source of the constants: preprocessor_config.json of the released checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...shared.constants import cached, constant
from ...shared.precision import without_autocast

CROP_AREA = 0.9  # the centre crop of OFT's evaluation keeps this share of the area
# Per tower (DINOv2, SigLIP): mean and std of pixels in [0, 1]. The first are ImageNet's numbers rounded to bf16, as in
# the training of the checkpoints.
MEAN = ((0.484375, 0.455078125, 0.40625), (0.5, 0.5, 0.5))
STD = ((0.228515625, 0.2236328125, 0.224609375), (0.5, 0.5, 0.5))


TEMPLATE = "In: What action should the robot take to {}?\nOut:"  # the instruction in lower case


def prompt(instruction: str) -> str:
    """Makes OpenVLA's prompt of an instruction: the text before the action. Tokenisation adds BOS in front and the
    token '▁' behind."""
    return TEMPLATE.format(instruction.lower())


def centre_crop(images: Tensor, area: float = CROP_AREA) -> Tensor:
    """Crops the middle of images and enlarges it to the old size: float [B, 3, H, W] → the same shape.

    Samples bilinearly with the corners of the crop on pixel centres, as TensorFlow's crop_and_resize does.
    """
    side = math.sqrt(area)
    theta = constant(((side, 0.0, 0.0), (0.0, side, 0.0)), images.dtype, images.device).expand(images.shape[0], 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=True)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=True)


def resize(images: Tensor, size: int) -> Tensor:
    """Resizes float [B, 3, H, W] in [0, 255] to [B, 3, size, size]: bicubic with antialiasing, squashed if
    not square."""
    if images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images, (size, size), mode="bicubic", antialias=True, align_corners=False).clamp(0.0, 255.0)


def resize_by_products(images: Tensor, size: int) -> Tensor:
    """Resizes like :func:`resize`, by two products of matrices, for formats that have no such resizing. It sums in
    another order: a level that lies at a half within rounding may become the next one."""
    if images.shape[-2:] == (size, size):
        return images
    rows, columns = (bicubic_weights(length, size, images.device) for length in images.shape[-2:])
    across = (images.double() @ columns.T).float()
    return (rows @ across.double()).float().clamp(0.0, 255.0)


@cached
def bicubic_weights(length: int, size: int, device: torch.device) -> Tensor:
    """Computes the weights of ``length`` old pixels in each of ``size`` new ones, as :func:`resize` has them: float64
    [size, length]."""
    with torch.inference_mode(False):
        one_hot = torch.eye(length)[None, None]  # row i lights pixel i
        weights = F.interpolate(one_hot, (size, length), mode="bicubic", antialias=True, align_corners=False)
        return weights[0, 0].double().to(device)


def resize_lanczos3(images: Tensor, size: int) -> Tensor:
    """Resizes like :func:`resize`, with the kernel of ``tf.image.resize(method="lanczos3", antialias=True)``."""
    if images.shape[-2:] == (size, size):
        return images
    rows, columns = (lanczos3_weights(length, size, images.device) for length in images.shape[-2:])
    return (rows @ images @ columns.T).clamp(0.0, 255.0)


@cached
def lanczos3_weights(length: int, size: int, device: torch.device) -> Tensor:
    """Computes the weights of ``length`` old pixels in each of ``size`` new ones: float32 [size, length],
    rows sum to 1."""
    with torch.inference_mode(False):
        scale = length / size
        centres = (torch.arange(size, dtype=torch.float64) + 0.5) * scale - 0.5
        x = (torch.arange(length, dtype=torch.float64) - centres[:, None]) / max(scale, 1.0)
        kernel = torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)
        return (kernel / kernel.sum(1, keepdim=True)).float().to(device)


def eight_bits(images: Tensor) -> Tensor:
    """Rounds floats in [0, 255] to whole numbers, as ``tf.image.convert_image_dtype`` does."""
    return (images * (255.5 / 255.0)).floor().clamp(0.0, 255.0)


class PixelProcessor(nn.Module):
    """Turns uint8 camera images into six channels per image, three for each tower.

    Both presets round the resized picture to 8 bits. A picture of the network's size is not resized:

    - ``rlinf``: bicubic, as in RLinf's own implementation of OpenVLA-OFT (its ``implement_version: rlinf``): it resizes
      uint8 tensors by torchvision and never crops. With ``crop`` the rounded picture is cropped in float.
    - ``oft_libero``: Lanczos, and 8 bits once more after the crop, as in OFT's own evaluation but without its JPEG
      compression.

    Args:
        size: H = W of the network's input.
        crop: take the centre crop after resizing.
        preset: one of the above.
        statistics: ``tvf_normalize_params`` of a preprocessor_config.json, one entry per tower; None = the constants.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, size: int, crop: bool, statistics: Sequence[Mapping[str, Any]] | None = None, preset: str = "rlinf"
    ) -> None:  # fmt: skip
        super().__init__()
        self.size = size
        self.crop = crop
        self.preset = preset
        self.bicubic: Callable[[Tensor, int], Tensor] = resize
        mean = MEAN if statistics is None else [entry["mean"] for entry in statistics]
        std = STD if statistics is None else [entry["std"] for entry in statistics]
        self.register_buffer("mean", torch.tensor(mean).view(1, 6, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 6, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Prepares images: uint8 [B, n, H, W, 3] → float32 [B, 6·n, size, size].

        The arithmetic is never in 16 bits, whatever the network's format: pixels would be off by several levels, and
        the crop's coordinates by half a pixel.
        """
        with without_autocast(images.device):
            levels = self._levels(images.flatten(0, 1).permute(0, 3, 1, 2).float())
        both = levels.div(255.0).repeat(1, 2, 1, 1)
        return ((both - self.mean) / self.std).unflatten(0, (images.shape[0], -1)).flatten(1, 2)

    def _levels(self, pixels: Tensor) -> Tensor:
        """Float [N, 3, H, W] in [0, 255] → [N, 3, size, size]."""
        if self.preset == "oft_libero":
            pixels = resize_lanczos3(pixels, self.size).round()
            return eight_bits(centre_crop(pixels)) if self.crop else pixels
        pixels = self.bicubic(pixels, self.size).round()  # torchvision also rounds halves to even for uint8
        return centre_crop(pixels) if self.crop else pixels
