"""A fake policy that writes: each letter depends on the one before it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from embodied import instructions
from embodied.errors import SpecMismatchError
from embodied.logprobs import LOGPROB_DTYPES, log_softmax
from embodied.protocols import EngineFacts, EngineText
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling, TextAction

END = 0
LETTERS = "\0abcd #"


class FakeTextPolicy(nn.Module):
    """Log-probs of the next letter are a row of a table, chosen by the letter before.

    Args:
        length: n, most letters of an answer.
        max_bytes: of the env's action.
        value_head: also estimate returns, by a table of the letter before.
        value_type: token_level = a value for each letter; chunk_level = that of the prompt alone.
    """

    def __init__(
        self, length: int = 8, max_bytes: int = 12, seed: int = 0, value_head: bool = False,
        value_type: str = "chunk_level",
    ) -> None:  # fmt: skip
        super().__init__()
        self._length, self._max_bytes = length, max_bytes
        self._values = length if value_type == "token_level" else 1
        self.value_head = nn.Parameter(torch.zeros(len(LETTERS))) if value_head else None
        table = torch.randn(len(LETTERS), len(LETTERS), generator=torch.Generator().manual_seed(seed))
        self.table = nn.Parameter(0.3 * table)

    @property
    def spec(self) -> PolicySpec:
        n = self._length
        decision = {
            "tokens": ArraySpec((n,), "int32"), "length": ArraySpec((), "int32"),
            "actions": TextAction(self._max_bytes).field(1), "logprobs": ArraySpec((n,), "float32"),
        }  # fmt: skip
        if self.value_head is not None:
            decision["value"] = ArraySpec((self._values,), "float32")
        elements = Elements((n,), length_axis=0)
        return PolicySpec(1, decision, elements, Noise((n,)), distribution=False, logprob_dtypes=LOGPROB_DTYPES)

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

    def decoding(self, lanes: int, enforce_eager: bool = True) -> FakeDecoding:
        return FakeDecoding(self, lanes)

    def log_probs(self, before: Tensor, sampling: Sampling) -> Tensor:
        return log_softmax(self.table[before] / sampling.temperature, sampling)

    def evaluate(self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False) -> Evaluation:
        tokens = records["tokens"].long()
        before = torch.cat([records["last"].long()[:, None], tokens[:, :-1]], dim=1)
        logp = self.log_probs(before, sampling)
        value = None if self.value_head is None else self.value_head[before[:, : self._values]]
        return Evaluation(logp.take_along_dim(tokens[..., None], -1)[..., 0], -(logp.exp() * logp).sum(-1), value)

    def tokens(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        return 1 + records["length"].astype(np.int64)

    def describe(self) -> Mapping[str, str]:
        return {"model": "table of letters"}

    @property
    def engine_facts(self) -> EngineFacts:
        return EngineFacts("float32", 1 + self._length, self._length, (END,))

    def engine_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"letters": LETTERS}), encoding="utf-8")

    def engine_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "table", self.table.detach()

    def engine_prompts(self, obs: Mapping[str, Tensor]) -> list[list[int]]:
        return [[last] for last in obs["last"].tolist()]

    def engine_decision(self, texts: Sequence[EngineText], sampling: Sampling) -> Decision:
        return _decision(self.spec, [(list(text.tokens), list(text.logprobs), []) for text in texts])


class FakeDecoding:
    """Decodes one letter a step in each lane (:class:`embodied.protocols.Decoding`)."""

    def __init__(self, policy: FakeTextPolicy, lanes: int) -> None:
        self._policy, self._sampling = policy, Sampling()
        self._made: dict[int, tuple[list[int], list[float], list[float]]] = {}  # lane → letters, log-probs, values
        self._before, self._noise, self._whole = [0] * lanes, [torch.zeros(0)] * lanes, set[int]()

    def begin(self, sampling: Sampling) -> None:
        self._sampling, self._made, self._whole = sampling, {}, set()

    def admit(self, lanes: Sequence[int], obs: Mapping[str, Tensor], noise: Tensor) -> None:
        for lane, last, drawn in zip(lanes, obs["last"].tolist(), noise, strict=True):
            assert lane not in self._made, "the lane is busy"
            self._made[lane], self._before[lane], self._noise[lane] = ([], [], []), last, drawn

    @torch.no_grad()
    def step(self) -> Sequence[int]:
        busy = [lane for lane in self._made if lane not in self._whole]
        for lane in busy:
            letters, logprobs, values = self._made[lane]
            logp = self._policy.log_probs(torch.tensor(self._before[lane]), self._sampling)
            drawn = int((logp.exp().cumsum(-1) <= self._noise[lane][len(letters)]).sum().clamp(max=len(LETTERS) - 1))
            letter = drawn if self._sampling.do_sample else int(logp.argmax())
            letters.append(letter)
            logprobs.append(float(logp[letter]))
            if self._policy.value_head is not None:
                values.append(float(self._policy.value_head[self._before[lane]]))
            self._before[lane] = letter
            if letter == END or len(letters) == self._policy.spec.elements.shape[0]:
                self._whole.add(lane)
        return [lane for lane in busy if lane in self._whole]

    def take(self, lanes: Sequence[int]) -> Decision:
        found = [self._made.pop(lane) for lane in lanes]
        self._whole -= set(lanes)
        return _decision(self._policy.spec, found)

    @torch.no_grad()
    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        assert self._policy.value_head is not None
        return self._policy.value_head[obs["last"].long()]

    def widest_step(self) -> None:
        """Does nothing: its letters take no memory that a dry run would count."""

    def end(self) -> None:
        self._made, self._whole = {}, set()

    def free(self, lane: int) -> None:
        del self._made[lane]
        self._whole.discard(lane)


def _decision(spec: PolicySpec, found: Sequence[tuple[list[int], list[float], list[float]]]) -> Decision:
    """Puts letters, their log-probs and the values before them, if there are any, into the fields of a record."""
    declared = spec.decision.items()
    fields = {name: torch.zeros(len(found), *f.shape, dtype=getattr(torch, f.dtype)) for name, f in declared}
    for row, (letters, logprobs, values) in enumerate(found):
        fields["tokens"][row, : len(letters)] = torch.tensor(letters, dtype=torch.int32)
        fields["logprobs"][row, : len(letters)] = torch.tensor(logprobs)
        fields["length"][row] = len(letters)
        if "value" in fields:
            room = fields["value"].shape[1]
            fields["value"][row, : len(values)] = torch.tensor(values[:room])
        text = "".join(LETTERS[letter] for letter in letters if letter != END)
        instructions.write(text, fields["actions"][row, 0].numpy(), cut=True)
    return Decision(fields)


def _index(letter: str) -> int:
    return max(LETTERS.find(letter), 0) if letter else END
