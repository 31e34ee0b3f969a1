"""``rollout.recompute_logprobs``: the old log-probs are the trained network's, whatever the decoder recorded."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rig import CPU
from torch import Tensor, nn

from embodied import train
from embodied.algorithms.kl import Coefficient
from embodied.errors import ConfigError
from embodied.learn.score.recompute import _inside
from embodied.learn.step.passes import ForwardPasses
from embodied.learn.terms.term import Setup
from embodied.learn.trainer import Trainer
from embodied.observe.timing import Sections
from embodied.parallel.modes import without_dropout
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.decoder import Decoder
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Rollout, Schedule
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakeEnv, FakePolicy, FakeTextEnv, FakeTextPolicy
from embodied.testing.flow import FlowPolicy
from embodied.types import Evaluation, Sampling

HERE = Path(__file__).parents[1]
TURNS = 2
HUGE = 1e9
PPO = {"adv_type": "gae", "reward_type": "token_level", "group_size": 1, "gamma": 1.0}


def policy(**options: Any) -> FakeTextPolicy:
    return FakeTextPolicy(**{"value_head": True, "value_type": "token_level", **options})


@pytest.fixture(scope="module")
def collected(shared_rig):
    rig = shared_rig(
        net=policy(), target="embodied.testing.FakeTextEnv", kind=FakeTextEnv, turns=TURNS, slots=4, workers=1, rows=64
    )
    port = Decoder(rig.policy, rig.slab, rig.env.spec, CPU, 4)
    rollout = Rollout(rig.pool, port, RecordStore(rig.slab), 1, Schedule(False, 1), Sections())
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=12, group_size=2)
    results, _ = rollout.collect(plan, rig.job(max_steps=TURNS))
    return rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def trainer(env, recompute=True, batch=8, micro=3, max_tokens=None, **algorithm: Any) -> Trainer:
    net = policy()
    net.bind(env)
    actor = ActorConfig(
        global_batch_size=batch, micro_batch_size=micro, optim=OptimConfig(lr=0.05, clip_grad=HUGE),
        model=ModelConfig(_target_="embodied.testing.FakeTextPolicy"),
    )  # fmt: skip
    return Trainer(
        policy=net, env=env, actor=actor,
        algorithm=AlgorithmConfig(**{"group_size": 2, "update_epoch": 2, **algorithm}), sampling=Sampling(),
        device=CPU, seed=0, max_steps=TURNS, max_bad_updates=3, recompute_logprobs=recompute, max_tokens=max_tokens,
    )  # fmt: skip


def shifted(arrays, results) -> dict[str, np.ndarray]:
    """As a decoder of little precision would record them. The shifts differ from token to token, and belong to the
    records, not to the rows: which row a record is given depends on which slot was first."""
    rows = [row for result in sorted(results, key=lambda result: result.episode.episode_id) for row in result.rows]
    logprobs = arrays["logprobs"].copy()
    logprobs[rows] += np.random.default_rng(0).uniform(-0.3, 0.3, logprobs[rows].shape).astype(np.float32)
    found = {**arrays, "logprobs": logprobs}
    if "value" in arrays:
        found["value"] = arrays["value"] + 1.0
    return found


def gap(arrays, other, results) -> Tensor:
    """Differences of the log-probs that count, [n]."""
    rows = [row for result in results for row in result.rows]
    counts = np.arange(arrays["logprobs"].shape[1]) < arrays["length"][rows][:, None]
    return torch.from_numpy((other["logprobs"] - arrays["logprobs"])[rows][counts])


@pytest.mark.parametrize("max_tokens", [None, 24])
@pytest.mark.parametrize(
    "algorithm",
    [
        {}, {"loss_type": "gspo"}, {"loss_type": "cispo"}, {"off_policy_masking_delta": 0.05}, PPO,
        {"kl_beta": 0.1, "use_kl_in_reward": True, "kl_penalty_type": "k2"},
        {**PPO, "kl_beta": 0.1, "use_kl_in_reward": True, "kl_penalty_type": "k1", "value_clip": 0.2},
    ],
    ids=["grpo", "gspo", "cispo", "masked", "ppo", "kl in the reward", "ppo, kl in the reward"],
)  # fmt: skip
def test_it_restores_the_run_whose_log_probs_were_not_shifted(collected, algorithm, max_tokens):
    env, arrays, results = collected
    wanted, trained = trainer(env, recompute=False, max_tokens=max_tokens, **algorithm), []
    trained.append(wanted.update(arrays, results, 0)[0])
    wrong = trainer(env, recompute=False, max_tokens=max_tokens, **algorithm)
    trained.append(wrong.update(shifted(arrays, results), results, 0)[0])
    found = trainer(env, max_tokens=max_tokens, **algorithm)
    trained.append(found.update(shifted(arrays, results), results, 0)[0])
    without, off, recomputed = trained
    for name in {"train/loss", "train/grad_norm", "train/ratio_mean", "train/value_loss"} & without.keys():
        assert recomputed[name] == pytest.approx(without[name], rel=1e-6, abs=1e-6), name
    assert abs(off["train/loss"] - without["train/loss"]) > 1e-4
    for one, two in zip(found.policy.parameters(), wanted.policy.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


def test_the_gap_is_that_between_what_was_recorded_and_what_was_recomputed(collected):
    env, arrays, results = collected
    off = shifted(arrays, results)
    wanted = gap(arrays, off, results).abs()
    metrics, _ = trainer(env, **PPO).update(off, results, 0)
    assert metrics["train/logprob_gap"] == pytest.approx(wanted.max().item(), rel=1e-4)
    assert metrics["train/logprob_gap_mean"] == pytest.approx(wanted.mean().item(), rel=1e-4)
    plain, _ = trainer(env, recompute=False, batch=1000, **PPO).update(off, results, 0)
    assert plain["train/logprob_gap"] == pytest.approx(wanted.max().item(), rel=1e-4), "without it the same, for free"
    assert plain["train/logprob_gap_mean"] == pytest.approx(wanted.mean().item(), rel=1e-4)


@pytest.mark.parametrize("mode", ["cap", "mask"])
def test_importance_weights_are_recomputed_over_recorded(collected, mode):
    env, arrays, results = collected
    off, cap = shifted(arrays, results), 1.1
    options = {**PPO, "loss_type": "tis", "behav_imp_weight_cap": cap, "behav_imp_weight_mode": mode}
    metrics, _ = trainer(env, batch=1000, update_epoch=1, **options).update(off, results, 0)
    weights = (-gap(arrays, off, results)).exp()  # recomputed − recorded
    assert (weights > cap).any()
    weights = weights.clamp(max=cap) if mode == "cap" else torch.where(weights > cap, 0.0, weights)
    assert metrics["train/behaviour_weight_mean"] == pytest.approx(weights.mean().item(), rel=1e-5)
    assert metrics["train/ratio_mean"] == pytest.approx(1, abs=1e-6), "the ratio is that to the recomputed ones"
    same, _ = trainer(env, batch=1000, update_epoch=1, recompute=False, **options).update(off, results, 0)
    assert metrics["train/value_loss"] < same["train/value_loss"], "values are recomputed, too"


def test_only_what_the_loss_reads_is_computed_again(collected):
    """Records of groups without an advantage are left out, unless values or rewards depend on them."""
    env, arrays, results = collected
    flat = {**arrays, "rewards": arrays["rewards"].copy()}
    for result in results[:4]:  # two groups of two, of which nobody got anything
        flat["rewards"][list(result.rows)] = 0.0
    for algorithm in ({}, PPO):
        made, seen = trainer(env, **algorithm), []
        evaluate = made.policy.evaluate

        def counting(records, *more, evaluate=evaluate, seen=seen):
            if not torch.is_grad_enabled():
                seen.append(len(records["length"]))
            return evaluate(records, *more)

        made.policy.evaluate = counting
        _, batch = made.update(flat, results, 0)
        teaching = int((batch.advantages != 0).any(dim=1).sum())
        assert sum(seen) == (len(batch) if algorithm else teaching)
        assert algorithm or 0 < teaching < len(batch)


class Inexact(FakeTextPolicy):
    """What it decodes with says other log-probs than it is trained with."""

    def decoding(self, lanes: int, enforce_eager: bool = True):
        made = super().decoding(lanes)
        take = made.take

        def inexact(lanes):
            decision = take(lanes)
            return type(decision)({**decision.fields, "logprobs": decision.fields["logprobs"] - 0.25})

        made.take = inexact
        return made


RUN = (
    "env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1",
    "runner.max_epochs=3", "runner.val_check_interval=-1", "runner.save_interval=-1", "env.train.total_num_envs=16",
    "algorithm.rollout_epoch=2", "algorithm.group_size=8", "algorithm.update_epoch=2", "actor.global_batch_size=32",
    "env.eval.video_cfg.save_video=false", "actor.optim.lr=0.05", "--config-dir", str(HERE / "config"),
)  # fmt: skip


def test_a_run_with_an_inexact_decoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = {}
    for name, more in {
        "exact": (),
        "inexact": ("actor.model._target_=test_recompute.Inexact",),
        "recomputed": ("actor.model._target_=test_recompute.Inexact", "rollout.recompute_logprobs=true"),
    }.items():
        assert train.main([*RUN, *more, f"runner.experiment_name={name}"]) == 0
        found = map(json.loads, Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        rows[name] = list(found)
    for exact, inexact, again in zip(*rows.values(), strict=True):
        assert again["train/loss"] == pytest.approx(exact["train/loss"], abs=1e-6)
        assert again["rollout/return_mean"] == pytest.approx(exact["rollout/return_mean"], abs=1e-6)
        assert again["train/logprob_gap"] == pytest.approx(0.25, abs=1e-5)
        assert again["train/logprob_gap_mean"] == pytest.approx(0.25, abs=1e-5)
        assert exact["train/logprob_gap"] < 1e-5
        assert inexact["train/ratio_p50"] == pytest.approx(np.exp(0.25), rel=0.05)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=3)])
def test_what_truncation_leaves_out_keeps_its_recorded_log_prob(sampling):
    new = Evaluation(torch.tensor([[-0.5, -1e4]]))
    assert _inside(new, torch.tensor([[-0.6, -2.5]]), sampling).logprobs.tolist() == [[-0.5, -2.5]]


def test_a_density_may_be_as_small_as_what_truncation_leaves_out():
    flow = FlowPolicy(one_step=True, sigma=1e-3)
    flow.bind(FakeEnv().spec)
    obs = {"state": torch.zeros(1, 8), **flow.encode_instructions([FakeEnv().spec.tasks[0]])}
    records = {**obs, **flow.act(obs, torch.zeros(1, 3, 4, 7), Sampling()).fields}
    records["chain"][:, 1] += 0.2
    result = flow.evaluate(records, Sampling())
    assert result.logprobs.max() < -5e3
    assert torch.equal(_inside(result, records["logprobs"], Sampling()).logprobs, result.logprobs)


def test_dropout_is_off_and_on_again():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    module[0].eval()
    with without_dropout(module):
        assert not module[1].training
    assert module[1].training
    assert not module[0].training


def test_modules_are_searched_once_for_all_passes_of_the_reference(monkeypatch):
    policy = FakePolicy().train()
    searched, seen = [], []
    search = policy.modules
    monkeypatch.setattr(policy, "modules", lambda: searched.append(1) or search())
    monkeypatch.setattr(policy, "evaluate", lambda records, sampling: seen.append(policy.head.training))
    weights, nothing = SimpleNamespace(acting=nullcontext), SimpleNamespace(reshard=lambda: None)
    evaluate = ForwardPasses(policy, Sampling(), nothing, weights, distribution=False)
    for _ in range(3):
        evaluate.reference({})
    assert (len(searched), seen, policy.head.training) == (1, [False] * 3, True)


FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.logger.report=false", "runner.device=cpu", "env.num_workers=1",
    "env.train.total_num_envs=4", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=6",
    "runner.save_interval=-1", "runner.max_epochs=1", "--config-dir", str(HERE / "config"),
)  # fmt: skip


def test_a_training_acts_and_learns_with_log_probs_of_one_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = set()

    def noted(method: str) -> Any:
        inner = getattr(FakePolicy, method)

        def call(policy: FakePolicy, *arguments: Any, **more: Any) -> Any:
            (sampling,) = [argument for argument in arguments if isinstance(argument, Sampling)]
            seen.add((method, sampling.do_sample, torch.is_grad_enabled(), sampling.logprob_dtype))
            return inner(policy, *arguments, **more)

        return call

    for method in ("act", "evaluate"):
        monkeypatch.setattr(FakePolicy, method, noted(method))
    assert train.main([*FAKE, "algorithm.logprob_dtype=bfloat16", "rollout.recompute_logprobs=true"]) == 0
    learns = {("evaluate", True, gradients, "bfloat16") for gradients in (True, False)}
    evaluation = ("act", False, False, "float32")
    assert seen == {("act", True, False, "bfloat16"), evaluation, *learns}


def test_a_policy_that_computes_in_one_format_is_refused():
    flow = FlowPolicy()
    flow.bind(FakeEnv().spec)
    setup = Setup(flow.spec, AlgorithmConfig(), 1, Coefficient(0.0))
    assert setup.algorithm.logprob_dtype == "float32"
    with pytest.raises(ConfigError, match="logprob_dtype is float16, and the policy computes log-probs in float32"):
        Setup(flow.spec, AlgorithmConfig(logprob_dtype="float16"), 1, Coefficient(0.0))
