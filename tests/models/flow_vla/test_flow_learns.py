"""A small flow policy learns from rewards by the runtime's own rollouts and updates, and begins to learn values."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from embodied.models.flow_vla import build_policy
from rig import CPU, open_rig

from embodied.errors import CheckpointError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import load, resume
from embodied.learn.trainer import Trainer
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakeEnv
from embodied.types import EnvSpec, Sampling

STEPS = 8  # of an episode: two chunks
ITERATIONS = 10
ENV: dict[str, Any] = {"cameras": 1, "num_tasks": 1}
SMALL: dict[str, Any] = {
    "layout": "pi0", "num_steps": 2, "noise_level": 0.7, "image_size": 16, "patch_size": 16, "state_width": 8,
    "action_width": 7, "hidden_size": 16, "intermediate_size": 32, "expert_hidden_size": 32,
    "expert_intermediate_size": 64, "vision_hidden_size": 16, "vision_intermediate_size": 16, "vision_num_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "train_expert_only": False,
}  # fmt: skip


def trainer(policy: Any, env: EnvSpec, **algorithm: Any) -> Trainer:
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=64, micro_batch_size=64, optim=OptimConfig(lr=3e-3),
        model=ModelConfig(_target_="embodied.models.flow_vla.build_policy"),
    )  # fmt: skip
    levels = {"logprob_type": "chunk_level", "entropy_type": "chunk_level"}
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(**levels, **algorithm), sampling=Sampling(),
        device=CPU, seed=0, max_steps=STEPS, max_bad_updates=3,
    )  # fmt: skip


def test_the_return_rises(tmp_path: Path) -> None:
    """GRPO on the same starts again and again, with fresh noise."""
    returns = []
    with open_rig(tmp_path, 16, 1, net=build_policy(**SMALL), **ENV) as rig:
        made, rollout = trainer(rig.policy, rig.env.spec, group_size=8), rig.rollout(lockstep=True, policy_batch=16)
        plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=32, group_size=8)
        for iteration in range(ITERATIONS):
            results, _ = rollout.collect(plan, rig.job(max_steps=STEPS, seed=iteration))
            made.update(rig.slab.arrays, results, iteration=iteration)
            returns.append(mean(result.episode_return for result in results))
            rollout.records.keep()
    assert mean(returns[-3:]) > mean(returns[:3]) + 0.1, returns


def test_values_are_learned_anew_from_a_policy_without_and_left_out_again(tmp_path: Path) -> None:
    """Values read layers of the trunk that actions do not need: a policy that was cloned has none of them."""
    env = FakeEnv(**ENV).spec
    plain, valued = (build_policy(**SMALL, value_head=head, seed=int(head)) for head in (False, True))
    told: list[str] = []
    for saved, other, adv_type in ((plain, valued, "gae"), (valued, plain, "grpo")):
        path = Checkpoints(tmp_path / adv_type, 1).save(trainer(saved, env), 1)
        load(path, other, told.append)
        theirs = dict(saved.named_parameters())
        for name, parameter in other.named_parameters():
            assert name not in theirs or parameter.equal(theirs[name]), name
        with pytest.raises(CheckpointError, match="of another model"):
            resume(path, trainer(other, env, adv_type=adv_type))
    assert ["learned anew" in text for text in told] == [True, False]
