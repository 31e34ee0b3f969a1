"""Computes the texts of a training pass by several processes (Ulysses, Jacobs et al., arXiv 2309.14509).

    process r of n:   tokens r, r + n, r + 2n, …  of all H heads           embedding, norms, linear layers, logits
                          │ exchange               ▲ exchange
                          ▼                        │
                      all T tokens, heads rH/n … (r + 1)H/n − 1            attention within each text

Neighbours lie on different processes, so that each has its share of the response tokens, whose logits take most. The
tokens of a pass are filled up to a multiple of n.

What a process computes of its own tokens, all processes of the team get (:class:`_Together`). Each then has the whole
loss. In the backward pass each takes the gradient of its own values alone, and so gives its weights the part of the
gradient that comes by its own tokens: the sum over the team is the gradient.

Shapes: n processes of a team, T tokens of a pass, t = ⌈T / n⌉ of a process, H heads, G heads of keys and values, D
width of a head, N hidden states that something is asked of, M of a process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embodied.protocols import Team

from ...shared.keys import bad
from .attention import Heads
from .packing import NeededStates, Packed, to_device


@dataclass(frozen=True)
class Part:
    """This process's tokens of a pass whose texts several processes compute together; also computes the pass's
    attention."""

    packed: Packed  # the whole pass
    team: Team
    ids: Tensor  # int64 [t]
    positions: Tensor  # int64 [t]
    places: Tensor  # int64 [t], see Packed; behind the last place: of what fills up the tokens
    answers: NeededStates  # see Packed
    prompts: NeededStates

    @classmethod
    def of(cls, packed: Packed, team: Team) -> Part:
        """Selects the tokens of a pass that this process of ``team`` computes."""
        more, end = -len(packed.ids) % team.size, packed.squares.texts * packed.squares.length
        ids, positions, places = (
            F.pad(values, (0, more), value=fill)[team.rank :: team.size].contiguous()
            for values, fill in ((packed.ids, 0), (packed.positions, 0), (packed.places, end))
        )
        answers, prompts = (_shared(rows, team, packed.ids) for rows in (packed.before, packed.last))
        return cls(packed, team, ids, positions, places, answers, prompts)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """See :class:`.attention.Attend`."""
        size, (own, count, width) = self.team.size, query.shape
        copies = size // math.gcd(size, key.shape[1])
        if copies > 1:  # fewest copies that give each process equally many; H is a multiple of them (check_heads)
            key, value = (part.repeat_interleave(copies, dim=1) for part in (key, value))
        parts = [part.reshape(own, size, -1, width) for part in (query, key, value)]
        sizes = [part.shape[2] for part in parts]
        mine = _Exchange.apply(torch.cat(parts, dim=2).transpose(0, 1).contiguous(), self.team)  # ordered by sender
        everything = mine.transpose(0, 1).reshape(own * size, -1, width)[: len(self.packed.ids)]
        query, key, value = everything.split(sizes, dim=1)
        found = self.packed(query, key, value, heads)
        found = F.pad(found, (0, 0, 0, 0, 0, own * size - len(found))).reshape(own, size, -1, width)
        back = _Exchange.apply(found.transpose(0, 1).contiguous(), self.team)  # ordered by heads
        return back.transpose(0, 1).reshape(own, count, width)


class _Exchange(torch.autograd.Function):
    """Sends element i of the first axis to process i; gives what all have sent, by sender: [n, …] → [n, …]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, team: Team) -> Tensor:
        ctx.team = team
        return _exchanged(values, team)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grads[0].contiguous(), ctx.team), None


def _exchanged(values: Tensor, team: Team) -> Tensor:
    each = [values.numel() // team.size] * team.size
    return team.exchange(values.view(-1), each, each).view(values.shape)


@dataclass(frozen=True)
class _Shared(NeededStates):
    """Hidden states of which each process of a team has some. ``number`` and ``row`` are filled up to the M that the
    process with most has."""

    own: Tensor  # int64 [m], ``number`` without what fills it up
    places: Tensor  # int64 [N], where each stands in what all have computed, [n · M]
    team: Team

    def together(self, values: Tensor) -> Tensor:
        return _Together.apply(values, self)


class _Together(torch.autograd.Function):
    """Gives all processes what each has computed: [M, …] → [N, …]. All of them compute one loss of it, so that the
    gradient of a process's own values is there already, and counts once."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, asked: _Shared) -> Tensor:
        ctx.asked, ctx.shape = asked, values.shape
        size = asked.team.size
        everything = _exchanged(values.expand(size, *values.shape).contiguous(), asked.team)
        return everything.flatten(0, 1).index_select(0, asked.places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        out = grads[0].new_zeros(ctx.shape)
        out[: len(ctx.asked.own)] = grads[0].index_select(0, ctx.asked.own)
        return out, None


def _shared(rows: np.ndarray, team: Team, like: Tensor) -> _Shared:
    """Divides the hidden states ``rows`` int64 [N] of a pass among the processes of a team."""
    numbers = [np.flatnonzero(rows % team.size == rank) for rank in range(team.size)]
    most = max(1, *map(len, numbers))
    places = np.empty(len(rows), np.int64)
    for rank, own in enumerate(numbers):
        places[own] = rank * most + np.arange(len(own))
    own = numbers[team.rank]
    number, row = (np.pad(values, (0, most - len(own))) for values in (own, rows[own] // team.size))
    return _Shared(to_device(number, like), to_device(row, like), to_device(own, like), to_device(places, like), team)


def check_heads(size: int, heads: int) -> None:
    """Raises ConfigError unless ``size`` processes can share the attention's heads."""
    if heads % size:
        divisors = [str(one) for one in range(1, heads + 1) if heads % one == 0]
        reason = f"the network's {heads} attention heads cannot be shared by {size} processes"
        raise bad("context_parallel_size", size, reason, f"set it to a divisor of {heads}: {', '.join(divisors)}")
