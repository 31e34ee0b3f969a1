"""Evaluates recorded responses: log-probs, entropies and values of their tokens, with gradients.

    records ─▶ packed end to end ─▶ hidden states ─▶ logits, in parts ─▶ distribution ─▶ log-probs, entropies

Shapes: B texts, n tokens of a record, N response tokens of all texts, R of these, V vocabulary, d width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from embodied.types import Evaluation, Sampling

from ..shared import sampling as drawing
from .decoding.distribution import Rows, first_seen, next_token
from .network.context_parallel import Part
from .network.packing import Packed, pack, rows
from .network.vision import Placed, digest
from .parts import Parts

LOGITS_AT_ONCE = 1 << 23  # numbers; more are computed in parts, and a second time in the backward pass


def evaluate(
    parts: Parts, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool
) -> Evaluation:  # fmt: skip
    """Computes log-probs, entropies and values of recorded texts. See :meth:`embodied.protocols.Policy.evaluate`."""
    made = _pass(parts, records, sampling)
    logprobs, entropy = (made.by_record(found) for found in made.chosen())
    return Evaluation(logprobs, entropy, made.values(), made.distribution() if distribution else None)


def _pass(parts: Parts, records: Mapping[str, Tensor], sampling: Sampling) -> _Pass:
    tokens = records["tokens"].long()
    lay = pack if parts.settings.sequence_packing else rows
    shown = None if parts.vision is None else parts.vision.shown(records)
    packed = lay(
        records["prompt_ids"], records["prompt_length"], records["tokens"], records["length"],
        None if shown is None else [digest(pixels) for pixels in shown],
    )  # fmt: skip
    part = packed if parts.now.team is None else Part.of(packed, parts.now.team)
    parts.now.record_rows = part.places, packed.squares.length
    with parts.number_format():
        placed = None if shown is None else _placed(parts, records, packed, shown)
        hidden = parts.trunk.hidden(part.ids, parts.trunk.rotary(part.positions), part, placed)
    since = None
    if sampling.repetition_penalty != 1.0:
        prompts, sizes = records["prompt_ids"].long(), records["prompt_length"].long()
        since = first_seen(prompts, sizes, tokens, parts.trunk.vocabulary)
    return _Pass(parts, sampling, tokens, packed, part, hidden, since)


def _placed(
    parts: Parts, records: Mapping[str, Tensor], packed: Packed, shown: Sequence[np.ndarray]
) -> Placed | None:  # fmt: skip
    """The features of pictures, once for each prompt that is computed."""
    assert parts.vision is not None
    ids, sizes = records["prompt_ids"].cpu().numpy(), records["prompt_length"].cpu().numpy()
    first = packed.first.tolist()
    prompts = [ids[text, : sizes[text]] for text in first]
    return parts.vision.placed(prompts, packed.begins.tolist(), [shown[text] for text in first])


@dataclass(frozen=True)
class _Pass:
    """The network's pass over the texts of some records."""

    parts: Parts
    sampling: Sampling
    tokens: Tensor  # int64 [B, n]
    packed: Packed
    part: Packed | Part  # the tokens that this process computes: all, or its part of them
    hidden: Tensor  # hidden states of ``part``, [t, d]
    since: Tensor | None  # int32 [B, V], see first_seen; None = not needed

    def by_record(self, values: Tensor) -> Tensor:
        """Puts a value of each response token [N] where it stands in its record: float32 [B, n], 0 elsewhere."""
        place = (self.packed.text, self.packed.made)
        return self.hidden.new_zeros(self.tokens.shape, dtype=torch.float32).index_put(place, values)

    def chosen(self) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the recorded tokens. Logits of a large vocabulary are never all there at
        once."""
        chosen, asked = self.tokens[self.packed.text, self.packed.made], self.part.answers
        size = max(1, LOGITS_AT_ONCE // self.parts.trunk.vocabulary)
        slices = [*zip(asked.number.split(size), asked.row.split(size), strict=True)]

        def one(number: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            logp = self._log_probs(number, row)
            return logp.gather(1, chosen[number].unsqueeze(1)).squeeze(1), drawing.entropy(logp)

        if len(slices) == 1:
            logprobs, entropies = one(*slices[0])
            return asked.together(logprobs), asked.together(entropies)
        again = torch.is_grad_enabled()
        found = [checkpoint(one, *part, use_reentrant=False) if again else one(*part) for part in slices]
        columns = zip(*found, strict=True)
        logprobs, entropies = (asked.together(torch.cat(column)) for column in columns)
        return logprobs, entropies

    def values(self) -> Tensor | None:
        """Values [B, 1] of the prompts, or [B, n] before each token; None without a value head."""
        if (head := self.parts.value_head) is None:
            return None
        token_level = self.parts.settings.value_type == "token_level"
        asked = self.part.answers if token_level else self.part.prompts
        found = asked.together(head(self.hidden[asked.row]))
        return self.by_record(found[:, 0]) if token_level else found

    def distribution(self) -> Tensor:
        """Log-probs of all tokens, float32 [B, n, V]. Behind the end of a text, token 0 is certain."""
        shape = (*self.tokens.shape, self.parts.trunk.vocabulary)
        everything = self.hidden.new_full(shape, drawing.EXCLUDED, dtype=torch.float32)
        everything[..., 0] = 0.0
        asked = self.part.answers
        found = asked.together(self._log_probs(asked.number, asked.row))
        return everything.index_put((self.packed.text, self.packed.made), found)

    def _log_probs(self, number: Tensor, row: Tensor) -> Tensor:
        """The distribution of the response tokens ``number`` int64 [R], which the hidden states ``row`` int64 [R] tell:
        float32 [R, V]."""
        made, packed = self.packed.made[number], self.packed
        seen = None if self.since is None else self.since[packed.text[number]] <= made.unsqueeze(1)
        ends = torch.tensor(self.parts.tokenizer.ends, device=number.device)
        logits = self.parts.trunk.logits(self.hidden[row])
        return next_token(logits, Rows(made, seen), self.sampling, ends)
