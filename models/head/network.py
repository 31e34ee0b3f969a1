"""Layers of actor and critics. Shapes: B rows, S numbers that are read, D numbers of a chunk, E critics, H hidden."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOG_STD = (-20.0, 2.0)  # range of the logarithm of a standard deviation
SMALLEST = 4  # pixels of a side that are left to tell where something is


class Actor(nn.Module):
    """Maps what is read [B, S] to mean and logarithm of the standard deviation of a chunk, each [B, D]."""

    def __init__(self, reads: int, chunk: int, hidden: int, layers: int) -> None:
        super().__init__()
        sizes = [reads, *[hidden] * layers]
        pairs = itertools.pairwise(sizes)
        self.body = nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))
        self.out = nn.Linear(hidden, 2 * chunk)

    def forward(self, read: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.out(self.body(read)).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)


class Ensemble(nn.Module):
    """E networks from what is read and a chunk [B, S + D] to a number each, computed together: [E, B].

    A layer is one batched matrix product. With ``layer_norm`` its numbers are normalised before the bias is added; a
    scale is left out, because the next layer's weights can take it in: ReLU lets a positive factor through.
    """

    def __init__(self, inputs: int, critics: int, hidden: int, layers: int, layer_norm: bool) -> None:
        super().__init__()
        self.critics, self.layer_norm = critics, layer_norm
        sizes = [inputs, *[hidden] * layers, 1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for number, (a, b) in enumerate(itertools.pairwise(sizes)):
            bound = 1 / math.sqrt(a)  # as nn.Linear
            normed = layer_norm and number < layers
            self.weights.append(nn.Parameter(torch.empty(critics, a, b).uniform_(-bound, bound)))
            bias = torch.zeros(critics, 1, b) if normed else torch.empty(critics, 1, b).uniform_(-bound, bound)
            self.biases.append(nn.Parameter(bias))

    def forward(self, inputs: Tensor, learning: bool = True) -> Tensor:
        """Computes the numbers. Args: ``learning`` False: the weights get no gradient."""
        layers = [*zip(self.weights, self.biases, strict=True)]
        if not learning:
            layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
        hidden = inputs.expand(self.critics, *inputs.shape)
        for weight, bias in layers[:-1]:
            if self.layer_norm:
                hidden = F.layer_norm(torch.bmm(hidden, weight), weight.shape[-1:]).add(bias).relu()
            else:
                hidden = torch.baddbmm(bias, hidden, weight).relu()
        weight, bias = layers[-1]
        # A product with one column is a sum; as a batched matrix product it would be slow.
        return (hidden * weight.transpose(1, 2)).sum(-1) + bias[:, :, 0]


class Pictures(nn.Module):
    """Maps pictures [B, C, H, W, 3] to ``width`` numbers, float32 [B, width]; all cameras are read together.

    Args:
        side: pixels of a side to which pictures are averaged before the network reads them; None = none are.
    """

    def __init__(self, shape: tuple[int, ...], width: int, side: int | None = None) -> None:
        super().__init__()
        cameras, height, across, colours = shape
        self._shape = None if side is None else (min(side, height), min(side, across))
        height, across = self._shape or (height, across)
        parts: list[nn.Module] = []
        for channels in (cameras * colours, 32, 32, 32):
            if side is not None and parts and min(height, across) <= SMALLEST:
                break
            parts += [nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ReLU()]
            height, across = -(-height // 2), -(-across // 2)
        self.body = nn.Sequential(*parts)
        self.out = nn.Linear(32 * height * across, width)

    def averaged(self, pictures: Tensor) -> Tensor:
        """Averages pictures uint8 [B, C, H, W, 3], as the network reads them: float32 [B, 3 · C, h, w]."""
        colours_last = pictures.flatten(0, 1).float().div_(255).sub_(0.5)
        pixels = colours_last.permute(0, 3, 1, 2)  # not copied: averaging takes a third less time of colours at the end
        if self._shape is not None:
            pixels = F.adaptive_avg_pool2d(pixels, self._shape)
        return pixels.unflatten(0, pictures.shape[:2]).flatten(1, 2)

    def forward(self, pictures: Tensor) -> Tensor:
        """Args: ``pictures``: as they are, or :meth:`averaged`."""
        pixels = pictures if pictures.is_floating_point() else self.averaged(pictures)
        numbers = self.out(self.body(pixels).flatten(1))
        return F.layer_norm(numbers, numbers.shape[-1:]).tanh()


class Judges(nn.Module):
    """The ensemble, and the pictures' encoder, which learns with it alone."""

    def __init__(self, ensemble: Ensemble, pictures: Pictures | None) -> None:
        super().__init__()
        self.ensemble, self.pictures = ensemble, pictures

    def look(self, pictures: Tensor, learning: bool) -> Tensor:
        """Encodes pictures. Args: ``learning`` False: nothing gets a gradient."""
        assert self.pictures is not None
        with torch.set_grad_enabled(learning and torch.is_grad_enabled()):
            return self.pictures(pictures)
