"""Generates texts in lanes, token by token (:class:`embodied.protocols.Decoding`).

    admit: prompts ─▶ prefill in groups of one shape ─▶ a lane's keys and values, hidden state of its last token
    step:  [layers on the last token of each lane] ─▶ distribution ─▶ token ─▶ ended?

A step computes all lanes, whatever they hold, so that its shape is always the same. What it reads and writes stays
where it is, so that on a GPU it can be replayed as a CUDA graph (:mod:`...shared.replay`), one for each span of places
that are looked at. Only the tokens are read back, to see which texts have ended.

A prefill has a fixed number of rows, and as many columns as the prompt's own length asks for. A prompt that some lane
still holds is copied from there and not computed again: the members of a group share one prefill, also when they are
admitted one after the other.

Shapes: N lanes, n tokens of a record, V vocabulary, d width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from embodied import instructions
from embodied.types import Decision, Sampling

from ...shared import sampling as drawing
from ...shared.replay import Replayed
from ..network.vision import Placed
from ..parts import Parts
from ..text.tokenizer import check_stop
from .distribution import Rows, next_token
from .lanes import LEAST, Cache, OneToken, Prefill, blocks
from .prompts import ROWS, Holders, Prompt, alike, shown_to

# The lanes that are computed are a multiple of it. With fewer than four rows MKL adds up a product in another order,
# and a tensor that does not fill a processor's vectors ends in numbers whose exp and tanh round otherwise.
LANES = 16


class LaneDecoding:
    """Decodes texts in lanes, a token a step, with cached keys and values (:class:`embodied.protocols.Decoding`).

    Args:
        enforce_eager: False: steps are replayed as CUDA graphs where there is a GPU.
    """

    def __init__(self, parts: Parts, lanes: int, enforce_eager: bool = True) -> None:
        self.prefilled = 0  # tokens of prompts that were computed, without what filled up rows
        self._parts, self._lanes = parts, -(-lanes // LANES) * LANES
        self._replays = not enforce_eager and parts.device.type == "cuda"
        self._trunk, self._tokenizer, self._n = parts.trunk, parts.tokenizer, parts.settings.max_new_tokens
        self.begin(Sampling())

    def begin(self, sampling: Sampling) -> None:
        """Begins a rollout with the present weights; all lanes are free. See
        :meth:`embodied.protocols.Decoding.begin`."""
        check_stop(sampling.stop)
        self._sampling, self._limit = sampling, min(self._n, sampling.max_new_tokens or self._n)
        self._may_complete = self._tokenizer.may_complete(sampling.stop) if sampling.stop else []
        self._holders = Holders(self._lanes)
        self._made = [0] * self._lanes  # tokens of each lane's response
        self._busy, self._fresh = set[int](), set[int]()  # fresh: its first token comes from the prefill
        with torch.inference_mode():
            self._allocate()
        self._graphs = Replayed(self._advance, self._state, self._parts.device) if self._replays else None

    def _allocate(self) -> None:
        lanes, device, settings = self._lanes, self._parts.device, self._parts.settings
        width, vocabulary = self._trunk.config.hidden_size, self._trunk.vocabulary
        self._cache = Cache(lanes)
        self._ends = torch.tensor(self._tokenizer.ends, device=device)
        self._lane = torch.arange(lanes, device=device)
        self._active = torch.zeros(lanes, dtype=torch.bool, device=device)
        self._first = torch.zeros(lanes, dtype=torch.bool, device=device)  # the next token comes from the prefill
        self._count = torch.zeros(lanes, dtype=torch.long, device=device)  # tokens of the response
        self._place = torch.zeros(lanes, dtype=torch.long, device=device)  # position of the next token to be read
        self._last = torch.zeros(lanes, dtype=torch.long, device=device)  # the next token to be read
        self._hidden = torch.zeros(lanes, width, device=device)  # hidden state of the prompt's last token
        self._noise = torch.zeros(lanes, self._n, device=device)
        self._tokens = torch.zeros(lanes, self._n, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(lanes, self._n, device=device)
        by_token = self._parts.value_head is not None and settings.value_type == "token_level"
        self._values = torch.zeros(lanes, self._n, device=device) if by_token else None
        penalised = self._sampling.repetition_penalty != 1.0
        self._seen = torch.zeros(lanes, vocabulary, dtype=torch.bool, device=device) if penalised else None

    def _state(self) -> list[Tensor]:
        """Every tensor that a step reads or writes, but weights."""
        own = (self._ends, self._lane, self._active, self._first, self._count, self._place, self._last, self._hidden,
               self._noise, self._tokens, self._logprobs)  # fmt: skip
        maybe = [tensor for tensor in (self._values, self._seen) if tensor is not None]
        return [*own, *maybe, *self._cache.keys, *self._cache.values]

    @torch.inference_mode()
    def admit(self, lanes: Sequence[int], obs: Mapping[str, Tensor], noise: Tensor) -> None:
        """Begins n texts in free lanes. See :meth:`embodied.protocols.Decoding.admit`."""
        read, shown = shown_to(self._parts.vision, obs)
        prompts = dict(zip(lanes, read, strict=True))
        held = self._holders.sources(prompts)
        self._copy(held, prompts)
        for lane in lanes:
            self._holders.forget(lane)
        for lane in held:
            self._holders.hold(lane, prompts[lane])
        missing = {lane: prompt for lane, prompt in prompts.items() if lane not in held}
        self._prefill(missing, shown)
        self._copy(self._holders.sources(missing), prompts)
        for lane in lanes:
            self._holders.hold(lane, prompts[lane])
        self._start(lanes, prompts, noise)

    def _copy(self, sources: Mapping[int, int], prompts: Mapping[int, Prompt]) -> None:
        """Copies prompts from lanes that hold them: {lane: lane that holds its prompt}."""
        moves = {lane: source for lane, source in sources.items() if lane != source}
        if not moves:
            return
        targets, origin = (self._there(list(part)) for part in (moves.keys(), moves.values()))
        self._cache.copy(origin, targets, max(len(prompts[lane]) for lane in moves))
        self._hidden[targets] = self._hidden[origin]

    def _prefill(self, wanted: Mapping[int, Prompt], shown: Mapping[Prompt, np.ndarray]) -> None:
        """Computes prompts {lane: prompt}, each once, those of like length together."""
        lane_of = {prompt: lane for lane, prompt in wanted.items()}
        for prompts, length in alike(lane_of):
            hidden, attend = self._computed(prompts, length, shown)
            self._cache.reserve(attend.kept, length + self._limit)
            for row, prompt in enumerate(prompts):
                lane = lane_of[prompt]
                self._cache.put(lane, attend.kept, row, len(prompt))
                self._hidden[lane] = hidden[row * length + len(prompt) - 1]
                self._holders.hold(lane, prompt)
                self.prefilled += len(prompt)

    def _computed(
        self, prompts: Sequence[Prompt], length: int, shown: Mapping[Prompt, np.ndarray]
    ) -> tuple[Tensor, Prefill]:  # fmt: skip
        """Hidden states [ROWS · length, d] of at most ROWS prompts, each filled up to ``length``; their keys and
        values.

        Args:
            shown: pictures of the prompts that have some.
        """
        ids = np.zeros((ROWS, length), np.int64)
        for row, prompt in zip(ids, prompts, strict=False):
            row[: len(prompt)] = prompt.ids
        attend, places = Prefill(ROWS), torch.arange(length, device=self._lane.device).repeat(ROWS)
        with self._acting():
            placed = self._placed(prompts, length, shown) if shown else None
            return self._trunk.hidden(self._there(ids).flatten(), self._trunk.rotary(places), attend, placed), attend

    def _placed(
        self, prompts: Sequence[Prompt], length: int, shown: Mapping[Prompt, np.ndarray]
    ) -> Placed | None:  # fmt: skip
        """The features of the pictures of some prompts, a row of ``length`` tokens each."""
        assert self._parts.vision is not None
        with_pictures = [(row * length, prompt) for row, prompt in enumerate(prompts) if prompt in shown]
        return self._parts.vision.placed(
            [np.asarray(prompt.ids) for _, prompt in with_pictures],
            [begin for begin, _ in with_pictures],
            [shown[prompt] for _, prompt in with_pictures],
        )

    @torch.inference_mode()
    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Computes the values of n observations (:meth:`embodied.protocols.Decoding.value`). The bits are those that a
        decision would record."""
        assert self._parts.value_head is not None
        (wanted, shown), found = shown_to(self._parts.vision, obs), dict[Prompt, Tensor]()
        for prompts, length in alike(wanted):
            hidden, _ = self._computed(prompts, length, shown)
            last = self._there([row * length + len(prompt) - 1 for row, prompt in enumerate(prompts)])
            found |= zip(prompts, self._parts.value_head(hidden[last].float())[:, 0], strict=True)
        return torch.stack([found[prompt] for prompt in wanted])

    def _start(self, lanes: Sequence[int], prompts: Mapping[int, Prompt], noise: Tensor) -> None:
        where = self._there(list(lanes))
        self._place[where] = self._there([len(prompts[lane]) for lane in lanes])
        self._count[where], self._last[where], self._active[where], self._first[where] = 0, 0, True, True
        self._tokens[where], self._logprobs[where] = 0, 0.0
        if self._values is not None:
            self._values[where] = 0.0
        self._noise[where] = noise.to(self._noise)
        for lane in lanes:
            self._made[lane] = 0
            if self._seen is not None:
                self._seen[lane] = False
                self._seen[lane, self._there(list(prompts[lane].ids))] = True
        self._busy.update(lanes)
        self._fresh.update(lanes)

    @torch.inference_mode()
    def step(self) -> Sequence[int]:
        """Decodes one token in each busy lane; returns the lanes whose text has ended. See
        :meth:`embodied.protocols.Decoding.step`."""
        if not self._busy:
            return []
        span = self._span()
        return self._ended(self._advance(span) if self._graphs is None or not span else self._graphs(span))

    def _span(self) -> int:
        """Places of a lane that the step looks at; 0 if it reads no token, since all busy lanes are fresh. For graphs a
        power of two, so that there are few."""
        if self._busy == self._fresh:
            return 0
        most = max(self._holders.length(lane) + self._made[lane] for lane in self._busy)
        span = max(blocks(most), LEAST)
        return min(1 << (span - 1).bit_length(), self._cache.capacity) if self._replays else span

    def _advance(self, span: int) -> Tensor:
        """Gives each active lane its next token: int64 [N], of other lanes anything. Waits for nothing."""
        hidden = self._hidden
        with self._acting():
            if span:
                attend = OneToken(self._cache, self._lane, self._place, span)
                read = self._trunk.hidden(self._last, self._trunk.rotary(self._place), attend).float()
                some_first = self._replays or self._fresh  # a graph cannot ask
                hidden = torch.where(self._first.unsqueeze(1), hidden, read) if some_first else read
            logits = self._trunk.logits(hidden)
        logp = next_token(logits, Rows(self._count, self._seen), self._sampling, self._ends)
        at = self._count.clamp(max=self._n - 1).unsqueeze(1)
        token = drawing.draw(logp.unsqueeze(0), self._noise.gather(1, at).T, self._sampling)[0]
        token = token.clamp(max=logp.shape[1] - 1)  # weights that diverged give NaN, and NaN an id past the last
        self._keep(self._tokens, at, token.unsqueeze(1))
        self._keep(self._logprobs, at, logp.gather(1, token.unsqueeze(1)))
        if self._values is not None and self._parts.value_head is not None:
            self._keep(self._values, at, self._parts.value_head(hidden))
        if self._seen is not None:
            self._seen[self._lane, token] |= self._active
        self._place += self._active & (self._count > 0)  # the first token goes right behind the prompt
        self._count += self._active
        self._last.copy_(torch.where(self._active, token, self._last))
        self._first.zero_()
        return token

    def _keep(self, held: Tensor, at: Tensor, made: Tensor) -> None:
        """Writes what was made for active lanes [N, 1] at the places ``at`` int64 [N, 1] of [N, n]."""
        held.scatter_(1, at, torch.where(self._active.unsqueeze(1), made, held.gather(1, at)))

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
        """Returns the finished decisions of lanes and frees these. See :meth:`embodied.protocols.Decoding.take`."""
        where = self._there(list(lanes))
        tokens, lengths = self._tokens[where], [self._made[lane] for lane in lanes]
        rows = [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
        said = (self._tokenizer.answer(row, self._sampling) for row in rows)
        fields = {
            "tokens": tokens.int(),
            "length": torch.tensor(lengths, dtype=torch.int32, device=tokens.device),
            "actions": self._there(answer_bytes(said, len(rows), self._parts.now.max_bytes)),
            "logprobs": self._logprobs[where],
        }
        if self._values is not None:
            fields["value"] = self._values[where]
        elif self._parts.value_head is not None:
            fields["value"] = self._parts.value_head(self._hidden[where])
        return Decision(fields)

    @torch.inference_mode()
    def free(self, lane: int) -> None:
        """Drops the text that a lane decodes (:meth:`embodied.protocols.Decoding.free`). The lane still holds its
        prompt."""
        self._busy.discard(lane)
        self._fresh.discard(lane)
        self._active[lane], self._first[lane] = False, False

    @torch.inference_mode()
    def widest_step(self) -> None:
        """Computes the largest possible step, so that its memory is counted. See
        :meth:`embodied.protocols.Decoding.widest_step`."""
        self._advance(self._cache.capacity)

    def end(self) -> None:
        """Frees the lanes' memory. See :meth:`embodied.protocols.Decoding.end`."""
        self._cache, self._graphs = Cache(self._lanes), None
        self._holders, self._busy, self._fresh = Holders(self._lanes), set(), set()

    def _acting(self) -> AbstractContextManager[None]:
        return self._parts.acting()

    def _there(self, values: Sequence[int] | np.ndarray) -> Tensor:
        return torch.as_tensor(values, device=self._lane.device)


def answer_bytes(texts: Iterable[str], count: int, max_bytes: int) -> np.ndarray:
    """Encodes texts as the bytes of an action, uint8 [count, 1, L]; the end of one that is too long is left out."""
    rows = np.zeros((count, 1, max_bytes), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        instructions.write(text, row[0], cut=True)
    return rows
