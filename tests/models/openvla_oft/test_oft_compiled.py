"""Compiled blocks: equal numbers, and no more compilations than there are buckets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from embodied.models.openvla_oft import build_policy
from embodied.models.shared.compiled import bucket, filled
from torch._dynamo.testing import CompileCounterWithBackend

from embodied.errors import ConfigError
from embodied.types import Sampling

KINDS = 3  # blocks of DINOv2, of SigLIP, of the language model
SMALL = {"vision_num_layers": 2, "num_hidden_layers": 2}  # tracing takes seconds a block kind, whatever its size
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager", **SMALL}
VARIANTS = [
    {
        **{"is_lora": True, "lora_rank": 4, "lora_init_weights": False, "value_head": True, "use_proprio": True},
        **{"gradient_checkpointing": True, "activation_offload": True, "attention": "causal"},
    },
    {"use_film": True, "precision": "bf16", "num_images_in_input": 2},
]


@pytest.fixture(autouse=True)
def forget():
    """Compiled code is kept for the whole process."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch) -> CompileCounterWithBackend:
    """Counts the graphs that are compiled; they run as they were traced."""
    counter = CompileCounterWithBackend("eager")
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **keys: compile_(self, **{**keys, "backend": counter}))
    return counter


def gradients(policy, records):
    policy.train().zero_grad()
    result = policy.evaluate(records, Sampling())
    (result.logprobs.sum() + (0 if result.value is None else result.value.sum())).backward()
    return result, {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("keys", VARIANTS)
def test_the_numbers_agree(make, observe, noise, keys) -> None:
    """In a batch that has to be filled up."""
    plain, compiled, obs = make(**keys, **SMALL), make(**keys, **COMPILED), observe(3)
    assert list(plain.state_dict()) == list(compiled.state_dict())
    one, two = (p.act(obs, noise(3), Sampling()).fields for p in (plain, compiled))
    assert torch.equal(one["action_tokens"], two["action_tokens"])
    assert two["logprobs"].shape == (3, 56)
    torch.testing.assert_close(one["logprobs"], two["logprobs"], atol=2e-5, rtol=0)
    (a, wanted), (b, got) = (gradients(p, {**obs, **one}) for p in (plain, compiled))
    torch.testing.assert_close(a.logprobs, b.logprobs, atol=2e-5, rtol=0)
    assert wanted.keys() == got.keys()
    for name, gradient in wanted.items():
        error = (gradient - got[name]).norm() / gradient.norm().clamp(min=1e-6)
        assert error < (2e-2 if "precision" in keys else 1e-4), name


def test_blocks_share_their_code_and_batches_their_shapes(make, observe, noise, graphs) -> None:
    """Batches of 1 … 4 rows, the rollout's and the trainer's: three kinds of block, three powers of two, with and
    without gradients; a second round compiles nothing."""
    policy = make(**COMPILED)
    for expected in (KINDS * 2 * 3, 0):
        graphs.frame_count = 0
        for rows in range(1, 5):
            fields = policy.act(observe(rows), noise(rows), Sampling()).fields
            policy.train().evaluate({**observe(rows), **fields}, Sampling())
        assert graphs.frame_count == expected


def test_batches_above_the_bound_act_as_they_are(make, observe, noise, graphs) -> None:
    policy, plain = make(**COMPILED, torch_compile_max_bs=2), make(**SMALL)
    for rows, expected in ((3, 0), (2, KINDS), (3, 0)):
        graphs.frame_count = 0
        with torch.no_grad():
            fields = policy.act(observe(rows), noise(rows), Sampling()).fields
        assert graphs.frame_count == expected
    assert all(map(torch.equal, fields.values(), plain.act(observe(3), noise(3), Sampling()).fields.values()))
    graphs.frame_count = 0
    policy.train().evaluate({**observe(3), **fields}, Sampling())
    assert graphs.frame_count == KINDS, "the trainer's passes are compiled all the same"
    with pytest.raises(ConfigError, match="torch_compile_max_bs"):
        build_policy(torch_compile_max_bs=0)


@pytest.mark.parametrize(("acting", "learning"), [(True, False), (False, True)])
def test_acting_alone_or_learning_alone_is_compiled(make, observe, noise, graphs, acting, learning) -> None:
    """The other has the bits of a policy without compiled blocks. Layers that a backward pass computes again are
    called as in the forward pass. A second round compiles nothing."""
    keys: dict[str, Any] = {**SMALL, "is_lora": True, "lora_rank": 4, "gradient_checkpointing": True}
    policy = make(**{**keys, **COMPILED, "torch_compile": learning, "torch_compile_acting": acting})
    plain, obs = make(**keys), observe(3)
    for rounds in range(2):
        graphs.frame_count = 0
        fields = policy.act(obs, noise(3), Sampling()).fields
        assert graphs.frame_count == KINDS * acting * (rounds == 0)
        records = {**obs, **fields}
        graphs.frame_count = 0
        with torch.no_grad():
            scored = policy.train().evaluate(records, Sampling()).logprobs
        result, got = gradients(policy, records)
        assert graphs.frame_count == KINDS * 2 * learning * (rounds == 0)
        assert torch.equal(scored, result.logprobs)
    wanted_fields, (wanted, gradient) = plain.act(obs, noise(3), Sampling()).fields, gradients(plain, records)
    assert learning or torch.equal(result.logprobs, wanted.logprobs)
    assert learning or all(torch.equal(got[name], value) for name, value in gradient.items())
    assert acting or all(map(torch.equal, fields.values(), wanted_fields.values()))


@pytest.mark.slow
def test_the_numbers_agree_with_the_real_compiler(make, observe, noise) -> None:
    """Minutes of g++ on a CPU."""
    plain, compiled, obs = make(**SMALL), make(**SMALL, torch_compile=True), observe(4)
    one, two = (p.act(obs, noise(4), Sampling()).fields for p in (plain, compiled))
    torch.testing.assert_close(one["logprobs"], two["logprobs"], atol=2e-5, rtol=0)
    (_, wanted), (_, got) = (gradients(p, {**obs, **one}) for p in (plain, compiled))
    for name, gradient in wanted.items():
        assert (gradient - got[name]).norm() / gradient.norm().clamp(min=1e-6) < 1e-4, name


def test_other_prompts_of_the_same_length_compile_nothing(make, env, observe, noise, graphs) -> None:
    policy = make(**COMPILED)
    policy.act(observe(4), noise(4), Sampling())
    before = graphs.frame_count
    policy.bind(env)
    policy.act(observe(4, seed=1), noise(4), Sampling(temperature=1.6))
    assert graphs.frame_count == before == KINDS


@pytest.mark.parametrize(("rows", "expected"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (33, 64)])
def test_buckets(rows, expected) -> None:
    assert bucket(rows) == expected
    values = torch.arange(2.0 * rows).view(rows, 2)
    full = filled(values, expected)
    assert full.shape == (expected, 2)
    assert torch.equal(full[:rows], values)
    assert (full[rows:] == values[-1]).all()


def test_what_cannot_be_compiled(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="inductor"):
        build_policy(torch_compile=True, torch_compile_backend="inducter")
    with pytest.raises(ConfigError, match="torch_compile"):
        build_policy(torch_compile=True, decoding="autoregressive", attention="causal", num_action_chunks=1)
    with pytest.raises(ConfigError, match="torch_compile_acting"):
        build_policy(torch_compile_acting=True, decoding="autoregressive", attention="causal", num_action_chunks=1)
    with pytest.raises(ConfigError, match="torch_compile_acting"):
        build_policy(torch_compile_acting="sometimes")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no-such-compiler"):
        build_policy(torch_compile=True)
