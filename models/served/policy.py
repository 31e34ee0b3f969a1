"""The policy around a server: :class:`embodied.protocols.Policy` and :class:`~embodied.protocols.AnswersLater`, without
weights that could be trained."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, SpecMismatchError
from embodied.instructions import fields_of
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling

from . import fingerprint
from .crew import Crew, Patience
from .dialects import Address, Line, Question, Told, dialect
from .fingerprint import Fingerprint, alike, facts_of
from .fit import check_told, read_actions
from .mapping import Fill, Mapped, read
from .secret import read_token

TEXT = "instruction_text"  # field of encode_instructions: UTF-8, filled up with zeros
NOISE = 2  # numbers of 24 bits each, which name the session of a question
PATIENCE_S = 0.5


class ServedPolicy(nn.Module):
    """A policy whose decisions a server makes.

    A decision's noise names the session of its question, so that a server of ours draws by it: a decision is a function
    of observation and noise, whatever else is asked and over which connection. Log-probs are zero: servers do not tell
    them.

    Args:
        crew: asks; its ``verify`` is :meth:`verify`.
        told: what the server tells of itself.
        chunk: K; None = the server's.
        send_noise: requests bring the noise of a decision, which is then the one that the server declares.

    Raises:
        SpecMismatchError: the server takes no noise.
    """

    def __init__(
        self, address: Address, protocol: str, crew: Crew, told: Told, mapping: Mapped | None, chunk: int | None,
        send_noise: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.address, self.protocol, self.mapping, self.told = address, protocol, mapping, told
        self._crew, self._chunk = crew, chunk
        if send_noise and told.noise is None:
            raise SpecMismatchError(
                f"{address.url} takes no noise, and it is to be sent (send_noise; a head that chooses noise needs it)",
                "serve a policy with python -m embodied.tools.serve; a head of this one: actor.model.head=residual",
            )
        self._sent = told.noise if send_noise else None  # noise that requests bring
        self._env: EnvSpec | None = None
        self._fills: Mapping[str, Fill] | None = None  # None: the fields of the env are those of the request
        self._print: Fingerprint | None = None
        # what belongs to each env that it was bound to
        self._known: list[tuple[EnvSpec, Mapping[str, Fill] | None, Fingerprint, PolicySpec]] = []
        self._numbers = itertools.count(-1, -1)  # of ``act``; other callers count from 0
        self._others: list[tuple[int, np.ndarray]] = []  # answers that came while ``act`` waited for its own
        self._spec: PolicySpec | None = None

    @property
    def spec(self) -> PolicySpec:
        """See :attr:`embodied.protocols.Policy.spec`. Sizes are those of the env that it is bound to, and of the
        server's answers.

        Raises:
            SpecMismatchError: it is not bound yet.
        """
        if self._spec is None:
            raise SpecMismatchError("the served policy is not bound to an env yet", "call bind(env) first")
        return self._spec

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`. The first time, the server is asked about fixed observations.

        Raises:
            SpecMismatchError: the server does not fit the env.
            ServerLostError, ServerRefusedError: it does not answer.
        """
        if self._env == env:
            return
        for bound in self._known:
            if bound[0] == env:
                self._env, self._fills, self._print, self._spec = bound
                return
        check_told(self.told, env, self.mapping, self.address.url)
        if self._known:
            self.check()  # what answers about the first env is what will answer about this one
        self._fills = None if self.mapping is None else self.mapping.fills(env)
        self._env, self._print, self._spec = env, None, None
        try:
            self._settle(env)
        except BaseException:
            self._env = None
            raise

    def _settle(self, env: EnvSpec) -> None:
        """Learn from the server's answers what a decision holds, and what it answers first."""
        first, second = (self._crew.direct(self._asked_now) for _ in range(2))
        repeatable = alike(first, second)
        chunk = self._chunk or first.shape[1]
        if chunk > first.shape[1]:
            read_actions(first[0], env, None, chunk, self.address.url, ranged=False)  # says so
        self._print = Fingerprint(facts_of(self.told.facts), first if repeatable else None)
        noisy = self.told.greedy_noise or not repeatable
        self._spec = PolicySpec(
            chunk, {"actions": env.action.field(chunk), "logprobs": ArraySpec((1,), "float32")}, Elements((1,)),
            replace(self._noise, greedy=NOISE) if noisy and self._sent is None else self._noise, entropy=False,
            distribution=False, sampling=(), scored=False,
        )  # fmt: skip
        self._known.append((env, self._fills, self._print, self._spec))

    @property
    def _noise(self) -> Noise:
        """Random numbers of a decision: those that the server declares, or two that name a draw of the server's."""
        return Noise((NOISE,)) if self._sent is None else self._sent

    def _asked_now(self, line: Line) -> np.ndarray:
        """The server's answers to the fixed observations, over one connection: [COUNT, H, …]."""
        assert self._env is not None
        questions = [
            self._question(obs, text, np.zeros(self._noise.shape, np.float32), Sampling(do_sample=False), None)
            for obs, text in fingerprint.observations(self._env)
        ]
        # one by one: in a batch, rounding may differ, and so would the digits that name the weights
        found = [line.infer([one], time.monotonic() + self.address.timeout_s)[0] for one in questions]
        chunk = None if self._spec is None else self._spec.num_action_chunks
        read = [read_actions(one, self._env, None, chunk, self.address.url, ranged=False) for one in found]
        least = min(map(len, read))
        return np.stack([one[:least] for one in read])

    def verify(self, line: Line) -> None:
        """Compares what answers over a new connection with what answered first. From any thread.

        Raises:
            PolicyChangedError: it is another policy.
        """
        if (wanted := self._print) is None:
            return
        asked = self._asked_now(line)
        if wanted.answers is not None:
            least = min(wanted.answers.shape[1], asked.shape[1])
            wanted, asked = replace(wanted, answers=wanted.answers[:, :least]), asked[:, :least]
        wanted.check(Fingerprint(facts_of(line.told.facts), asked), self.address.url)

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.Policy.encode_instructions`. Returns the texts as bytes, uint8 [B, L]."""
        rows = [np.frombuffer(text.encode(errors="replace"), np.uint8) for text in texts]
        found = np.zeros((len(rows), max([1, *map(len, rows)])), np.uint8)
        for place, row in zip(found, rows, strict=True):
            place[: len(row)] = row
        return {TEXT: torch.from_numpy(found)}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """See :meth:`embodied.protocols.Policy.probe`. Says that a server draws by itself."""
        if self.repeatable:
            return ()
        return (
            f"{self.address.url} draws its actions itself: it answers equal observations differently. So numbers "
            "are not repeatable, and other weights behind it are noticed only if it says something else of itself",
        )

    @property
    def repeatable(self) -> bool:
        """Whether equal questions get equal answers."""
        return self._print is not None and self._print.answers is not None

    # -- answers -----------------------------------------------------------------------------------------------------

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        """See :meth:`embodied.protocols.Policy.act`. Asks for all, and waits for all. One observation is asked about in
        this thread: each thread that a question passes through may wait for a core."""
        assert self._env is not None
        arrays = {name: obs[name].cpu().numpy() for name in fields_of(self._env)}
        texts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in obs[TEXT].cpu().numpy()]
        drawn = noise.cpu().numpy()
        if len(texts) == 1:
            one = {name: array[0] for name, array in arrays.items()}
            question = self._question(one, texts[0], drawn[0], sampling, None, copied=False)
            found = self._crew.direct(lambda line: line.infer([question], time.monotonic() + self.address.timeout_s))
            decisions = [self._decision(found[0])]
        else:
            decisions = self._asked_apart(arrays, texts, drawn, sampling)
        return Decision({
            name: torch.from_numpy(np.stack([one[name] for one in decisions])).to(noise.device)
            for name in self.spec.decision
        })  # fmt: skip

    def _asked_apart(
        self, arrays: Mapping[str, np.ndarray], texts: Sequence[str], drawn: np.ndarray, sampling: Sampling
    ) -> list[dict[str, np.ndarray]]:
        """Asks about several observations at once; returns their decisions."""
        numbers = [next(self._numbers) for _ in texts]
        for row, (number, text) in enumerate(zip(numbers, texts, strict=True)):
            self.ask(number, {name: array[row] for name, array in arrays.items()}, text, drawn[row], sampling)
        found: dict[int, np.ndarray] = {}
        try:
            while len(found) < len(numbers):
                for number, actions in self._crew.take(PATIENCE_S):
                    if number in numbers:
                        found[number] = actions
                    else:
                        self._others.append((number, actions))
        finally:
            for number in numbers:
                self.forget(number)
        return [self._decision(found[number]) for number in numbers]

    def ask(
        self, number: int, obs: Mapping[str, np.ndarray], instruction: str, noise: np.ndarray, sampling: Sampling,
        place: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """See :meth:`embodied.protocols.AnswersLater.ask`."""
        self._crew.put(number, self._question(obs, instruction, noise, sampling, place))

    def _question(
        self, obs: Mapping[str, np.ndarray], instruction: str, noise: np.ndarray, sampling: Sampling,
        place: tuple[int, int] | None, copied: bool = True,
    ) -> Question:  # fmt: skip
        """Makes a question. ``copied``: its arrays are its own, as the observation may change before it is sent."""
        named = noise if self._sent is None else np.zeros(NOISE)
        high, low = (int(number * (1 << 24)) for number in named)
        brought = None if self._sent is None else np.array(noise, np.float32)
        if self._fills is None:
            assert self._env is not None
            request: dict[str, Any] = {
                name: np.array(obs[name]) if copied else obs[name] for name in fields_of(self._env)
            }
            request["prompt"] = instruction
        else:
            request = {key: fill(obs, instruction) for key, fill in self._fills.items()}
        return Question(request, not sampling.do_sample, (high << 24) + low, brought, place)

    def answers(self, timeout_s: float) -> Sequence[tuple[int, Mapping[str, np.ndarray]]]:
        """See :meth:`embodied.protocols.AnswersLater.answers`."""
        found = self._crew.take(0.0 if self._others else timeout_s)
        if self._others:  # else not assigned at each poll: a module's attributes cost 30 µs
            found, self._others = [*self._others, *found], []
        return [(number, self._decision(actions)) for number, actions in found]

    def _decision(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        assert self._env is not None
        chunk = self.spec.num_action_chunks
        read = read_actions(actions, self._env, self.mapping, chunk, self.address.url)
        return {"actions": read, "logprobs": np.zeros(1, np.float32)}

    def forget(self, number: int) -> None:
        """See :meth:`embodied.protocols.AnswersLater.forget`."""
        self._crew.drop(number)
        self._others = [pair for pair in self._others if pair[0] != number]

    def check(self) -> None:
        """See :meth:`embodied.protocols.AnswersLater.check`."""
        self._crew.direct(self.verify)

    # -- what it says ------------------------------------------------------------------------------------------------

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """Raises ConfigError: the weights are the server's."""
        raise ConfigError(
            f"the weights of {self.address.url} are the server's, and cannot be trained here",
            "train the checkpoint that it serves",
        )

    def extra_state(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.HasExtraState.extra_state`: what the server answered first."""
        return {"served": self._known[0][2].as_text()} if self._known else {}

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """See :meth:`embodied.protocols.HasExtraState.load_extra_state`.

        Raises:
            PolicyChangedError: another policy answers than that of the checkpoint.
        """
        if "served" in found and self._known:
            Fingerprint.from_text(found["served"]).check(self._known[0][2], self.address.url)

    def weights(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.NamesWeights.weights`."""
        known = "" if self._print is None else self._print.short
        return {"server": self.address.url, "fingerprint" if self.repeatable else "metadata": known}

    def sampler(self, sampling: Sampling) -> Mapping[str, Any]:
        """See :meth:`embodied.protocols.NamesSampler.sampler`."""
        return {} if self.repeatable else {"repeatable": False}

    def pictures(self) -> Mapping[str, Any]:
        """See :meth:`embodied.protocols.PreparesPictures.pictures`. What the server does with them is not known."""
        sent = {} if self.mapping is None else {k: dict(v) for k, v in self.mapping.request.items() if "camera" in v}
        return {"sent": sent or "as the env gives them"}

    def describe(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.Policy.describe`."""
        model = self.told.facts.get("model")
        told = {f"server's {name}": str(fact) for name, fact in model.items()} if isinstance(model, Mapping) else {}
        return {
            "server": f"{self.address.url} ({self.protocol})",
            **told,
            "output": "not asked yet" if self._spec is None else f"{self._spec.num_action_chunks} actions an answer",
            "identified by": ", ".join(f"{name} {value}" for name, value in self.weights().items() if name != "server"),
        }


def build(
    url: str, protocol: str, mapping: str | Mapping[str, Any] | None, chunk: int | None, connections: int,
    timeout_s: float, connect_s: float, reconnect_s: float, token_file: str | None, ca_file: str | None,
    send_noise: bool = False,
) -> ServedPolicy:  # fmt: skip
    """Builds the policy. See :func:`embodied.models.served.build_policy`."""
    for name, value in (("timeout_s", timeout_s), ("connect_s", connect_s), ("reconnect_s", reconnect_s)):
        if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"actor.model.{name} is {value!r}", "give seconds, above 0")
    for name, count in (("connections", connections), ("num_action_chunks", chunk)):
        if count is not None and (isinstance(count, bool) or count < 1):
            raise ConfigError(f"actor.model.{name} is {count!r}", "give a whole number from 1")
    known, connect = dialect(protocol, url)
    mapped = read(mapping)
    address = Address(url, read_token(token_file), ca_file, float(timeout_s))
    made: list[ServedPolicy] = []
    crew = Crew(
        connect, address, connections, Patience(connect_s, reconnect_s), lambda line: made[0].verify(line)
    )  # fmt: skip
    told = crew.direct(lambda line: line.told)
    chunk = chunk or (mapped.take if mapped else None) or told.num_action_chunks
    made.append(ServedPolicy(address, known, crew, told, mapped, chunk, send_noise))
    return made[0]
