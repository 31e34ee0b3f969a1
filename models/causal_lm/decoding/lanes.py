"""Keys and values of the texts that are generated at the same time, and attention over them.

Shapes: N lanes, H heads, G heads of keys and values, D width of a head, S places of a lane that are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..network.attention import Heads, square, weigh

BLOCK = 16  # places of a lane are made, and looked at, in multiples of it
LEAST = 32  # places that are looked at: over fewer, MKL adds up a product in another order
ROWS = 3  # heads that share a key and are computed together: of more, MKL adds up in an order that depends on S


def blocks(length: int) -> int:
    """Rounds a length up to a multiple of :data:`BLOCK`."""
    return -(-length // BLOCK) * BLOCK


@dataclass
class Cache:
    """Cache of keys and values [N, G, capacity, D] of each layer, for N lanes. Made by the first :meth:`put`, grown as
    texts need it."""

    lanes: int
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        """Places of a lane; 0 before the first :meth:`reserve`."""
        return self.keys[0].shape[2] if self.keys else 0

    def reserve(self, like: Sequence[tuple[Tensor, Tensor]], length: int) -> None:
        """Makes room for texts of ``length`` tokens.

        Args:
            like: keys and values of each layer [·, G, ·, D].
        """
        if self.capacity >= length:
            return
        for number, parts in enumerate(like):
            for held, part in zip((self.keys, self.values), parts, strict=True):
                room = part.new_zeros(self.lanes, part.shape[1], max(blocks(length), LEAST), part.shape[3])
                if len(held) > number:
                    room[:, :, : held[number].shape[2]] = held[number]
                    held[number] = room
                else:
                    held.append(room)

    def put(self, lane: int, like: Sequence[tuple[Tensor, Tensor]], row: int, length: int) -> None:
        """Writes the first ``length`` places of ``row`` into a lane."""
        for number, (key, value) in enumerate(like):
            self.keys[number][lane, :, :length] = key[row, :, :length]
            self.values[number][lane, :, :length] = value[row, :, :length]

    def copy(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copies the first ``length`` places of lanes ``sources`` int64 [n] into lanes ``targets`` int64 [n]. All are
        read before one is written."""
        for held in (*self.keys, *self.values):
            held[targets, :, :length] = held[sources, :, :length]


@dataclass
class Prefill:
    """Computes the attention of prompts in rows of one length, right-padded. Keeps keys and values [rows, G, length, D]
    of each layer."""

    rows: int
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """See :class:`..network.attention.Attend`."""
        q, k, v = (part.reshape(self.rows, -1, *part.shape[1:]).transpose(1, 2) for part in (query, key, value))
        self.kept.append((k, v))
        return square(q, k, v, heads).transpose(1, 2).reshape(query.shape)


@dataclass
class OneToken:
    """Computes the attention of one new token in each lane over the lane's cache, and stores the token's own key and
    value."""

    cache: Cache
    lanes: Tensor  # int64 [N], 0 … N − 1
    place: Tensor  # int64 [N], place of each lane's token
    span: int  # S
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """See :class:`..network.attention.Attend`."""
        keys, values = self.cache.keys[heads.layer], self.cache.values[heads.layer]
        keys[self.lanes, :, self.place] = key.to(keys.dtype)
        values[self.lanes, :, self.place] = value.to(values.dtype)
        grouped = query.view(len(query), key.shape[1], -1, query.shape[-1])  # heads that share keys: [N, G, H/G, D]
        k, v = keys[:, :, : self.span], values[:, :, : self.span]
        mask = self._mask(heads.window, query)
        together = grouped.shape[2] if query.is_cuda else ROWS
        found = [weigh(some, k, v, heads, mask) for some in grouped.split(together, dim=2)]
        return torch.cat(found, dim=2).reshape(query.shape)

    def _mask(self, window: int | None, like: Tensor) -> Tensor:
        """Returns the mask that is added to the scores: [N, 1, 1, S]. The same for all layers of one window."""
        if window not in self.masks:
            # A lane without a text may stand beyond S. It sees something, too: else its numbers would become NaN.
            place = self.place.clamp(max=self.span - 1)
            behind = place.unsqueeze(1) - torch.arange(self.span, device=like.device)
            seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
            mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
            self.masks[window] = mask.masked_fill(~seen, -torch.inf)[:, None, None]
        return self.masks[window]
