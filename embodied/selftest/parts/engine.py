"""Greedy texts of an inference engine (vLLM) against the policy's own lanes, and its log-probs against evaluate."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor

from embodied.errors import AssetsMissingError, EngineError
from embodied.observe.terminal.console import NullConsole
from embodied.parallel.group import Group
from embodied.parallel.sharding import Replicas
from embodied.protocols import EngineText, ServedByEngine
from embodied.run.build.engine import max_gap, open_engine
from embodied.run.build.policy import Model
from embodied.runtime.engine.engine import Engine
from embodied.selftest import learning
from embodied.selftest.measured import Measured, NotRun, at_most, few_of, figure
from embodied.selftest.place import Place
from embodied.selftest.policies import TEXT, BuiltPolicy, Question, built_policy, question

ROWS = 8
KEYS = (
    *TEXT, "rollout.backend=vllm", "rollout.gpu_memory_utilization=0.2", "rollout.enforce_eager=true",
    "actor.model.override_config.hidden_size=256", "actor.model.override_config.intermediate_size=512",
)  # fmt: skip
OTHER_TEXTS = 0.25  # share: of two tokens that are about as likely, rounding takes one
WAIT_S = 120.0  # time limit for all texts, once the engine is ready


def engine(place: Place) -> Iterator[Measured]:
    """Yields how many texts differ, and how far the engine's log-probs are from the policy's own."""
    place.need_gpu("vLLM")
    if place.vllm_python:
        try:
            yield from against_lanes(place, f"rollout.python={json.dumps(place.vllm_python)}")
        except AssetsMissingError as error:
            raise NotRun(f"{error.message}; name the Python of an environment that has it: --vllm-python") from error
        return
    if find_spec("vllm") is None:
        raise NotRun("vLLM is not installed here; name the Python of an environment that has it: --vllm-python")
    yield from against_lanes(place)


def against_lanes(place: Place, *overrides: str) -> Iterator[Measured]:
    """Measures an inference engine against the policy's own decoding in lanes."""
    one = built_policy(place.device, *KEYS, *overrides)
    one = replace(one, drawn=replace(one.drawn, do_sample=False))
    asked, spec = question(one, ROWS), one.policy.spec
    wanted = learning.decide(one, asked)
    model = Model(one.policy, one.device, Replicas(one.policy, Group()))
    with open_engine(one.config, Group(), model, place.folder, NullConsole()) as opened:
        assert opened is not None
        began = time.monotonic()
        opened.begin(one.drawn)
        yield figure("ready after", time.monotonic() - began, "s")
        found = engine_texts(opened, one, asked)
        opened.rest()
    yield few_of("other texts than the lanes write", *learning.other_decisions(spec, found, wanted), OTHER_TEXTS)
    records = {**asked.obs, **found}
    own, used = learning.evaluate(one, records).logprobs, learning.counted(spec, records)
    gap = float((own - found["logprobs"]).abs()[used].mean())
    yield at_most("log-probs from those of evaluate, mean", gap, max_gap(one.config, one.policy), "nats")


def engine_texts(opened: Engine, built: BuiltPolicy, question: Question) -> dict[str, Tensor]:
    """Has an inference engine write a text for each row; returns the decisions on the CPU.

    Raises:
        EngineError: they are not there in time.
    """
    policy = built.policy
    assert isinstance(policy, ServedByEngine)
    numbers = [opened.ask(prompt, seed) for seed, prompt in enumerate(policy.engine_prompts(question.obs))]
    texts: dict[int, EngineText] = {}
    until = time.monotonic() + WAIT_S
    while len(texts) < len(numbers):
        if time.monotonic() > until:
            raise EngineError(
                f"{len(texts)} of {len(numbers)} texts came within {WAIT_S:g} s", "set rollout.backend=native"
            )
        texts |= dict(opened.poll())
    with torch.inference_mode():
        fields = policy.engine_decision([texts[number] for number in numbers], built.drawn).fields
    return {name: values.cpu().clone() for name, values in fields.items()}
