"""Two processes that compute each text together (``actor.model.context_parallel_size``) against one that does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from causal_lm_texts import ARCHITECTURES, N, answered, make
from ranks import on_ranks
from torch import Tensor

from embodied.parallel.group import Group
from embodied.parallel.sharding import Replicas
from embodied.parallel.teams import Teams
from embodied.types import Sampling

LORA = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False}


@dataclass(frozen=True)
class Case:
    """A network, and what is asked of it."""

    kind: str = "llama"
    sizes: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    distribution: bool = False
    texts: int = 6


CASES = {
    **{kind: Case(kind) for kind in ARCHITECTURES},  # gemma: one head of keys and values for two processes
    "a value of the prompt": Case(keys={"value_head": True}),
    "a value of each token": Case("qwen2", keys={"value_head": True, "value_type": "token_level"}),
    "recomputed": Case("qwen3", keys={"gradient_checkpointing": True}),
    "adapters": Case("gemma2", keys=LORA),
    "adapters, recomputed": Case(keys={**LORA, "gradient_checkpointing": True}),
    "16 bits": Case("qwen2", keys={"precision": "bf16"}),
    "all choices": Case("gemma3", distribution=True),
    "truncated": Case(sampling=Sampling(temperature=0.7, top_k=5, repetition_penalty=1.3, min_new_tokens=2)),
    "one text of one token": Case(texts=1),
}


def records_of(policy: Any, texts: int) -> dict[str, Tensor]:
    """Texts of uneven length, two with one prompt; a single one is short."""
    records = answered(policy, sampling=Sampling(ignore_eos=True))
    lengths = torch.tensor([3, N, 1, 7, 5, 2] if texts == 6 else [1], dtype=torch.int32)
    return {name: values[:texts] for name, values in {**records}.items() if name != "length"} | {"length": lengths}


def computed(case: Case, teams: Teams) -> dict[str, Tensor]:
    """What the policy says of the records, and the gradients of a loss of all of it, summed over processes."""
    torch.manual_seed(3)
    policy = make(case.kind, case.sizes, **case.keys)
    if policy.value_head is not None:
        torch.nn.init.normal_(policy.value_head.weight)
    parallel = Replicas(policy, Group() if teams.own.size == 1 else teams.own, teams=teams)
    with parallel.splitting():
        found = policy.evaluate(records_of(policy, case.texts), case.sampling, case.distribution)
        given = {"logprobs": found.logprobs, "entropy": found.entropy, "value": found.value}
        given = {name: values for name, values in given.items() if values is not None}
        loss = torch.zeros(())
        for values in given.values():
            loss = loss + (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(5))).sum()
        if case.distribution:
            given["distribution"] = found.distribution
            loss = loss + found.distribution.exp().square().sum()
        loss.backward()
    parallel.sum_gradients()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    return {name: values.detach() for name, values in {**given, "loss": loss, **gradients}.items()}


def compute_all(world: Group) -> dict[str, dict[str, Tensor]]:
    teams = Teams(world, Group())
    return {name: computed(case, teams) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def on_two_ranks() -> list[dict[str, Any]]:
    return on_ranks(compute_all)


def apart(got: Tensor, wanted: Tensor) -> float:
    return ((got.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-9)).item()


@pytest.mark.parametrize("name", CASES)
def test_two_processes_say_of_texts_what_one_says_with_its_gradient(name, on_two_ranks):
    expected, bound = computed(CASES[name], Teams(Group(), Group())), 2e-2 if name == "16 bits" else 1e-5
    assert {"logprobs", "entropy", "loss"} < expected.keys()
    for rank in on_two_ranks:
        found: Mapping[str, Tensor] = rank[name]
        assert found.keys() == expected.keys()
        worst = {key: apart(found[key], expected[key]) for key in expected}
        assert max(worst.values()) <= bound, worst
