"""Compiled layers: equal numbers, and no more compilations than there are powers of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.policy import FlowVLAPolicy
from test_flow_policy import SMALL, noise_of, observed
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from embodied.errors import ConfigError
from embodied.types import EnvSpec, Evaluation, Sampling

COMPILED: dict[str, Any] = {"torch_compile": True, "torch_compile_backend": "eager"}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Compiled code is kept for the whole process."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> CompileCounterWithBackend:
    """Counts the graphs that are compiled; they run as they were traced."""
    counter, made = CompileCounterWithBackend("eager"), torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **keys: made(self, **{**keys, "backend": counter}))
    return counter


def bound(env: EnvSpec, layout: str, **keys: Any) -> FlowVLAPolicy:
    policy = build_policy(layout=layout, **{**SMALL, "vision_num_layers": 1, **keys})
    policy.bind(env)
    return policy


def learned(policy: FlowVLAPolicy, records: dict[str, Tensor]) -> tuple[Evaluation, dict[str, Tensor]]:
    found = policy.train().evaluate(records, Sampling())
    (found.logprobs.sum() + (0 if found.value is None else found.value.sum())).backward()
    return found, {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("layout", "keys"),
    [
        ("smolvla", {"gradient_checkpointing": True, "train_expert_only": False}),
        ("pi0", {"is_lora": True, "lora_rank": 2, "noise_steps": "all", "value_head": True}),
        pytest.param("pi05", {"noise_method": "flow_noise"}, marks=pytest.mark.slow),
    ],
)
def test_the_numbers_agree(made_up_env: EnvSpec, layout: str, keys: dict[str, Any]) -> None:
    """In a batch that has to be filled up."""
    plain, compiled = (bound(made_up_env, layout, num_hidden_layers=2, **keys, **more) for more in ({}, COMPILED))
    assert list(plain.state_dict()) == list(compiled.state_dict())
    obs, noise = observed(plain, 3), noise_of(plain, 3)
    one, two = (policy.act(obs, noise, Sampling()).fields for policy in (plain, compiled))
    for name, values in one.items():
        torch.testing.assert_close(two[name], values, atol=2e-5, rtol=1e-5)
    (a, wanted), (b, got) = (learned(policy, {**obs, **one}) for policy in (plain, compiled))
    torch.testing.assert_close(a.logprobs, b.logprobs, atol=2e-5, rtol=1e-5)
    assert wanted.keys() == got.keys()
    for name, gradient in wanted.items():
        assert (gradient - got[name]).norm() <= 1e-4 * gradient.norm() + 1e-7, name


@pytest.mark.parametrize(("acting", "learning"), [(True, False), (False, True)])
def test_acting_or_learning_alone_is_compiled_once(
    made_up_env: EnvSpec, graphs: CompileCounterWithBackend, acting: bool, learning: bool
) -> None:
    policy = bound(made_up_env, "pi0", **COMPILED | {"torch_compile": learning, "torch_compile_acting": acting})
    counts = []
    for rows in (3, 4, 3):
        obs, noise = observed(policy, rows), noise_of(policy, rows)
        graphs.frame_count = 0
        fields = policy.act(obs, noise, Sampling()).fields
        counts.append(graphs.frame_count)
        graphs.frame_count = 0
        learned(policy, {**obs, **fields})
        counts.append(graphs.frame_count)
    assert [count > 0 for count in counts[:2]] == [acting, learning]
    assert counts[2:] == [0] * 4, "3 rows are filled up to 4"


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(ConfigError, match="torch_compile_backend") as caught:
        build_policy(torch_compile=True, torch_compile_backend="induct")
    assert "inductor" in str(caught.value)
    with pytest.raises(ConfigError, match="quantization_bit"):
        build_policy(torch_compile_acting=True, quantization_bit=8)
