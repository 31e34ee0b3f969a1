"""Lays prompts and responses end to end for a training pass: no token is padding, and equal prompts are computed once.
:func:`rows` pads them instead, to compare (``actor.sequence_packing=false``).

    tokens of a pass:  prompt₀ prompt₁ … | response of text 0, response of text 1, …

Linear layers see each token once. Attention is computed within each text, in squares [B, L] that are filled up on the
right; texts that share a prompt copy its keys and values into their squares. The last token of a response is no input,
since nothing is asked of what would follow.

Shapes: B texts, U different prompts, T tokens, L longest text, N response tokens of all texts, n as in a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .attention import Heads, square


@dataclass(frozen=True)
class Squares:
    """Index of packed tokens in padded rows [B, L], one row a text; shared prompts stand in several rows."""

    texts: int  # B
    length: int  # L
    fill: Tensor  # int64 [B·L], index of the token that stands there; 0 where none does
    home: Tensor  # int64 [T], place of each token: of a shared prompt that in the first text which has it
    prompts: int  # tokens of all prompts
    longest: int  # tokens of the longest prompt
    slots: Tensor  # int64 [prompts], place of a prompt's token in [U, longest]
    sharing: Tensor | None  # float [U, B], 1 where a text has a prompt; None if no two texts share one

    def spread(self, values: Tensor) -> Tensor:
        """Copies packed tokens into padded rows: [T, w] → [B·L, w]."""
        return _Spread.apply(values, self)

    def collect(self, values: Tensor) -> Tensor:
        """Takes packed tokens out of padded rows: [B·L, w] → [T, w]."""
        return _Collect.apply(values, self)

    def sum_copies(self, values: Tensor) -> Tensor:
        """Sums the padded rows over the copies of each token: [B·L, w] → [T, w]."""
        own, width = values.index_select(0, self.home), values.shape[1]
        if self.sharing is None:
            return own
        copies = values.view(self.texts, self.length, width)[:, : self.longest].reshape(self.texts, -1)
        sums = (self.sharing.to(values.dtype) @ copies).view(-1, width)
        own[: self.prompts] = sums.index_select(0, self.slots)
        return own


class _Spread(torch.autograd.Function):
    """Gathers tokens into squares. Autograd's own backward would add row by row, which is slow on a CPU and on a GPU
    adds in any order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, squares: Squares) -> Tensor:
        ctx.squares = squares
        return values.index_select(0, squares.fill)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.squares.sum_copies(grads[0]), None


class _Collect(torch.autograd.Function):
    """Gathers the tokens out of the squares. What stands elsewhere gets no gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, squares: Squares) -> Tensor:
        ctx.squares = squares
        return values.index_select(0, squares.home)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad, squares = grads[0], ctx.squares
        out = grad.new_zeros(squares.texts * squares.length, grad.shape[1])
        return out.index_copy_(0, squares.home, grad), None


@dataclass(frozen=True)
class NeededStates:
    """Hidden states of a pass whose logits or values are needed, and which of them this process computes."""

    number: Tensor  # int64 [R], of what is asked, in its order
    row: Tensor  # int64 [R], hidden state of each among those that this process has

    def together(self, values: Tensor) -> Tensor:
        """Joins the values [R, …] that all processes compute, in the order in which they are needed."""
        return values


@dataclass(frozen=True)
class Packed:
    """Prompts and responses of B texts in one sequence without padding; also computes the pass's attention."""

    ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    squares: Squares
    last: np.ndarray  # int64 [B], index of the last token of each text's prompt
    before: np.ndarray  # int64 [N], index of the token before each response token: its logits tell the token
    text: Tensor  # int64 [N], text of each response token
    made: Tensor  # int64 [N], response tokens before it
    first: np.ndarray  # int64 [U], a text with each prompt that is computed
    begins: np.ndarray  # int64 [U], index of the first token of that prompt

    @property
    def answers(self) -> NeededStates:
        """The hidden states that predict the response tokens."""
        return self._asked(self.before)

    @property
    def prompts(self) -> NeededStates:
        """The last hidden state of each text's prompt."""
        return self._asked(self.last)

    @property
    def places(self) -> Tensor:
        """Places of the tokens in padded rows, int64 [T], see :attr:`Squares.home`."""
        return self.squares.home

    def _asked(self, rows: np.ndarray) -> NeededStates:
        return NeededStates(torch.arange(len(rows), device=self.ids.device), to_device(rows, self.ids))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """See :class:`.attention.Attend`."""
        q, k, v = (self._squares(part) for part in (query, key, value))
        found = square(q, k, v, heads).transpose(1, 2).reshape(self.squares.texts * self.squares.length, -1)
        return self.squares.collect(found).view(query.shape)

    def _squares(self, part: Tensor) -> Tensor:
        """[T, H, D] → [B, H, L, D]."""
        spread = self.squares.spread(part.reshape(len(part), -1))
        return spread.view(self.squares.texts, self.squares.length, *part.shape[1:]).transpose(1, 2)


