"""The policy port of an inference engine: observations become prompts, and texts become decisions in rows.

    row ─▶ prompt tokens (policy) ─▶ Engine ─▶ tokens, log-probs ─▶ decision (policy) ─▶ row

Prompts are the policy's own tokens, so they are equal in generation and in training. A text's seed is a function of the
run's seed, the stream, the episode and the record. The log-probs in the rows are the engine's; those of the first texts
after each change of weights are compared with the policy's own: at once, or when the rollout has ended if its weights
rest meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied.errors import EngineError, SpecMismatchError
from embodied.parallel.modes import without_dropout
from embodied.protocols import Policy, ServedByEngine
from embodied.random import Stream, generator_seed
from embodied.runtime.engine.engine import Engine
from embodied.runtime.engine.evidence import remedy
from embodied.runtime.policy.policy_port import Draw, PolicyPort, PolicyRows, Request
from embodied.runtime.slab import Slab
from embodied.types import OUTSIDE, EnvSpec, Sampling

COMPARED = 8  # texts, at most
MOSTLY = 0.98  # least share of their tokens that the policy's own distribution has


@dataclass(frozen=True)
class FirstTexts:
    """Copies of the first records that an engine generated, to compare its log-probs with the policy's."""

    records: Mapping[str, torch.Tensor]  # observations and decisions, on the device
    logprobs: np.ndarray  # log-probs that the engine gave, [n, tokens]
    counts: np.ndarray  # bool [n, tokens], which tokens there are


class EnginePort(PolicyPort):
    """A policy port whose texts an inference engine generates. See
    :class:`embodied.runtime.policy.policy_port.PolicyPort`.

    The engine adds numbers up in another order when it works on other texts at the same time. So a text is a function
    of weights, observation, ``Draw`` and ``(episode_id, t)`` as far as its rounding allows.

    Args:
        engine: may serve several ports, one at a time.
        max_gap: largest mean difference between the engine's log-probs and the policy's own, nats.
        before_act: given the observations of each submission.

    Raises:
        SpecMismatchError: (from ``poll``) the policy's decision is not what its spec declares.
        EngineError: (from ``begin``, ``poll`` and ``end``) the engine has failed, or computes other log-probs.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        slab: Slab,
        env: EnvSpec,
        device: torch.device,
        max_gap: float,
        before_act: Callable[[Mapping[str, torch.Tensor]], None] = lambda obs: None,
    ) -> None:
        assert isinstance(policy, ServedByEngine)
        self._engine, self._policy, self._served, self._slab = engine, policy, policy, slab
        self._env, self._device, self._max_gap, self._before_act = env, device, max_gap, before_act
        self._rows = PolicyRows(policy, slab, env, device)
        self._draw = Draw(Sampling(), 0, Stream.TRAIN_NOISE)
        self._busy: dict[int, Request] = {}  # number of what the engine was asked → what it answers
        self._put_off: list[FirstTexts] = []  # texts to be compared when the rollout has ended

    def begin(self, draw: Draw) -> None:
        self._policy.bind(self._env)
        self._draw, self._busy = draw, {}
        self._engine.begin(draw.sampling)

    def submit(self, requests: Sequence[Request]) -> None:
        if not requests:
            return
        obs, draw = self._rows.observations([request.row for request in requests]), self._draw
        self._before_act(obs)
        for request, prompt in zip(requests, self._served.engine_prompts(obs), strict=True):
            seed = generator_seed(draw.seed, draw.stream, request.t, request.episode_id)
            self._busy[self._engine.ask(prompt, seed)] = request

    def poll(self) -> list[Request]:
        found = self._engine.poll()
        if not found:
            return []
        answered = [self._busy.pop(number) for number, _ in found]
        rows = [request.row for request in answered]
        decision = self._served.engine_decision([text for _, text in found], self._draw.sampling)
        self._rows.write(rows, decision)
        if not self._engine.checked and self._draw.sampling.do_sample:
            self._take_first(rows[:COMPARED])
        return answered

    def cancel(self, slot: int) -> None:
        for number in [number for number, request in self._busy.items() if request.slot == slot]:
            del self._busy[number]
            self._engine.cancel(number)

    @property
    def pending(self) -> int:
        return len(self._busy)

    def value(self, requests: Sequence[Request]) -> None:
        """Refuses to give values, which no engine computes. A rollout without a value head asks for none."""
        if requests:
            raise SpecMismatchError("an inference engine computes no values", "set rollout.backend=native")

    def end(self, whole: bool = True) -> None:
        self._busy = {}
        put_off, self._put_off = self._put_off, []
        if put_off and not whole:  # nobody learns from them, and the next rollout's are compared
            self._engine.checked = False
        self._engine.rest()
        for first in put_off if whole else ():
            self._compare(first)

    def _take_first(self, rows: list[int]) -> None:
        """Compare the texts in ``rows`` with what the policy computes, now or at the end."""
        arrays = self._slab.arrays
        fields = {n: torch.from_numpy(arrays[n][rows]).to(self._device) for n in self._policy.spec.decision}
        logprobs, lengths = arrays["logprobs"][rows], arrays["length"][rows][:, None]
        counts = np.arange(logprobs.shape[1]) < lengths
        first = FirstTexts(self._rows.observations(rows) | fields, logprobs, counts)
        if not self._engine.weights_rest:
            self._compare(first)
            return
        self._put_off.append(first)
        self._engine.checked = True

    def _compare(self, first: FirstTexts) -> None:
        """Hold the engine's log-probs against those of the policy.

        Raises:
            EngineError: they differ by more than rounding.
        """
        counts = first.counts
        with torch.inference_mode(), without_dropout(self._policy):
            own = self._policy.evaluate(first.records, self._draw.sampling).logprobs
        values = own.float().cpu().numpy()
        inside = counts & (values >= OUTSIDE)  # rounding decides which of two equal tokens top_p takes
        gaps = np.abs(values - first.logprobs)[inside]
        mean, drawn = float(gaps.mean()) if gaps.size else float("nan"), inside.sum() >= MOSTLY * counts.sum()
        kept = self._keep(first, values, mean, bool(drawn and mean <= self._max_gap))
        if not drawn:
            raise EngineError(
                f"the engine drew {counts.sum() - inside.sum()} of {counts.sum()} tokens that the training network "
                "leaves out by top_k or top_p",
                f"set rollout.backend=native, or algorithm.sampling_params.top_p=1.0 and top_k=0; {remedy(kept)}",
            )
        self._engine.compared(mean, float(gaps.max()))
        if not mean <= self._max_gap:
            raise EngineError(
                f"the engine computes other log-probs than the training network: {mean:.3g} nats apart in the "
                f"mean, {gaps.max():.3g} at most, over {gaps.size} tokens of its first {len(counts)} texts; "
                f"rollout.max_logprob_gap is {self._max_gap:g}",
                "set rollout.backend=native; or, if rounding explains it (bf16), raise rollout.max_logprob_gap and set "
                f"rollout.recompute_logprobs=true; {remedy(kept)}",
            )

    def _keep(self, first: FirstTexts, own: np.ndarray, mean: float, agree: bool) -> str:
        """Keep the log-probs of both sides; return where."""
        tokens = first.records["tokens"].cpu().numpy()

        def of_texts(side: np.ndarray) -> list[np.ndarray]:
            return [row[there] for row, there in zip(side, first.counts, strict=True)]

        keep, allowed = self._engine.evidence.logprobs, self._max_gap
        return keep(of_texts(tokens), of_texts(first.logprobs), of_texts(own), mean, allowed, agree)
