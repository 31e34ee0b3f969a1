"""The policy port of a policy that answers later (:class:`embodied.protocols.AnswersLater`).

    submit(requests): row ─▶ observation, instruction, noise ─▶ policy.ask
    poll(): policy.answers ─▶ decisions in rows, each as soon as it is there

Nothing waits for a batch: who is asked forms batches if it takes any.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from embodied import instructions
from embodied.protocols import AnswersLater, Policy
from embodied.random import Stream
from embodied.runtime.policy.policy_port import Draw, PolicyPort, PolicyRows, Request, not_declared
from embodied.runtime.slab import Slab
from embodied.types import EnvSpec, Sampling

WAIT_S = 0.001  # longest wait of a poll: the rollout looks after the envs in between
PATIENCE_S = 0.2  # of ``value``, which has nothing else to look after

_numbers = itertools.count()
"""Numbers of questions. All ports of a process share them: an answer that one port has given up is no other's."""


class Later(PolicyPort):
    """A policy port whose answers come when they come. See
    :class:`embodied.runtime.policy.policy_port.PolicyPort`.

    One port of a policy is in use at a time. When a rollout begins and when it has ended well, the policy checks that
    what answers is what answered first.

    Args:
        before_act: given the observations of the first submission.

    Raises:
        SpecMismatchError: (from ``poll``) a decision is not what the policy's spec declares.
        PolicyChangedError: (from ``begin`` and ``end``) what answers is another policy than before.
        EmbodiedError: (from ``poll``) something cannot be answered.
    """

    def __init__(
        self,
        policy: Policy,
        slab: Slab,
        env: EnvSpec,
        device: torch.device,
        before_act: Callable[[Mapping[str, torch.Tensor]], None] = lambda obs: None,
    ) -> None:
        assert isinstance(policy, AnswersLater)
        self._policy, self._asked, self._slab, self._env = policy, policy, slab, env
        self._rows = PolicyRows(policy, slab, env, device)
        self._before_act, self._shown = before_act, False
        self._draw = Draw(Sampling(), 0, Stream.TRAIN_NOISE)
        self._busy: dict[int, Request] = {}  # number of a question → the request that it answers
        self._valued: dict[int, Request] = {}  # the same of values alone
        self._answered: list[Request] = []  # answered while values were waited for, or in this poll

    def begin(self, draw: Draw) -> None:
        self._forget()
        self._policy.bind(self._env)
        self._asked.check()
        self._draw = draw

    def submit(self, requests: Sequence[Request]) -> None:
        if requests and not self._shown:
            self._shown = True
            self._before_act(self._rows.observations([request.row for request in requests]))
        if requests:
            self._ask(requests, self._draw.noise_of(requests, self._policy.spec.noise))

    def _ask(self, requests: Sequence[Request], drawn: np.ndarray) -> None:
        """Ask about the observations of these rows.

        Args:
            drawn: noise of the decisions, float32 [n, *noise.shape].
        """
        arrays, fields = self._slab.arrays, instructions.fields_of(self._env)
        texts = instructions.of_rows(self._env, arrays, [request.row for request in requests])
        for request, text, noise in zip(requests, texts, drawn, strict=True):
            number, place = next(_numbers), (request.episode_id, request.t)
            self._busy[number] = request
            obs = {name: arrays[name][request.row] for name in fields}
            self._asked.ask(number, obs, text, noise, self._draw.sampling, place)

    def poll(self) -> list[Request]:
        if self._busy:
            self._take(0.0 if self._answered else WAIT_S)
        answered, self._answered = self._answered, []
        return answered

    def _take(self, timeout_s: float) -> None:
        """Write the decisions that are there into their rows."""
        declared = self._policy.spec.decision
        for number, decision in self._asked.answers(timeout_s):
            if (request := self._busy.pop(number, None)) is not None:
                self._write(request.row, decision, declared)
                self._answered.append(request)
            elif (request := self._valued.pop(number, None)) is not None:
                self._write(request.row, decision, ["value"] if "value" in declared else declared)

    def _write(self, row: int, decision: Mapping[str, np.ndarray], names: Iterable[str]) -> None:
        for name in names:
            got, wanted = decision.get(name), self._policy.spec.decision[name]
            if got is None or got.shape != wanted.shape or got.dtype != wanted.dtype:
                shown = "nothing" if got is None else f"{got.dtype} {got.shape}"
                raise not_declared("answers", name, shown, f"{wanted.dtype} {wanted.shape}")
            self._slab.arrays[name][row] = got

    def cancel(self, slot: int) -> None:
        for number in [number for number, request in self._busy.items() if request.slot == slot]:
            del self._busy[number]
            self._asked.forget(number)
        self._answered = [request for request in self._answered if request.slot != slot]

    @property
    def pending(self) -> int:
        return len(self._busy) + len(self._answered)

    def value(self, requests: Sequence[Request]) -> None:
        if not requests:
            return
        before, self._busy = self._busy, {}
        self._ask(requests, self._draw.noise_of_final(requests, self._policy.spec))
        self._valued, self._busy = self._busy, before
        while self._valued:
            self._take(PATIENCE_S)

    def end(self, whole: bool = True) -> None:
        self._forget()
        if whole:
            self._asked.check()

    def _forget(self) -> None:
        for number in (*self._busy, *self._valued):
            self._asked.forget(number)
        self._busy, self._valued, self._answered = {}, {}, []
