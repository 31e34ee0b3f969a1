"""A fake policy that writes: each letter depends on the one before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from embodied import instructions
from embodied.errors import SpecMismatchError
from embodied.types import (
    ArraySpec,
    Decision,
    Elements,
    EnvSpec,
    Evaluation,
    Noise,
    PolicySpec,
    Sampling,
    TextAction,
)

END = 0
LETTERS = "\0abcd #"


class FakeTextPolicy(nn.Module):
    """Log-probs of the next letter are a row of a table, chosen by the letter before.

    Args:
        length: n, most letters of an answer.
        max_bytes: of the env's action.
    """

    def __init__(self, length: int = 8, max_bytes: int = 12, seed: int = 0) -> None:
        super().__init__()
        self._length, self._max_bytes = length, max_bytes
        table = torch.randn(len(LETTERS), len(LETTERS), generator=torch.Generator().manual_seed(seed))
        self.table = nn.Parameter(0.3 * table)

    @property
    def spec(self) -> PolicySpec:
        n = self._length
        decision = {
            "tokens": ArraySpec((n,), "int32"), "length": ArraySpec((), "int32"),
            "actions": TextAction(self._max_bytes).field(1), "logprobs": ArraySpec((n,), "float32"),
        }  # fmt: skip
        return PolicySpec(1, decision, Elements((n,), length_axis=0), Noise((n,)), distribution=False)

    def bind(self, env: EnvSpec) -> None:
        if env.action != TextAction(self._max_bytes):
            raise SpecMismatchError(
                f"the env takes {env.action}, and the policy writes up to {self._max_bytes} bytes", "choose a text env"
            )

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        return {"last": torch.tensor([_index(text[-1:]) for text in texts])}

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        texts = [instructions.read(row[0]) for row in actions.cpu().numpy()]
        rows = [[*(_index(letter) for letter in text), END][: self._length] for text in texts]
        tokens = [row + [END] * (self._length - len(row)) for row in rows]
        return {
            "tokens": torch.tensor(tokens, dtype=torch.int32),
            "length": torch.tensor([len(row) for row in rows], dtype=torch.int32),
        }

    def probe(self, obs: Mapping[str, Tensor]) -> tuple[str, ...]:
        return ()

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        made = FakeDecoding(self, len(noise))
        made.begin(sampling)
        made.admit(range(len(noise)), obs, noise)
        whole: list[int] = []
        while len(whole) < len(noise):
            whole += made.step()
        return made.take(range(len(noise)))

    def decoding(self, lanes: int) -> FakeDecoding:
        return FakeDecoding(self, lanes)

    def log_probs(self, before: Tensor, sampling: Sampling) -> Tensor:
        return (self.table[before] / sampling.temperature).log_softmax(-1)

    def evaluate(self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False) -> Evaluation:
        tokens = records["tokens"].long()
        before = torch.cat([records["last"].long()[:, None], tokens[:, :-1]], dim=1)
        logp = self.log_probs(before, sampling)
        return Evaluation(logp.take_along_dim(tokens[..., None], -1)[..., 0], -(logp.exp() * logp).sum(-1))

    def tokens(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        return 1 + records["length"].astype(np.int64)

    def describe(self) -> Mapping[str, str]:
        return {"model": "table of letters"}


class FakeDecoding:
    """See :class:`embodied.protocols.Decoding`. A letter a step."""

    def __init__(self, policy: FakeTextPolicy, lanes: int) -> None:
        self._policy, self._sampling = policy, Sampling()
        self._made: dict[int, tuple[list[int], list[float]]] = {}  # lane → letters, log-probs
        self._before, self._noise, self._whole = [0] * lanes, [torch.zeros(0)] * lanes, set[int]()

    def begin(self, sampling: Sampling) -> None:
        self._sampling, self._made, self._whole = sampling, {}, set()

    def admit(self, lanes: Sequence[int], obs: Mapping[str, Tensor], noise: Tensor) -> None:
        for lane, last, drawn in zip(lanes, obs["last"].tolist(), noise, strict=True):
            assert lane not in self._made, "the lane is busy"
            self._made[lane], self._before[lane], self._noise[lane] = ([], []), last, drawn

    @torch.no_grad()
    def step(self) -> Sequence[int]:
        busy = [lane for lane in self._made if lane not in self._whole]
        for lane in busy:
            letters, logprobs = self._made[lane]
            logp = self._policy.log_probs(torch.tensor(self._before[lane]), self._sampling)
            drawn = int((logp.exp().cumsum(-1) <= self._noise[lane][len(letters)]).sum().clamp(max=len(LETTERS) - 1))
            letter = drawn if self._sampling.do_sample else int(logp.argmax())
            letters.append(letter)
            logprobs.append(float(logp[letter]))
            self._before[lane] = letter
            if letter == END or len(letters) == self._policy.spec.elements.shape[0]:
                self._whole.add(lane)
        return [lane for lane in busy if lane in self._whole]

    def take(self, lanes: Sequence[int]) -> Decision:
        spec, found = self._policy.spec.decision, [self._made.pop(lane) for lane in lanes]
        self._whole -= set(lanes)
        fields = {name: torch.zeros(len(found), *f.shape, dtype=getattr(torch, f.dtype)) for name, f in spec.items()}
        for row, (letters, logprobs) in enumerate(found):
            fields["tokens"][row, : len(letters)] = torch.tensor(letters, dtype=torch.int32)
            fields["logprobs"][row, : len(letters)] = torch.tensor(logprobs)
            fields["length"][row] = len(letters)
            text = "".join(LETTERS[letter] for letter in letters if letter != END)
            instructions.write(text, fields["actions"][row, 0].numpy(), cut=True)
        return Decision(fields)

    def end(self) -> None:
        self._made, self._whole = {}, set()

    def free(self, lane: int) -> None:
        del self._made[lane]
        self._whole.discard(lane)


def _index(letter: str) -> int:
    return max(LETTERS.find(letter), 0) if letter else END
