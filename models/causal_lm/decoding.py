"""Generates texts in lanes, token by token (:class:`embodied.protocols.Decoding`).

    admit: prompts ─▶ prefill in groups of one shape ─▶ a lane's keys and values, hidden state of its last token
    step:  [layers on the last token of each lane] ─▶ distribution ─▶ token ─▶ ended?

A step computes all lanes, whatever they hold, so that its shape is always the same. A prefill has a fixed number of
rows, and as many columns as the prompt's own length asks for. A prompt that some lane still holds is copied from there
and not computed again: the members of a group share one prefill, also when they are admitted one after the other.

Shapes: N lanes, n tokens of a record, V vocabulary, d width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from embodied import instructions
from embodied.types import Decision, Sampling

from ..shared import sampling as drawing
from .distribution import Rows, next_token
from .lanes import LEAST, Cache, OneToken, Prefill, blocks
from .tokenizer import check_stop

if TYPE_CHECKING:
    from .policy import CausalLMPolicy

ROWS = 4  # prompts of a prefill; a group of fewer is filled up
# The lanes that are computed are a multiple of it. With fewer than four rows MKL adds up a product in another order,
# and a tensor that does not fill a processor's vectors ends in numbers whose exp and tanh round otherwise.
LANES = 16

Prompt = tuple[int, ...]


class LaneDecoding:
    """See :class:`embodied.protocols.Decoding`."""

    def __init__(self, policy: CausalLMPolicy, lanes: int) -> None:
        self.prefilled = 0  # tokens of prompts that were computed, without what filled up rows
        self._policy, self._lanes = policy, -(-lanes // LANES) * LANES
        self._trunk, self._tokenizer, self._n = policy.trunk, policy.tokenizer, policy.settings.max_new_tokens
        self.begin(Sampling())

    def begin(self, sampling: Sampling) -> None:
        """See :meth:`embodied.protocols.Decoding.begin`."""
        check_stop(sampling.stop)
        self._sampling, self._limit = sampling, min(self._n, sampling.max_new_tokens or self._n)
        self._may_complete = self._tokenizer.may_complete(sampling.stop) if sampling.stop else []
        self._prompts: list[Prompt] = [()] * self._lanes  # what each lane holds
        self._holders: dict[Prompt, dict[int, None]] = {}  # the lanes that hold a prompt, in the order of arrival
        self._made = [0] * self._lanes  # tokens of each lane's response
        self._busy, self._fresh = set[int](), set[int]()  # fresh: its first token comes from the prefill
        with torch.inference_mode():
            self._allocate()

    def _allocate(self) -> None:
        lanes, device = self._lanes, self._policy.device
        width, vocabulary = self._trunk.config.hidden_size, self._trunk.vocabulary
        self._cache = Cache(lanes)
        self._ends = torch.tensor(self._tokenizer.ends, device=device)
        self._lane = torch.arange(lanes, device=device)
        self._active = torch.zeros(lanes, dtype=torch.bool, device=device)
        self._count = torch.zeros(lanes, dtype=torch.long, device=device)  # tokens of the response
        self._place = torch.zeros(lanes, dtype=torch.long, device=device)  # where the next token to be read goes
        self._last = torch.zeros(lanes, dtype=torch.long, device=device)  # that token
        self._hidden = torch.zeros(lanes, width, device=device)  # of the prompt's last token
        self._noise = torch.zeros(lanes, self._n, device=device)
        self._tokens = torch.zeros(lanes, self._n, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(lanes, self._n, device=device)
        penalised = self._sampling.repetition_penalty != 1.0
        self._seen = torch.zeros(lanes, vocabulary, dtype=torch.bool, device=device) if penalised else None

    @torch.inference_mode()
    def admit(self, lanes: Sequence[int], obs: Mapping[str, Tensor], noise: Tensor) -> None:
        """See :meth:`embodied.protocols.Decoding.admit`."""
        rows, lengths = obs["prompt_ids"].tolist(), obs["prompt_length"].tolist()
        prompts = {lane: tuple(row[:size]) for lane, row, size in zip(lanes, rows, lengths, strict=True)}
        held = self._sources(prompts)
        self._copy(held, prompts)
        for lane in lanes:
            self._forget_prompt(lane)
        for lane in held:
            self._hold(lane, prompts[lane])
        missing = {lane: prompt for lane, prompt in prompts.items() if lane not in held}
        self._prefill(missing)
        self._copy(self._sources(missing), prompts)
        for lane in lanes:
            self._hold(lane, prompts[lane])
        self._start(lanes, prompts, noise)

    def _copy(self, sources: Mapping[int, int], prompts: Mapping[int, Prompt]) -> None:
        """Copies prompts from lanes that hold them: {lane: lane that holds its prompt}."""
        moves = {lane: source for lane, source in sources.items() if lane != source}
        if not moves:
            return
        targets, origin = (self._there(list(part)) for part in (moves.keys(), moves.values()))
        self._cache.copy(origin, targets, max(len(prompts[lane]) for lane in moves))
        self._hidden[targets] = self._hidden[origin]

    def _sources(self, prompts: Mapping[int, Prompt]) -> dict[int, int]:
        """A lane that holds the prompt of each of these lanes, if there is one: {lane: source}."""
        found = {lane: self._holders.get(prompt) for lane, prompt in prompts.items()}
        return {lane: next(iter(holders)) for lane, holders in found.items() if holders}

    def _hold(self, lane: int, prompt: Prompt) -> None:
        self._prompts[lane] = prompt
        self._holders.setdefault(prompt, {})[lane] = None

    def _forget_prompt(self, lane: int) -> None:
        prompt, self._prompts[lane] = self._prompts[lane], ()
        holders = self._holders.get(prompt, {})
        holders.pop(lane, None)
        if not holders:
            self._holders.pop(prompt, None)

    def _prefill(self, wanted: Mapping[int, Prompt]) -> None:
        """Computes prompts {lane: prompt}, each once, those of like length together."""
        by_length: dict[int, list[int]] = {}
        for prompt, lane in {prompt: lane for lane, prompt in wanted.items()}.items():
            by_length.setdefault(blocks(len(prompt)), []).append(lane)
        for length, lanes in by_length.items():
            for first in range(0, len(lanes), ROWS):
                self._prefill_group(lanes[first : first + ROWS], wanted, length)

    def _prefill_group(self, lanes: list[int], wanted: Mapping[int, Prompt], length: int) -> None:
        ids = np.zeros((ROWS, length), np.int64)
        for row, lane in enumerate(lanes):
            ids[row, : len(wanted[lane])] = wanted[lane]
        attend, places = Prefill(ROWS), torch.arange(length, device=self._lane.device).repeat(ROWS)
        with self._acting():
            hidden = self._trunk.hidden(self._there(ids).flatten(), self._trunk.rotary(places), attend)
        self._cache.reserve(attend.kept, length + self._limit)
        for row, lane in enumerate(lanes):
            self._cache.put(lane, attend.kept, row, len(wanted[lane]))
            self._hidden[lane] = hidden[row * length + len(wanted[lane]) - 1]
            self._hold(lane, wanted[lane])
            self.prefilled += len(wanted[lane])

    def _start(self, lanes: Sequence[int], prompts: Mapping[int, Prompt], noise: Tensor) -> None:
        where = self._there(list(lanes))
        self._place[where] = self._there([len(prompts[lane]) for lane in lanes])
        self._count[where], self._last[where], self._active[where] = 0, 0, True
        self._tokens[where], self._logprobs[where] = 0, 0.0
        self._noise[where] = noise.to(self._noise)
        for lane in lanes:
            self._made[lane] = 0
            if self._seen is not None:
                self._seen[lane] = False
                self._seen[lane, self._there(list(prompts[lane]))] = True
        self._busy.update(lanes)
        self._fresh.update(lanes)

    @torch.inference_mode()
    def step(self) -> Sequence[int]:
        """See :meth:`embodied.protocols.Decoding.step`. Each busy lane gets one token."""
        if not self._busy:
            return []
        with self._acting():
            logits = self._trunk.logits(self._next_hidden())
        logp = next_token(logits, Rows(self._count, self._seen), self._sampling, self._ends)
        at = self._count.clamp(max=self._n - 1).unsqueeze(1)
        token = drawing.draw(logp.unsqueeze(0), self._noise.gather(1, at).T, self._sampling)[0]
        token = token.clamp(max=logp.shape[1] - 1)  # of NaN, which weights that diverged give
        told = logp.gather(1, token.unsqueeze(1))
        self._tokens.scatter_(1, at, torch.where(self._active, token, self._tokens.gather(1, at)[:, 0]).unsqueeze(1))
        self._logprobs.scatter_(1, at, torch.where(self._active.unsqueeze(1), told, self._logprobs.gather(1, at)))
        if self._seen is not None:
            self._seen[self._lane, token] |= self._active
        self._place += self._active & (self._count > 0)  # the first token goes right behind the prompt
        self._count += self._active
        self._last = torch.where(self._active, token, self._last)
        return self._ended(token)

    def _next_hidden(self) -> Tensor:
        """Hidden states [N, d] whose logits tell the next token of each busy lane."""
        if self._busy == self._fresh:
            return self._hidden
        span = max(len(self._prompts[lane]) + self._made[lane] for lane in self._busy)
        attend = OneToken(self._cache, self._lane, self._place, max(blocks(span), LEAST))
        hidden = self._trunk.hidden(self._last, self._trunk.rotary(self._place), attend).float()
        if self._fresh:
            fresh = self._there(sorted(self._fresh))
            hidden[fresh] = self._hidden[fresh]
        return hidden

    def _ended(self, token: Tensor) -> list[int]:
        """The lanes whose text is whole with ``token`` [N]. Reads from the device once, and once more for ``stop``."""
        self._fresh.clear()
        for lane in self._busy:
            self._made[lane] += 1
        drawn = token.tolist()
        ends = () if self._sampling.ignore_eos else self._tokenizer.ends
        whole = [lane for lane in sorted(self._busy) if drawn[lane] in ends or self._made[lane] >= self._limit]
        if self._sampling.stop:
            whole = sorted({*whole, *self._stopped(drawn, self._busy.difference(whole))})
        if whole:
            self._active[self._there(whole)] = False
            self._busy.difference_update(whole)
        return whole

    def _stopped(self, drawn: Sequence[int], among: set[int]) -> list[int]:
        known = len(self._may_complete)
        lanes = [lane for lane in sorted(among) if drawn[lane] < known and self._may_complete[drawn[lane]]]
        if not lanes:
            return []
        texts = self._tokens[self._there(lanes)].tolist()
        stop = self._sampling.stop
        pairs = zip(lanes, texts, strict=True)
        return [lane for lane, row in pairs if self._tokenizer.completes(row[: self._made[lane]], stop)]

    @torch.inference_mode()
    def take(self, lanes: Sequence[int]) -> Decision:
        """See :meth:`embodied.protocols.Decoding.take`."""
        where = self._there(list(lanes))
        tokens, lengths = self._tokens[where], [self._made[lane] for lane in lanes]
        rows = [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
        fields = {
            "tokens": tokens.int(),
            "length": torch.tensor(lengths, dtype=torch.int32, device=tokens.device),
            "actions": self._there(written(map(self._tokenizer.text, rows), len(rows), self._policy.max_bytes)),
            "logprobs": self._logprobs[where],
        }
        if self._policy.value_head is not None:
            fields["value"] = self._policy.value_head(self._hidden[where])
        return Decision(fields)

    @torch.inference_mode()
    def free(self, lane: int) -> None:
        """See :meth:`embodied.protocols.Decoding.free`. The lane still holds its prompt."""
        self._busy.discard(lane)
        self._fresh.discard(lane)
        self._active[lane] = False

    def end(self) -> None:
        """See :meth:`embodied.protocols.Decoding.end`."""
        self._cache = Cache(self._lanes)
        self._prompts, self._holders = [()] * self._lanes, {}
        self._busy, self._fresh = set(), set()

    def _acting(self) -> AbstractContextManager[None]:
        return self._policy.acting()

    def _there(self, values: Sequence[int] | np.ndarray) -> Tensor:
        return torch.as_tensor(values, device=self._lane.device)


def written(texts: Iterable[str], count: int, max_bytes: int) -> np.ndarray:
    """Texts as the bytes of an action, uint8 [count, 1, L]; the end of one that is too long is left out."""
    rows = np.zeros((count, 1, max_bytes), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        instructions.write(text, row[0], cut=True)
    return rows
