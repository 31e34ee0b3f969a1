"""Evaluates recorded responses: log-probs, entropies and values of their tokens, with gradients.

    records ─▶ packed end to end ─▶ hidden states ─▶ logits, in parts ─▶ distribution ─▶ log-probs, entropies

Shapes: B texts, n tokens of a record, N response tokens of all texts, R of these, V vocabulary, d width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from embodied.types import Evaluation, Sampling

from ..shared import sampling as drawing
from .distribution import Rows, first_seen, next_token
from .packing import Packed, pack, rows

if TYPE_CHECKING:
    from .policy import CausalLMPolicy

LOGITS_AT_ONCE = 1 << 23  # numbers; more are computed in parts, and a second time in the backward pass


def evaluate(
    policy: CausalLMPolicy, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool
) -> Evaluation:  # fmt: skip
    """See :meth:`embodied.protocols.Policy.evaluate`."""
    made = _pass(policy, records, sampling)
    logprobs, entropy = (made.by_record(found) for found in made.chosen())
    return Evaluation(logprobs, entropy, made.values(), made.distribution() if distribution else None)


def _pass(policy: CausalLMPolicy, records: Mapping[str, Tensor], sampling: Sampling) -> _Pass:
    tokens = records["tokens"].long()
    lay = pack if policy.settings.sequence_packing else rows
    packed = lay(records["prompt_ids"], records["prompt_length"], records["tokens"], records["length"])
    with policy.number_format():
        hidden = policy.trunk.hidden(packed.ids, policy.trunk.rotary(packed.positions), packed)
    since = None
    if sampling.repetition_penalty != 1.0:
        prompts, sizes = records["prompt_ids"].long(), records["prompt_length"].long()
        since = first_seen(prompts, sizes, tokens, policy.trunk.vocabulary)
    return _Pass(policy, sampling, tokens, packed, hidden, since)


@dataclass(frozen=True)
class _Pass:
    """The network's pass over the texts of some records."""

    policy: CausalLMPolicy
    sampling: Sampling
    tokens: Tensor  # int64 [B, n]
    packed: Packed
    hidden: Tensor  # of all tokens of the pass, [T, d]
    since: Tensor | None  # int32 [B, V], see first_seen; None = not needed

    def by_record(self, values: Tensor) -> Tensor:
        """Puts a value of each response token [N] where it stands in its record: float32 [B, n], 0 elsewhere."""
        place = (self.packed.text, self.packed.made)
        return self.hidden.new_zeros(self.tokens.shape, dtype=torch.float32).index_put(place, values)

    def chosen(self) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the recorded tokens. Logits of a large vocabulary are never all there at
        once."""
        chosen = self.tokens[self.packed.text, self.packed.made]
        size = max(1, LOGITS_AT_ONCE // self.policy.trunk.vocabulary)
        parts = torch.arange(len(chosen), device=chosen.device).split(size)

        def one(part: Tensor) -> tuple[Tensor, Tensor]:
            logp = self._log_probs(part)
            return logp.gather(1, chosen[part].unsqueeze(1)).squeeze(1), drawing.entropy(logp)

        if len(parts) == 1:
            return one(parts[0])
        again = torch.is_grad_enabled()
        found = [checkpoint(one, part, use_reentrant=False) if again else one(part) for part in parts]
        logprobs, entropies = zip(*found, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def values(self) -> Tensor | None:
        """Values [B, 1] of the prompts, or [B, n] before each token; None without a value head."""
        if (head := self.policy.value_head) is None:
            return None
        if self.policy.settings.value_type != "token_level":
            return head(self.hidden[self.packed.last])
        return self.by_record(head(self.hidden[self.packed.before])[:, 0])

    def distribution(self) -> Tensor:
        """Log-probs of all tokens, float32 [B, n, V]. Behind the end of a text, token 0 is certain."""
        shape = (*self.tokens.shape, self.policy.trunk.vocabulary)
        everything = self.hidden.new_full(shape, drawing.EXCLUDED, dtype=torch.float32)
        everything[..., 0] = 0.0
        part = torch.arange(len(self.packed.text), device=self.tokens.device)
        return everything.index_put((self.packed.text, self.packed.made), self._log_probs(part))

    def _log_probs(self, part: Tensor) -> Tensor:
        """The distribution of the response tokens ``part`` int64 [R]: float32 [R, V]."""
        made, packed = self.packed.made[part], self.packed
        seen = None if self.since is None else self.since[packed.text[part]] <= made.unsqueeze(1)
        ends = torch.tensor(self.policy.tokenizer.ends, device=part.device)
        logits = self.policy.trunk.logits(self.hidden[packed.before[part]])
        return next_token(logits, Rows(made, seen), self.sampling, ends)
