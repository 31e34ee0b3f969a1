"""A Gymnasium env's own step limit cuts an episode off: what comes after it has a value, unlike after an end."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from embodied.envs.gym import GymEnv
from embodied.models.head import HeadPolicy
from rig import CPU, Rig

from embodied.learn.actor_critic.learner import ActorCriticLearner
from embodied.learn.actor_critic.transitions import transitions_at
from embodied.learn.actor_critic.update import Draws, Loss
from embodied.learn.trainer import Trainer
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig
from embodied.testing import FakePolicy
from embodied.types import EpisodeResult, Sampling

GAMMA, CHUNK, OWN, FALL, RUNS = 0.9, 4, 6, 5, 10
"""Of an episode: the env's own limit, the step of a fall, and the run's limit, which no episode comes to."""
WALK = {
    "id": "small_gym_envs:tests/Walk-v0", "success": "reward>=2", "progress": "reward", "images": [],
    "make_kwargs": {"max_episode_steps": OWN},
}  # fmt: skip
VECTOR = {
    "id": None, "entry_point": "small_gym_envs.walks", "imports": ["small_gym_envs"],
    "vectorization": "vector_entry_point", "make_kwargs": {"max_episode_steps": OWN, "render_mode": None},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "an env a slot": {},
    "other machines": {"hosts": 1},
    "sync": {"vectorization": "sync", "pool": {"batch": True}},
    "async": {"vectorization": "async", "pool": {"batch": True}},
    "vector_entry_point": {**VECTOR, "pool": {"batch": True}},
}


@pytest.fixture
def walk(make_rig, monkeypatch, tmp_path):
    """Opens a rig whose slots are walks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", "egl"))

    def opened(net: Any, **way: Any) -> Rig:
        return make_rig(
            slots=4, workers=1, target="embodied.envs.gym.GymEnv", kind=GymEnv, net=net, **{**WALK, **way}
        )  # fmt: skip

    return opened


def collected(rig: Rig, **job: Any) -> list[EpisodeResult]:
    plan = train_plan(rig.env.spec, seed=2, iteration=0, episodes=8, group_size=1)
    return rig.rollout().collect(plan, rig.job(max_steps=RUNS, **{"value_truncated": True, **job}))[0]


def check_ends(results: list[EpisodeResult]) -> None:
    ends = {(OWN, True, False), (FALL, False, True)}
    assert {(result.num_steps, result.truncated, result.terminated) for result in results} == ends


@pytest.mark.parametrize("way", WAYS)
def test_gae_goes_on_from_the_last_observation_at_the_env_s_own_limit(walk, way):
    rig = walk(FakePolicy(CHUNK, action_dim=1, state_dim=2, value_head=True), **WAYS[way])
    results, arrays, env = collected(rig), rig.slab.arrays, rig.env.spec
    check_ends(results)
    actor = ActorConfig(
        global_batch_size=100, micro_batch_size=100, model=ModelConfig(_target_="embodied.testing.FakePolicy")
    )
    algorithm = AlgorithmConfig(adv_type="gae", gamma=GAMMA, gae_lambda=0.5)
    made = Trainer(
        policy=rig.policy, env=env, actor=actor, algorithm=algorithm, sampling=Sampling(), device=CPU, seed=0,
        max_steps=RUNS, max_bad_updates=3,
    )  # fmt: skip
    last = torch.tensor([[OWN / 10, 0.0]])
    told = rig.policy.encode_instructions(env.tasks * len(last))
    after = rig.policy.act({"state": last, **told}, torch.zeros(1, CHUNK), Sampling()).fields["value"].item()
    _, batch = made.update(arrays, results, 0)
    ends = np.cumsum([len(result.rows) for result in results]) - 1
    for end, result in zip(ends, results, strict=True):
        beyond = GAMMA * after if result.truncated else 0.0
        expected = result.num_steps - CHUNK + beyond  # of the last chunk, each step of which pays 1
        assert batch.value_targets[end].item() == pytest.approx(expected, abs=1e-5)
    assert abs(GAMMA * after) > 0.01, "a value of 0 would tell the two apart in nothing"


@pytest.mark.parametrize("way", ["an env a slot", "async"])
def test_soft_actor_critic_goes_on_from_the_last_observation_at_the_env_s_own_limit(walk, tmp_path, way):
    rig = walk(HeadPolicy(num_action_chunks=CHUNK, hidden=8, critics=2), **WAYS[way])
    results = collected(rig)
    check_ends(results)
    actor = ActorConfig.model_validate({"model": {"_target_": "-"}, "global_batch_size": 8, "micro_batch_size": 8})
    algorithm = AlgorithmConfig.model_validate(
        {"learner": "sac", "adv_type": "raw", "gamma": GAMMA, "sac": {"learning_starts": 1000}}
    )
    made = ActorCriticLearner(rig.policy, rig.env.spec, actor, algorithm, CPU, 0, 3, replay=tmp_path / "replay")
    made.update(rig.slab.arrays, results, 0)
    loss, draws = Loss(rig.policy, algorithm.sac, 0.0), Draws.of(0, 0, 0, (1, CHUNK), 2, None, CPU)
    first = 0
    for result in results:
        index = np.array([first + len(result.rows) - 1])
        one = transitions_at(made.memory, index, rig.policy, 1, GAMMA, CPU)
        target = loss(one, draws, 1.0, False)[1][3].item()
        steps = result.num_steps - CHUNK
        expected = sum(GAMMA**step for step in range(steps))
        if result.truncated:
            after = GAMMA**steps * value(rig, draws)
            assert abs(after) > 0.01, "a value of 0 would tell the two apart in nothing"
            expected += after
        assert target == pytest.approx(expected, abs=1e-5)
        first += len(result.rows) + (result.final_row >= 0)
    made.close()


def value(rig: Rig, draws: Draws) -> float:
    """What the target critics and the entropy say of the last observation, with the drawn chunk."""
    last = {"state": torch.tensor([[OWN / 10, 0.0]])}
    with torch.no_grad():
        chunks, logprobs = rig.policy.propose(last, draws.after)
        values = rig.policy.judge(last, chunks, "target")
        return (values.amin(0) - rig.policy.log_temperature.exp() * logprobs).item()


@pytest.mark.parametrize("way", ["an env a slot", "vector_entry_point"])
def test_an_episode_that_ignores_terminations_ends_at_the_env_s_own_limit(walk, way):
    rig = walk(FakePolicy(CHUNK, action_dim=1, state_dim=2), **WAYS[way])
    results = collected(rig, ignore_terminations=True, value_truncated=False)
    assert {(result.num_steps, result.truncated) for result in results} == {(OWN, True), (RUNS, True)}
    assert {result.final_row for result in results} == {-1}


@pytest.mark.parametrize("end_on_success", [False, True])
def test_a_task_that_is_solved_at_the_limit_is_cut_off_if_success_does_not_end_it(walk, end_on_success):
    way = {"success": "obs[0:1]>=0.55", "end_on_success": end_on_success}
    results = [result for result in collected(walk(FakePolicy(CHUNK, 1, 2, value_head=True), **way)) if result.success]
    assert {(result.num_steps, result.truncated) for result in results} == {(OWN, not end_on_success)}
