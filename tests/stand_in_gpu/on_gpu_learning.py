"""Losses, estimates of the KL and supervised training on the device: the bits of the CPU, and no wait but the named."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from device import WAITS
from named import NAMED, NAMED_SFT
from rig import open_rig
from test_cloning_steps import CONFIG, demonstrations

from embodied.learn.cloning import Cloner
from embodied.learn.trainer import Trainer
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig, bind
from embodied.schema.keys.sections.algorithm import LOSSES
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import Sampling

KL = ("k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl", "full")
CASES = {
    **{name: {"loss_type": name} for name in LOSSES},
    **{f"kl {name}": {"kl_beta": 0.1, "kl_penalty_type": name} for name in KL},
    "gae": {"adv_type": "gae", "normalize_advantages": True, "value_clip": 0.2, "critic_warmup_steps": 1},
    "early stop": {"early_stop_imp_ratio": 3.0},
    "rest": {"entropy_bonus": 0.01, "positive_nll_coef": 0.1, "off_policy_masking_delta": 0.01,
             "clip_ratio_c": 3.0, "logprob_type": "chunk_level"},
}  # fmt: skip


@pytest.fixture(scope="module")
def collected():
    opened = {"slots": 4, "workers": 1, "success_distance": 0.6, "net": FakePolicy(value_head=True)}
    with TemporaryDirectory() as folder, open_rig(Path(folder), **opened) as rig:
        plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
        results, _ = rig.rollout().collect(plan, rig.job())
        yield rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def updated(collected, device: str, keys) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    env, arrays, results = collected
    policy = FakePolicy(value_head=True).to(device)
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=8, micro_batch_size=4, optim=OptimConfig(lr=0.01),
        model=ModelConfig(_target_="embodied.testing.FakePolicy"),
    )  # fmt: skip
    trainer = Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(group_size=2, **keys), sampling=Sampling(),
        device=torch.device(device), seed=0, max_steps=10, max_bad_updates=3,
    )  # fmt: skip
    metrics, _ = trainer.update(arrays, results, iteration=0)
    return metrics, {name: p.detach().cpu() for name, p in policy.named_parameters()}


def unnamed(gpu, named):
    """What was counted in functions of ours and is not named."""
    return {one for one in gpu.seen if one not in named and one[1] != "elsewhere"}


def assert_equal(found, wanted):
    assert found[0] == wanted[0]
    assert all(torch.equal(found[1][name], wanted[1][name]) for name in wanted[1])


@pytest.mark.parametrize("name", CASES)
def test_an_update(collected, gpu, name):
    found = updated(collected, "cuda", CASES[name])
    assert sorted(unnamed(gpu, NAMED)) == []
    assert_equal(found, updated(collected, "cpu", CASES[name]))


def test_a_number_that_is_read_in_a_loss_is_noticed(collected, gpu, monkeypatch):
    from embodied.learn.terms import policy as term

    measure = term.logprob_gap
    monkeypatch.setattr(term, "logprob_gap", lambda *given: measure(*given) * (1 if measure(*given).item() >= 0 else 0))
    updated(collected, "cuda", {})
    assert unnamed(gpu, NAMED) == {(WAITS, "embodied/learn/terms/policy.py PolicyTerm._measured")}


def cloned(device: str) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    policy, (train, held_out) = FakePolicy().to(device), demonstrations()
    config = bind({**CONFIG, "data": {"random_crop": 0.9, "brightness": 0.2}})
    cloner = Cloner(policy, FakeEnv().spec, config, train, held_out, torch.device(device))
    cloner.iterate(0)
    metrics = {**cloner.close_iteration(0), **cloner.validate()}
    return metrics, {name: p.detach().cpu() for name, p in policy.named_parameters()}


def test_supervised_training(gpu):
    found = cloned("cuda")
    assert sorted(unnamed(gpu, NAMED_SFT)) == []
    assert_equal(found, cloned("cpu"))
