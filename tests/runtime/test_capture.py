"""CUDA graphs of policy calls; without a GPU the calls stay as they are."""

from __future__ import annotations

import pytest
import torch

from embodied.runtime.policy.capture import CapturedAct, buffers_of, fast_act
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import Sampling

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def bound_policy(device: str) -> FakePolicy:
    policy = FakePolicy()
    policy.bind(FakeEnv().spec)
    return policy.to(device)


def inputs(device: str, batch: int = 4):
    spec, rows = FakeEnv().spec, {}
    for name, field in spec.obs.items():
        values = torch.randint(0, 256, (batch, *field.shape)).float()
        rows[name] = values.to(torch.uint8 if field.dtype == "uint8" else torch.float32).to(device)
    rows["task"] = torch.zeros(batch, dtype=torch.int32, device=device)
    return rows, torch.rand(batch, 28, device=device)


@pytest.mark.parametrize("eager", [True, False])
def test_on_a_cpu_the_policy_itself_is_called(eager) -> None:
    policy = bound_policy("cpu")
    assert fast_act(policy, torch.device("cpu"), eager) == policy.act


def test_eager_on_a_gpu_is_the_policy_itself() -> None:
    policy = bound_policy("cpu")
    assert fast_act(policy, torch.device("cuda"), True) == policy.act
    assert isinstance(fast_act(policy, torch.device("cuda"), False), CapturedAct)


@needs_gpu
def test_a_replay_reads_new_observations_and_new_weights() -> None:
    policy = bound_policy("cuda")
    act = CapturedAct(policy)
    act(*inputs("cuda"), Sampling())
    with torch.no_grad():
        policy.head.weight.mul_(2.0)
    obs, uniform = inputs("cuda")
    replayed, eager = act(obs, uniform, Sampling()).fields, policy.act(obs, uniform, Sampling()).fields
    for name, values in eager.items():
        assert torch.equal(values, replayed[name]), name


def test_a_buffer_that_was_replaced_is_noticed() -> None:
    """A graph reads the policy's buffers where they were: a table of prompts that has grown is another one."""
    policy = bound_policy("cpu")
    before = buffers_of(policy)
    policy.low.mul_(2.0)
    assert buffers_of(policy) == before, "written in place: the graph reads the new values"
    policy.low = torch.zeros(9)
    assert buffers_of(policy) != before


@needs_gpu
def test_a_call_after_a_buffer_was_replaced_is_captured_anew() -> None:
    policy = bound_policy("cuda")
    act = CapturedAct(policy)
    obs, noise = inputs("cuda")
    act(obs, noise, Sampling())
    policy.low, policy.high = policy.low - 1.0, policy.high + 1.0
    replayed, eager = act(obs, noise, Sampling()).fields, policy.act(obs, noise, Sampling()).fields
    assert torch.equal(eager["actions"], replayed["actions"])


@needs_gpu
def test_another_shape_is_refused() -> None:
    act = CapturedAct(bound_policy("cuda"))
    act(*inputs("cuda"), Sampling())
    with pytest.raises(ValueError, match="one shape"):
        act(*inputs("cuda", batch=2), Sampling())
