"""PPO of texts with a value before each token: advantages, targets, KL and value loss, against loops and by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rig import CPU

from embodied import train
from embodied.algorithms.advantages.estimators import make_estimator
from embodied.algorithms.kl import Coefficient
from embodied.algorithms.layout import Layout
from embodied.algorithms.rewards import Rewards
from embodied.errors import ConfigError
from embodied.learn.score.batches import make_batch
from embodied.learn.terms.term import Setup
from embodied.learn.trainer import Trainer
from embodied.observe.timing import Sections
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.decoder import Decoder
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Rollout, Schedule
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy, FakeTextEnv, FakeTextPolicy, check_policy
from embodied.types import Elements, Episode, EpisodeResult, Sampling, Start

HERE = Path(__file__).parents[1]
N = 6  # tokens of a record
TURNS = 3
HUGE = 1e9  # a norm that no gradient reaches
GAE = {"adv_type": "gae", "reward_type": "token_level", "gamma": 0.9, "gae_lambda": 0.5}


def policy(value_type: str = "token_level") -> FakeTextPolicy:
    """Its values are no zeros."""
    made = FakeTextPolicy(N, value_head=True, value_type=value_type)
    with torch.no_grad():
        made.value_head.copy_(torch.randn(made.value_head.shape, generator=torch.Generator().manual_seed(4)))
    return made


@pytest.fixture(scope="module", params=[TURNS, 2], ids=["ended", "cut off"])
def collected(request, shared_rig):
    """Episodes of three answers, whole or cut off after two."""
    rig = shared_rig(
        net=policy(), target="embodied.testing.FakeTextEnv", kind=FakeTextEnv, turns=TURNS, slots=4, workers=1, rows=64
    )
    port = Decoder(rig.policy, rig.slab, rig.env.spec, CPU, 3)
    steps, step = [], port._decoding.step
    port._decoding.step = lambda: (steps.append(1), step())[1]
    value = port.value
    port.value = lambda requests: (steps.append(-1), value(requests), steps.append(-1))
    rollout = Rollout(rig.pool, port, RecordStore(rig.slab), 1, Schedule(False, 1), Sections())
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=8, group_size=2)
    results, _ = rollout.collect(plan, rig.job(max_steps=request.param, value_truncated=True))
    assert steps[-2:] == [-1, -1], "values of final observations decode nothing"
    assert {result.truncated for result in results} == {request.param < TURNS}
    return rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def trainer(env, net=None, batch=1000, micro=1000, lr=0.01, **algorithm: Any) -> Trainer:
    net = net or policy()
    net.bind(env)
    actor = ActorConfig(
        global_batch_size=batch, micro_batch_size=micro, optim=OptimConfig(lr=lr, value_lr=0.01, clip_grad=HUGE),
        model=ModelConfig(_target_="embodied.testing.FakeTextPolicy"),
    )  # fmt: skip
    return Trainer(
        policy=net, env=env, actor=actor, algorithm=AlgorithmConfig(**{**GAE, **algorithm}), sampling=Sampling(),
        device=CPU, seed=0, max_steps=TURNS, max_bad_updates=3,
    )  # fmt: skip


def textbook(arrays, results, penalty=None) -> tuple[list[float], list[float]]:
    """Advantages and value targets of all tokens of all episodes, by the loop of the textbook."""
    advantages, targets = [], []
    for result in results:
        rewards, values = [], []
        for row in result.rows:
            length = int(arrays["length"][row])
            rewards += [0.0] * (length - 1) + [float(arrays["rewards"][row, 0])]
            values += arrays["value"][row, :length].tolist()
            if penalty is not None:
                for back in range(1, length + 1):
                    rewards[-back] += float(penalty[row, length - back])
        following, later, own = float(arrays["value"][result.final_row, 0]) if result.truncated else 0.0, 0.0, []
        for reward, value in zip(reversed(rewards), reversed(values), strict=True):
            later = reward + 0.9 * following - value + 0.45 * later
            following = value
            own.append((later, later + value))
        advantages += [a for a, _ in reversed(own)]
        targets += [t for _, t in reversed(own)]
    return advantages, targets


def counted(batch) -> torch.Tensor:
    return torch.arange(N) < batch.counts.lengths[:, None]


def test_advantages_and_targets_by_hand():
    """γ = λ = 1/2. Three tokens of one answer; one token; two answers of two tokens and of one.

    First: δ₃ = 2 + ½, δ₂ = ½·(−½) − 1 = −1¼, δ₁ = ½·1 − ½ = 0; A₃ = 2½, A₂ = −1¼ + ¼·2½ = −⅝, A₁ = ¼·(−⅝) = −5/32.
    Second: A = 1 − ¼. Third: δ₃ = 1 − 3, δ₂ = ½ + ½·3 − 2 = 0, δ₁ = ½·2 − 1 = 0; A₃ = −2, A₂ = −½, A₁ = −⅛.
    """
    given = [
        ([3], [[0.5, 1.0, -0.5]], [2.0]),
        ([1], [[0.25, 7.0, 7.0]], [1.0]),  # what stands behind the end is not read
        ([2, 1], [[1.0, 2.0, 7.0], [3.0, 7.0, 7.0]], [0.5, 1.0]),
    ]
    numbers = [
        {
            "num_steps": np.ones(len(lengths), np.int32), "length": np.array(lengths, np.int32),
            "version": np.zeros(len(lengths), np.int64), "rewards": np.array(rewards, np.float32)[:, None],
            "value": np.array(values, np.float32), "final_value": np.zeros(1),
        }
        for lengths, values, rewards in given
    ]  # fmt: skip
    episodes = [Episode(i, i, Start(0, i, 0)) for i in range(3)]
    results = [
        EpisodeResult(episode, tuple(range(len(one["length"]))), 0.0, False, 1, True, False)
        for episode, one in zip(episodes, numbers, strict=True)
    ]
    layout = Layout(Elements((3,), length_axis=0), 1)
    batch = make_batch(numbers, results, make_estimator("gae", 1, 0.5, 0.5), Rewards(layout, "token_level"))
    assert batch.advantages.tolist() == [[-5 / 32, -5 / 8, 2.5], [0.75, 0, 0], [-1 / 8, -1 / 2, 0], [-2, 0, 0]]
    assert batch.value_targets.tolist() == [[11 / 32, 3 / 8, 2], [1, 0, 0], [7 / 8, 3 / 2, 0], [1, 0, 0]]
    assert batch.positive.all()


def test_advantages_and_targets_of_records(collected):
    env, arrays, results = collected
    _, batch = trainer(env).update(arrays, results, 0)
    advantages, targets = textbook(arrays, results)
    assert len(set(batch.counts.lengths.tolist())) > 2, "of uneven length"
    assert batch.advantages[counted(batch)].tolist() == pytest.approx(advantages, abs=1e-5)
    assert batch.value_targets[counted(batch)].tolist() == pytest.approx(targets, abs=1e-5)
    assert not batch.advantages[~counted(batch)].any()


def test_recorded_values_are_those_of_training_and_of_the_final_observation(collected):
    env, arrays, results = collected
    made = trainer(env)
    for result in results:
        records = made._own(arrays, results).gather(np.array(result.rows))
        length = records["length"][:, None]
        wanted = torch.where(torch.arange(N) < length, made.policy.evaluate(records, Sampling()).value, 0.0)
        assert torch.equal(records["value"], wanted)
        if result.truncated:
            told = made._own(arrays, results).encoded_instructions(np.array([result.final_row]))
            final = torch.zeros(N)
            final[0] = made.policy.value_head[told["last"]]
            assert torch.equal(torch.from_numpy(arrays["value"][result.final_row]), final)


def test_the_kl_in_the_reward_is_that_of_each_token(collected):
    env, arrays, results = collected
    arrays = {**arrays, "logprobs": arrays["logprobs"] + 0.1 * arrays["t"][:, None] - 0.2}  # as another policy's
    made = trainer(env, kl_beta=0.5, use_kl_in_reward=True, kl_penalty_type="k1")
    own = made._own(arrays, results)
    reference = policy().evaluate(own.gather(own.rows), Sampling()).logprobs.detach().numpy()
    penalty = np.zeros((len(arrays["t"]), N))
    penalty[own.rows] = -0.5 * (arrays["logprobs"][own.rows] - reference)
    _, batch = made.update(arrays, results, 0)
    advantages, _ = textbook(arrays, results, penalty)
    assert batch.advantages[counted(batch)].tolist() == pytest.approx(advantages, abs=1e-5)


@pytest.mark.parametrize("micro", [1, 5, 1000])
@pytest.mark.parametrize("value_clip", [None, 0.1])
def test_the_value_loss_is_the_mean_over_tokens(collected, micro, value_clip):
    env, arrays, results = collected
    net = policy()
    with torch.no_grad():
        net.value_head += 0.3  # the values have moved since they were recorded
    metrics, batch = trainer(env, net, micro=micro, value_loss="mse", value_clip=value_clip).update(arrays, results, 0)
    old = torch.from_numpy(arrays["value"][batch.rows])[counted(batch)]
    targets = batch.value_targets[counted(batch)]
    errors = 0.5 * (old + 0.3 - targets) ** 2
    if value_clip is not None:
        errors = torch.maximum(errors, 0.5 * (old + value_clip - targets) ** 2)
    assert metrics["train/value_loss"] == pytest.approx(errors.mean().item(), rel=1e-5)


def test_a_head_of_the_other_kind_is_refused(collected):
    env = collected[0]
    with pytest.raises(ConfigError, match=r"gives 1 values a record and algorithm.reward_type token_level has 6"):
        trainer(env, policy("chunk_level"))
    with pytest.raises(ConfigError, match=r"gives 6 values a record and algorithm.reward_type chunk_level has 1"):
        trainer(env, reward_type="chunk_level")
    with pytest.raises(ConfigError, match="this policy's decisions are no texts"):
        Setup(FakePolicy(value_head=True).spec, AlgorithmConfig(**GAE), 10, Coefficient(0.0))


@pytest.mark.parametrize("value_type", ["token_level", "chunk_level"])
def test_the_fake_keeps_the_contract(value_type):
    check_policy(policy(value_type), FakeTextEnv().spec)


RUN = (
    "env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1",
    "runner.max_epochs=8", "runner.val_check_interval=-1", "runner.save_interval=-1", "env.train.total_num_envs=16",
    "algorithm.rollout_epoch=4", "algorithm.group_size=1", "algorithm.update_epoch=2", "actor.global_batch_size=64",
    "actor.micro_batch_size=32", "env.eval.video_cfg.save_video=false", "actor.optim.lr=0.05",
    "actor.optim.value_lr=0.05", "--config-dir", str(HERE / "config"),
)  # fmt: skip


def test_values_are_learnt_from_one_batch(collected):
    """With the policy all but fixed, each update fits the values better to returns that stay the same (λ = 1)."""
    env, arrays, results = collected
    made = trainer(env, gamma=1.0, gae_lambda=1.0, value_loss="mse", lr=1e-9)
    losses = [made.update(arrays, results, iteration)[0]["train/value_loss"] for iteration in range(30)]
    assert all(after < before for before, after in itertools.pairwise(losses))
    assert losses[-1] < 0.8 * losses[0]


def test_a_run_learns_letters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ("algorithm=ppo_tokens", "actor.model.value_type=token_level", "runner.experiment_name=run")
    assert train.main([*RUN, *more]) == 0
    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1]["rollout/return_mean"] > rows[0]["rollout/return_mean"] + 0.05
    assert all(row["train/value_loss"] > 0 for row in rows)
    assert max(row["train/logprob_gap"] for row in rows) < 1e-5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("env=fake_text model=fake_text algorithm.logprob_type=chunk_level", "has one ratio for several"),
        ("env=fake model=fake", "algorithm.reward_type=token_level: for texts alone"),
    ],
)
def test_what_has_no_tokens_is_refused(tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    more = ("algorithm.reward_type=token_level", "runner.dry_run=true", "runner.device=cpu")
    assert train.main([*options.split(), *more, "--config-dir", str(HERE / "config")]) == 2
    assert said in capsys.readouterr().err
