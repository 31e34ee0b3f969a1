"""Frozen linear layers whose weights lie in 8 or 4 bits, so that adapters train on a base that is too large in 16.

    8 bits   one int8 a weight and one float32 scale a row (LLM.int8(), Dettmers et al., arXiv 2208.07339)
    4 bits   NF4 with a scale a block of 64, itself in 8 bits (QLoRA, Dettmers et al., arXiv 2305.14314): 4.13 bits

bitsandbytes makes the codes and reads them back. The product is torch's own, of the weight in the format of the
arithmetic: then ``act`` and ``evaluate`` compute the same, with gradient and without. The weight exists for one product
at a time. The backward pass makes it again, so nothing but the codes is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

BLOCK = 64  # weights that share a scale in 4 bits
NESTED = 256  # scales that share one


class QuantizedLinear(nn.Linear):
    """A linear layer [..., in] → [..., out] whose frozen weight is stored in 8 or 4 bits.

    It has no values before :meth:`quantize`. ``weight`` holds codes, int8 [out, in] or uint8 [out · in / 2, 1]. Scales
    are buffers that no state dict has: a base is read from its own folder.

    Args:
        bits: 8 or 4.
        bias: taken over as it is.
    """

    weight: nn.Parameter
    scale: Tensor

    def __init__(self, in_features: int, out_features: int, bits: int, bias: nn.Parameter | None = None) -> None:
        super().__init__(in_features, out_features, bias=False, device="meta")
        self.bits = bits
        self.register_parameter("bias", bias)
        for name in ("scale", "offset", "nested", "table"):
            self.register_buffer(name, None, persistent=False)
        codes = (out_features, in_features) if bits == 8 else (-(-out_features * in_features // 2), 1)
        self._keep(torch.empty(codes, dtype=torch.int8 if bits == 8 else torch.uint8, device="meta"))

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight: [out, in]."""
        return torch.Size((self.out_features, self.in_features))

    @torch.no_grad()
    def quantize(self, weight: Tensor) -> None:
        """Quantizes ``weight`` [out, in] into this layer, on its device."""
        from bitsandbytes import functional as library

        weight = weight.contiguous()
        if self.bits == 8:
            codes, self.scale, _ = library.int8_vectorwise_quant(weight.half())  # the kernel of a GPU takes fp16 alone
        else:
            codes, state = library.quantize_4bit(weight, blocksize=BLOCK, quant_type="nf4")
            self.table, self.offset = _table().to(weight.device), state.absmax.mean()
            self.scale, nested = library.quantize_blockwise(state.absmax - self.offset, self.table, blocksize=NESTED)
            self.nested = nested.absmax
        self._keep(codes)

    @torch.no_grad()
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Computes the weight that the codes stand for: ``dtype`` [out, in]."""
        from bitsandbytes import functional as library

        if self.bits == 8:
            return library.int8_vectorwise_dequant(self.weight.data, self.scale).to(dtype)
        nested = library.QuantState(self.nested, blocksize=NESTED, code=self.table, dtype=torch.float32)
        state = library.QuantState(
            self.scale, shape=_in_blocks(self.shape), blocksize=BLOCK, quant_type="nf4", dtype=dtype,
            offset=self.offset, state2=nested,
        )  # fmt: skip
        return library.dequantize_4bit(self.weight.data, state).view(self.shape)

    def forward(self, input: Tensor) -> Tensor:
        """Computes [..., in] → [..., out], in autocast's format or else in that of ``input``."""
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        out = _Product.apply(input.to(dtype), self)
        return out if self.bias is None else out + self.bias.to(dtype)

    def extra_repr(self) -> str:
        """Describes the layer for ``print``."""
        return f"{super().extra_repr()}, bits={self.bits}"

    def _keep(self, codes: Tensor) -> None:
        self.weight = nn.Parameter(codes, requires_grad=False)


def _in_blocks(shape: torch.Size) -> torch.Size:
    """Returns another shape of as many numbers, one block a row where they are whole. Codes lie in the order of the
    numbers, across rows; on a CPU, bitsandbytes 0.50 begins a block with each row, which reads a scale of another one
    unless a row is so many whole blocks."""
    numbers = shape.numel()
    return torch.Size((numbers // BLOCK, BLOCK) if numbers % BLOCK == 0 else (1, numbers))


@cache
def _table() -> Tensor:
    """The 256 numbers that codes of scales stand for. bitsandbytes makes them by reading values, which tensors without
    memory (``runner.dry_run``) have not."""
    from bitsandbytes.functional import create_dynamic_map

    with unset_fake_temporarily():
        return create_dynamic_map()


class _Product(torch.autograd.Function):
    """``x Wᵀ`` with a gradient to x alone. Keeps no tensor for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.dequantize(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad @ ctx.layer.dequantize(grad.dtype), None


def quantized_layers(module: nn.Module) -> dict[str, QuantizedLinear]:
    """Lists the layers in 8 or 4 bits within ``module``, by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, QuantizedLinear)}


def replace_linears(
    module: nn.Module, bits: int, fill: Callable[[QuantizedLinear, Tensor], None] | None = None
) -> None:
    """Replaces each linear layer within ``module`` by a :class:`QuantizedLinear` of ``bits``; ``fill(layer, weight)``
    gives it values, None = it has none yet.

    Args:
        fill: gets the new layer and the weight of the old; None = the new ones have no values yet.
    """
    for owner in [*module.modules()]:
        for name, layer in [*owner.named_children()]:
            if type(layer) is nn.Linear:
                new = QuantizedLinear(layer.in_features, layer.out_features, bits, layer.bias)
                setattr(owner, name, new)
                if fill is not None:
                    fill(new, layer.weight.detach())


def numbers_of(module: nn.Module) -> int:
    """Counts the parameters of ``module``. Of codes that hold two weights a byte, each weight counts."""
    packed = sum(layer.shape.numel() - layer.weight.numel() for layer in quantized_layers(module).values())
    return sum(p.numel() for p in module.parameters()) + packed
