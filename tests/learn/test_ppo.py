"""PPO with a value head: targets from real records, the value loss, the warm-up, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rig import CPU

from embodied.errors import ConfigError
from embodied.learn.trainer import Trainer
from embodied.runtime.plan import eval_plan, train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy
from embodied.types import Sampling

GAE = {"adv_type": "gae", "gamma": 0.9, "gae_lambda": 0.5}
HUGE = 1e9  # a norm that no gradient reaches


def trainer(env, policy, batch=1000, micro=1000, optim=None, **algorithm: Any) -> Trainer:
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=batch, micro_batch_size=micro, optim=optim or OptimConfig(lr=0.01, clip_grad=HUGE),
        model=ModelConfig(_target_="embodied.testing.FakePolicy"),
    )  # fmt: skip
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(**{**GAE, **algorithm}), sampling=Sampling(),
        device=CPU, seed=0, max_steps=10, max_bad_updates=3,
    )  # fmt: skip


def collected(shared_rig, reward_type: str):
    rig = shared_rig(
        slots=4, workers=1, success_distance=0.6, policy={"value_head": True, "value_type": reward_type}
    )  # fmt: skip
    plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
    results, _ = rig.rollout().collect(plan, rig.job(value_truncated=True))
    assert {result.truncated for result in results} == {True, False}
    return rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def policy(reward_type: str) -> FakePolicy:
    return FakePolicy(value_head=True, value_type=reward_type)


def textbook(arrays, results, reward_type: str) -> tuple[list[float], list[float]]:
    """Advantages and value targets of all elements of all episodes, by the loop of the textbook."""
    advantages, targets = [], []
    for result in results:
        elements = []
        for row in result.rows:
            steps = int(arrays["num_steps"][row])
            rewards, values = arrays["rewards"][row][:steps].tolist(), arrays["value"][row].tolist()
            elements += (
                [(sum(rewards), values[0])]
                if reward_type == "chunk_level"
                else list(zip(rewards, values, strict=False))
            )
        following, later, own = float(arrays["value"][result.final_row][0]) if result.truncated else 0.0, 0.0, []
        for reward, value in reversed(elements):
            later = reward + 0.9 * following - value + 0.45 * later
            following = value
            own.append((later, later + value))
        advantages += [a for a, _ in reversed(own)]
        targets += [t for _, t in reversed(own)]
    return advantages, targets


@pytest.mark.parametrize("reward_type", ["chunk_level", "action_level"])
def test_advantages_and_targets_of_records(shared_rig, reward_type):
    """Episodes of 10 steps in chunks of 4: those cut off by the limit end in mid-chunk, with two steps not executed."""
    env, arrays, results = collected(shared_rig, reward_type)
    _, batch = trainer(env, policy(reward_type), reward_type=reward_type).update(arrays, results, 0)
    advantages, targets = textbook(arrays, results, reward_type)
    counted = batch.advantages != 0
    assert batch.advantages.shape[1] == (1 if reward_type == "chunk_level" else 4)
    assert batch.advantages[counted].tolist() == pytest.approx(advantages, abs=1e-5)
    assert batch.value_targets[counted].tolist() == pytest.approx(targets, abs=1e-5)
    if reward_type == "action_level":
        assert torch.equal(counted, torch.arange(4) < batch.counts.num_steps[:, None])


def test_always_bootstraps_terminated_episodes_too(shared_rig):
    rig = shared_rig(slots=4, workers=1, success_distance=0.6, policy={"value_head": True, "value_type": "chunk_level"})
    plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
    results, _ = rig.rollout().collect(plan, rig.job(value_truncated=True, value_terminated=True))
    arrays = rig.slab.arrays
    _, batch = trainer(rig.env.spec, policy("chunk_level"), gae_lambda=0.0).update(arrays, results, 0)
    lasts = np.cumsum([len(result.rows) for result in results]) - 1
    for last, result in zip(lasts, results, strict=True):
        row = result.rows[-1]
        expected = arrays["rewards"][row].sum() + 0.9 * arrays["value"][result.final_row][0] - arrays["value"][row][0]
        assert batch.advantages[last].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("micro", [1, 3, 1000])
def test_the_value_loss_is_the_mean_over_what_was_executed(shared_rig, micro):
    env, arrays, results = collected(shared_rig, "action_level")
    made = trainer(
        env, policy("action_level"), micro=micro, reward_type="action_level", value_loss="mse", critic_warmup_steps=1
    )
    seen = {}
    step = made.optimizer.step
    made.optimizer.step = lambda: (
        seen.update({n: p.grad.clone() for n, p in made.policy.named_parameters() if p.grad is not None}),
        step(),
    )
    metrics, batch = made.update(arrays, results, 0)
    executed = torch.arange(4) < batch.counts.num_steps[:, None]
    old = torch.from_numpy(arrays["value"][batch.rows])
    errors = (old - batch.value_targets)[executed]
    assert metrics["train/value_loss"] == pytest.approx((errors**2 / 2).mean().item(), rel=1e-5)
    # The head is linear: the gradient of its bias is the mean error.
    expected = torch.where(executed, old - batch.value_targets, 0.0).sum(dim=0) / executed.sum()
    torch.testing.assert_close(seen["value_head.bias"], expected, rtol=1e-4, atol=1e-6)


def test_the_warm_up_trains_the_value_head_alone(shared_rig):
    env, arrays, results = collected(shared_rig, "chunk_level")
    made = trainer(env, policy("chunk_level"), critic_warmup_steps=2)
    changed = []
    for iteration in range(3):
        before = {name: p.detach().clone() for name, p in made.policy.named_parameters()}
        made.update(arrays, results, iteration)
        changed.append({n.split(".")[0] for n, p in made.policy.named_parameters() if not torch.equal(p, before[n])})
    assert changed == [{"value_head"}, {"value_head"}, {"value_head", "task", "body", "head"}]


def test_metrics_of_the_value_head(shared_rig):
    env, arrays, results = collected(shared_rig, "chunk_level")
    metrics, batch = trainer(env, policy("chunk_level")).update(arrays, results, 0)
    targets, old = batch.value_targets[:, 0].double(), torch.from_numpy(arrays["value"][batch.rows])[:, 0].double()
    expected = 1 - ((targets - old).var() / targets.var()).item()
    assert metrics["train/explained_variance"] == pytest.approx(expected, abs=1e-5)
    assert metrics["train/skipped_records"] == 0
    assert metrics["train/value_loss"] > 0


@pytest.mark.parametrize("clip", [HUGE, 1e-3])
def test_the_norm_of_the_value_heads_gradient_is_that_before_clipping(shared_rig, clip):
    env, arrays, results = collected(shared_rig, "chunk_level")
    made = trainer(env, policy("chunk_level"), optim=OptimConfig(lr=0.01, clip_grad=clip))
    free = trainer(env, policy("chunk_level"))
    seen, step = [], free.optimizer.step
    free.optimizer.step = lambda: (seen.extend(p.grad.clone() for p in free.policy.value_head.parameters()), step())
    free.update(arrays, results, 0)
    metrics, _ = made.update(arrays, results, 0)
    expected = torch.sqrt(sum((g**2).sum() for g in seen)).item()
    assert metrics["train/value_grad_norm"] == pytest.approx(expected, rel=1e-3)
    assert metrics["train/value_grad_norm"] < metrics["train/grad_norm"]


def test_whitened_advantages_have_mean_0_and_deviation_1(shared_rig):
    env, arrays, results = collected(shared_rig, "chunk_level")
    _, batch = trainer(env, policy("chunk_level"), normalize_advantages=True).update(arrays, results, 0)
    assert batch.advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert batch.advantages.std().item() == pytest.approx(1, abs=1e-4)


def test_a_policy_without_a_fitting_value_head_is_refused(shared_rig):
    env, _, _ = collected(shared_rig, "chunk_level")
    with pytest.raises(ConfigError, match=r"the policy has no value head(.|\n)*actor\.model\.value_head=true"):
        trainer(env, FakePolicy())
    with pytest.raises(ConfigError, match=r"gives 1 values a record and algorithm\.reward_type action_level has 4"):
        trainer(env, policy("chunk_level"), reward_type="action_level")


@pytest.mark.parametrize("reward_type", ["chunk_level", "action_level"])
def test_ppo_raises_the_return(make_rig, reward_type):
    """20 iterations of 64 episodes on one task: the point learns to move towards its goal. Scored on fixed starts."""
    net = {"num_tasks": 1, "bins": 4, "value_head": True, "value_type": reward_type}
    rig = make_rig(slots=8, workers=2, rows=64 * 5, policy=net, num_tasks=1, num_init_states=8)
    made = trainer(
        rig.env.spec, rig.policy, batch=64, optim=OptimConfig(lr=0.02, value_lr=0.02, clip_grad=1.0), update_epoch=4,
        loss_agg_func="token-mean", reward_type=reward_type, normalize_advantages=True, value_clip=0.5, gamma=0.9,
        gae_lambda=0.9,
    )  # fmt: skip
    rollout = rig.rollout(policy_batch=8)

    def score() -> float:
        plan = eval_plan(rig.env.spec, episodes_per_task=32)
        results, _ = rollout.collect(plan, rig.job(max_steps=16, keep_records=False))
        return float(np.mean([result.episode_return for result in results]))

    before, explained = score(), []
    for iteration in range(20):
        plan = train_plan(rig.env.spec, seed=3, iteration=iteration, episodes=64, group_size=1)
        results, _ = rollout.collect(plan, rig.job(max_steps=16, version=made.weight_version, value_truncated=True))
        metrics, _ = made.update(rig.slab.arrays, results, iteration)
        explained.append(metrics["train/explained_variance"])
        rollout.records.keep()
    after = score()
    assert after > 1.4 * before, f"mean return {before:.2f} before and {after:.2f} after"
    assert explained[-1] > max(0.3, explained[0]), explained