def pack(
    prompt_ids: Tensor, prompt_length: Tensor, tokens: Tensor, length: Tensor, pictures: Sequence[bytes] | None = None
) -> Packed:  # fmt: skip
    """Packs B texts into one sequence without padding, in which equal prompts stand once.

    Args:
        prompt_ids: int [B, P], right-padded.
        prompt_length: int [B], each at least 1.
        tokens: of the responses, int [B, n].
        length: of the responses, int [B], each in 1 … n.
        pictures: tells the pictures of each prompt apart, which are computed apart then; None = there are none.
    """
    prompts, sizes, made, lengths = (
        t.cpu().numpy().astype(np.int64) for t in (prompt_ids, prompt_length, tokens, length)
    )
    inputs, number = lengths - 1, np.arange(len(sizes))
    prompt_of, first = _unique(prompts, sizes, pictures)
    starts, texts_of = _starts(sizes[first]), np.repeat(first, sizes[first])
    total = int(sizes[first].sum())
    begins = total + _starts(inputs)
    span, columns = int((sizes + inputs).max()), np.arange(int((sizes + inputs).max()))
    inside = columns - sizes[:, None]
    fill = np.where(inside < 0, starts[prompt_of][:, None] + columns, begins[:, None] + inside)
    places, told, steps = _ragged(sizes[first]), np.repeat(number, inputs), _ragged(inputs)
    text, count = np.repeat(number, lengths), _ragged(lengths)
    last = starts[prompt_of] + sizes - 1
    longest = int(sizes.max())
    sharing = (np.arange(len(first))[:, None] == prompt_of).astype(np.float32) if len(first) < len(sizes) else None
    squares = Squares(
        len(sizes), span,
        fill=to_device(np.where(inside < inputs[:, None], fill, 0).ravel(), tokens),
        home=to_device(np.concatenate([texts_of * span + places, told * span + sizes[told] + steps]), tokens),
        prompts=total, longest=longest,
        slots=to_device(np.repeat(np.arange(len(first)), sizes[first]) * longest + places, tokens),
        sharing=None if sharing is None else to_device(sharing, tokens),
    )  # fmt: skip
    return Packed(
        ids=to_device(np.concatenate([prompts[texts_of, places], made[told, steps]]), tokens),
        positions=to_device(np.concatenate([places, sizes[told] + steps]), tokens),
        squares=squares,
        last=last,
        before=np.where(count == 0, last[text], begins[text] + count - 1),
        text=to_device(text, tokens),
        made=to_device(count, tokens),
        first=first,
        begins=starts,
    )


def rows(
    prompt_ids: Tensor, prompt_length: Tensor, tokens: Tensor, length: Tensor, pictures: Sequence[bytes] | None = None
) -> Packed:  # fmt: skip
    """Puts each of B texts into a right-padded row. Equal prompts are computed each time, and linear layers see the
    padding, too. The arguments are those of :func:`pack`."""
    sizes, lengths = prompt_length.long(), length.long()
    span = int((sizes + lengths - 1).max())
    texts, columns = torch.arange(len(sizes), device=tokens.device), torch.arange(span, device=tokens.device)
    prompts = _columns(prompt_ids.long(), columns.expand(len(sizes), -1))
    made = _columns(tokens.long(), columns - sizes[:, None])
    everything = torch.arange(len(sizes) * span, device=tokens.device)
    text = texts.repeat_interleave(lengths)
    count = torch.cat([columns.new_zeros(0), *(torch.arange(int(n), device=tokens.device) for n in lengths)])
    last = texts * span + sizes - 1
    return Packed(
        ids=torch.where(columns < sizes[:, None], prompts, made).flatten(),
        positions=columns.repeat(len(sizes)),
        squares=Squares(
            len(sizes), span, fill=everything, home=everything, prompts=0, longest=0, slots=everything[:0], sharing=None
        ),
        last=last.cpu().numpy(), before=(last[text] + count).cpu().numpy(), text=text, made=count,
        first=np.arange(len(sizes)), begins=np.arange(len(sizes)) * span,
    )  # fmt: skip


def _columns(values: Tensor, wanted: Tensor) -> Tensor:
    """Picks the columns of ``values`` [B, n] that each row wants, int64 [B, L]; the nearest one where there is none."""
    return values.gather(1, wanted.clamp(0, values.shape[1] - 1))


def _unique(
    prompts: np.ndarray, sizes: np.ndarray, shown: Sequence[bytes] | None
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Number of each text's prompt, int64 [B], and the first text that has each prompt, int64 [U]."""
    known: dict[bytes, int] = {}
    alike = [row[:size].tobytes() for row, size in zip(prompts, sizes, strict=True)]
    if shown is not None:
        alike = [text + b"|" + one for text, one in zip(alike, shown, strict=True)]
    numbers = [known.setdefault(one, len(known)) for one in alike]
    prompt_of = np.asarray(numbers, np.int64)
    return prompt_of, np.unique(prompt_of, return_index=True)[1]


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def _ragged(sizes: np.ndarray) -> np.ndarray:
    """0 … size − 1 for each size, one after the other."""
    return np.arange(int(sizes.sum())) - np.repeat(_starts(sizes), sizes)


def to_device(values: np.ndarray, like: Tensor) -> Tensor:
    """Copies a numpy array to the device of a tensor."""
    return torch.from_numpy(values).to(like.device)
