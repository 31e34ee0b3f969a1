"""Sizes and conventions of a network, as a folder's tensors and keys say them."""

from __future__ import annotations

from dataclasses import dataclass

LAYOUTS = ("smolvla", "pi0", "pi05")


@dataclass(frozen=True)
class TowerSizes:
    """Sizes of the vision tower (SigLIP)."""

    width: int
    mlp: int
    layers: int
    heads: int
    patch: int  # pixels
    side: int  # patches of a row for which there are learned positions

    @property
    def image_size(self) -> int:
        """Pixels of a side of the picture that fills all positions."""
        return self.patch * self.side


@dataclass(frozen=True)
class StreamSizes:
    """Widths of the trunk's or the expert's layers."""

    width: int
    mlp: int


@dataclass(frozen=True)
class Sizes:
    """Sizes and conventions of a flow policy's network."""

    layout: str  # a name of LAYOUTS
    tower: TowerSizes
    trunk: StreamSizes
    expert: StreamSizes
    layers: int  # of the trunk and of the expert
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    horizon: int  # H, actions of a chunk
    image_size: int  # pixels of a side of a prepared picture
    shuffle: int = 1  # patches of a row that become one token
    norm_eps: float = 1e-6  # of the trunk's and the expert's norms
    cross_every: int = 0  # self-attention in each n-th layer, cross-attention in the others; 0 = self-attention in all
    state_width: int = 32
    action_width: int = 32
    min_period: float = 4e-3  # of the embedding of time
    max_period: float = 4.0
    read_out: bool = False  # the trunk's last layer is built whole, for a value head

    @property
    def gemma(self) -> bool:
        """Whether trunk and expert are Gemma's layers; else Llama's."""
        return self.layout != "smolvla"

    @property
    def adaptive(self) -> bool:
        """Whether the expert's norms are driven by the time (adaRMS)."""
        return self.layout == "pi05"

    @property
    def state_place(self) -> str:
        """Where the state stands: prefix, suffix, or text."""
        return {"smolvla": "prefix", "pi0": "suffix", "pi05": "text"}[self.layout]

    @property
    def image_tokens(self) -> int:
        """Tokens of one picture."""
        return (self.image_size // self.tower.patch // self.shuffle) ** 2

    def crosses(self, layer: int) -> bool:
        """Returns whether the expert's layer attends to the trunk's keys alone."""
        return self.cross_every > 0 and layer % self.cross_every != 0
