"""Calls that are replayed as CUDA graphs (``rollout.enforce_eager=false``) against calls without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from embodied.protocols import Decodes
from embodied.runtime.policy.capture import fast_act
from embodied.selftest import learning
from embodied.selftest.measured import Measured, at_least, at_most, few_of, figure
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, TEXT, BuiltPolicy, Question, built_policy, question

ROWS = 4
QUESTIONS = 3  # the first captures, the others show that new inputs are read
EXACT = 2e-4  # nats


def graphs(place: Place) -> Iterator[Measured]:
    """Measures how far calls that replay a CUDA graph are from eager ones, and how many were replayed."""
    place.need_gpu("CUDA graphs")
    yield from _one_call(place)
    yield from _lanes(place)


def _one_call(place: Place) -> Iterator[Measured]:
    one = built_policy(place.device, *OFT)
    act = fast_act(one.policy, one.device, enforce_eager=False)
    other = differ = of = 0
    gap = 0.0
    with replays() as counted:
        for seed in range(QUESTIONS):
            asked = question(one, ROWS, seed)
            here = asked.on(one.device)
            with torch.inference_mode():
                fields = act(here.obs, here.noise, one.drawn).fields
            found, wanted = {n: v.cpu().clone() for n, v in fields.items()}, learning.decide(one, asked)
            other += learning.unequal(found, wanted)
            parted = learning.other_decisions(one.policy.spec, found, wanted)
            differ, of = differ + parted[0], of + parted[1]
            same = learning.same_so_far(one.policy.spec, found, wanted)
            gap = max(gap, learning.largest(found["logprobs"], wanted["logprobs"], same))
    yield at_least("openvla_oft: graphs that were replayed", counted[0], QUESTIONS)
    yield few_of("openvla_oft: other tokens", differ, of, 0.005)
    yield at_most("openvla_oft: log-probs", gap, EXACT, "nats")
    yield figure("openvla_oft: tensors that differ in a bit", other)


def _lanes(place: Place) -> Iterator[Measured]:
    one = built_policy(place.device, *TEXT)
    asked, spec = question(one, ROWS), one.policy.spec
    with replays() as counted:
        found = decoded_texts(one, asked, enforce_eager=False)
    wanted = decoded_texts(one, asked, enforce_eager=True)
    yield at_least("causal_lm: graphs that were replayed", counted[0], 1)
    yield few_of("causal_lm: other texts", *learning.other_decisions(spec, found, wanted), 0.0)
    same = learning.same_so_far(spec, found, wanted)
    yield at_most("causal_lm: log-probs", learning.largest(found["logprobs"], wanted["logprobs"], same), EXACT, "nats")


def decoded_texts(built: BuiltPolicy, question: Question, enforce_eager: bool) -> dict[str, Tensor]:
    """Has the policy decode a text for each row of a question, in lanes as a rollout does; returns the decisions on the
    CPU."""
    policy, here, rows = built.policy, question.on(built.device), len(question.noise)
    assert isinstance(policy, Decodes)
    decoding = policy.decoding(rows, enforce_eager)
    decoding.begin(built.drawn)
    found: dict[str, Any] = {name: [None] * rows for name in policy.spec.decision}
    with torch.inference_mode():
        decoding.admit(range(rows), here.obs, here.noise)
        left = rows
        while left:
            whole = list(decoding.step())
            if not whole:
                continue
            for name, values in decoding.take(whole).fields.items():
                for lane, value in zip(whole, values.cpu().clone(), strict=True):
                    found[name][lane] = value
            left -= len(whole)
        decoding.end()
    return {name: torch.stack(values) for name, values in found.items()}


@contextmanager
def replays() -> Iterator[list[int]]:
    """Context that counts replays of CUDA graphs, in the list's first item."""
    counted, usual = [0], torch.cuda.CUDAGraph.replay

    def replay(graph: Any) -> None:
        counted[0] += 1
        usual(graph)

    torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign,assignment]
    try:
        yield counted
    finally:
        torch.cuda.CUDAGraph.replay = usual  # type: ignore[method-assign]
