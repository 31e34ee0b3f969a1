"""Linear layers whose weights are held in 8 bits; activations and arithmetic stay float32.

Each output channel o has its own scale: ``W[o] ≈ s[o] · q[o]``, ``q`` in −127 … 127, ``s[o] = max |W[o]| / 127``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 127


class Int8Linear(nn.Module):
    """A linear layer whose weights are rounded to int8, with a scale for each output.

    Args:
        layer: a float32 layer, which stays as it is.
    """

    quantized: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / LEVELS
        self.register_buffer("quantized", (weight / scale.unsqueeze(1)).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The weights that the codes stand for: float32 [out, in]."""
        return self.quantized.float() * self.scale.unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """Computes […, in] → […, out]. Scales are applied to the output: it has fewer numbers than the weights."""
        out = F.linear(x, self.quantized.float()) * self.scale
        return out if self.bias is None else out + self.bias


def quantize_linears(module: nn.Module) -> int:
    """Replaces every linear layer inside ``module`` by an int8 one; returns how many there were."""
    found = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    for name, layer in found:
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, Int8Linear(layer))
    return len(found)


def num_bytes(module: nn.Module) -> int:
    """Bytes of all parameters and saved buffers."""
    return sum(tensor.nbytes for tensor in module.state_dict().values())
