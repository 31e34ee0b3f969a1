"""Adapters of a flow policy's trunk: they begin without effect, are saved, read again and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.policy import FlowVLAPolicy
from flow_golden import gap
from test_flow_policy import SMALL, noise_of, observed
from torch import Tensor

from embodied.errors import CheckpointError, ConfigError, EmbodiedError
from embodied.types import EnvSpec, Sampling

LORA: dict[str, Any] = {"is_lora": True, "lora_rank": 2}


def bound(env: EnvSpec, **keys: Any) -> FlowVLAPolicy:
    policy = build_policy(**{**SMALL, **keys})
    policy.bind(env)
    return policy


def decided(policy: FlowVLAPolicy) -> dict[str, Tensor]:
    return dict(policy.act(observed(policy, 2), noise_of(policy, 2), Sampling()).fields)


@pytest.mark.parametrize("layout", ["smolvla", "pi0", "pi05"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapters_that_begin_with_zeros_change_nothing(made_up_env: EnvSpec, layout: str, precision: str) -> None:
    plain, adapted = (bound(made_up_env, layout=layout, precision=precision, **keys) for keys in ({}, LORA))
    records = decided(plain)
    assert all(torch.equal(values, decided(adapted)[name]) for name, values in records.items())
    records |= observed(plain, 2)
    with torch.no_grad():
        one, other = (policy.evaluate(records, Sampling()).logprobs for policy in (plain, adapted))
    assert torch.equal(one, other)


def test_adapters_are_saved_read_again_and_merged(made_up_env: EnvSpec, tmp_path: Path) -> None:
    bound(made_up_env, layout="pi0", seed=3).save(tmp_path / "base")
    folder = {"num_action_chunks": 4, "model_path": str(tmp_path / "base")}

    def opened(**keys: Any) -> FlowVLAPolicy:
        policy = build_policy(**{**folder, **keys})
        object.__setattr__(policy.parts, "tokenizer", build_policy().parts.tokenizer)
        object.__setattr__(policy.parts, "prompt_tokens", 200)
        policy.bind(made_up_env)
        return policy

    policy = opened(**LORA, lora_init_weights=False)
    records, optimizer = {**observed(policy, 2), **decided(policy)}, torch.optim.AdamW(policy.parameters(), lr=1e-2)
    policy.evaluate(records, Sampling()).logprobs.sum().backward()
    optimizer.step()
    policy.save(tmp_path / "saved")
    again, merged = opened(**LORA, lora_path=str(tmp_path / "saved")), opened(model_path=str(tmp_path / "saved"))
    assert not again.spec.random_weights
    wanted, before = decided(policy), decided(opened())
    assert gap(wanted["actions"], before["actions"]) > 1e-3
    assert all(torch.equal(values, decided(again)[name]) for name, values in wanted.items())
    assert gap(wanted["actions"], decided(merged)["actions"]) < 1e-5
    assert not any(".lora_" in name for name, _ in merged.named_parameters())
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        opened(**{**LORA, "lora_rank": 3}, lora_path=str(tmp_path / "saved"))
    assert "actor.model.lora_rank=2" in caught.value.remedy


@pytest.mark.parametrize(
    ("keys", "kind", "match", "fix"),
    [
        ({"lora_path": "somewhere"}, ConfigError, "there are no adapters", "is_lora=true"),
        ({**LORA, "lora_path": "nowhere"}, CheckpointError, "no folder nowhere", "or null"),
        ({**LORA, "lora_alpha": 0.0}, ConfigError, "it scales the adapters", "above 0"),
        ({**LORA, "lora_dropout": 1.0}, ConfigError, "it is a probability", "below 1"),
        ({**LORA, "lora_target_modules": ["q_prj"]}, ConfigError, "no layer is called 'q_prj'", "q_proj"),
        ({**LORA, "lora_modules_to_save": "v_proj"}, ConfigError, "v_proj.weight is to be trained", "set it to false"),
        ({**LORA, "trainable_map": {"vision": True}}, ConfigError, "is to be trained", "set it to false"),
    ],
)
def test_keys_of_adapters_that_cannot_work(
    keys: dict[str, Any], kind: type[EmbodiedError], match: str, fix: str
) -> None:  # fmt: skip
    with pytest.raises(kind, match=match) as caught:
        build_policy(**{**SMALL, **keys})
    assert fix in caught.value.remedy
