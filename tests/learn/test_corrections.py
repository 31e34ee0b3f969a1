"""What an update does beside the plain loss: corrections, KL in reward and loss, references, averages, schedules."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from rig import CPU

from embodied.algorithms import aggregation
from embodied.algorithms.kl import full, k2
from embodied.algorithms.layout import Layout
from embodied.algorithms.rewards import Rewards
from embodied.learn.score.batches import gather_numbers, make_batch
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.trainer import Trainer
from embodied.learn.watch import unwatched
from embodied.schema import (
    ActorConfig,
    AlgorithmConfig,
    KlControlConfig,
    LrScheduleConfig,
    ModelConfig,
    OptimConfig,
    OverlongPenaltyConfig,
    RewardConfig,
)
from embodied.testing import FakePolicy
from embodied.types import Elements, Sampling

LAYOUT = Layout(Elements((4, 7), action_axis=0), 4)
HUGE = 1e9  # a norm that no gradient reaches


def trainer(env, batch=1000, micro=1000, policy=None, optim=None, sched=None, reward=None, iterations=1, **algorithm):
    policy = policy or FakePolicy()
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=batch, micro_batch_size=micro,
        optim=OptimConfig(**{"lr": 0.01, "clip_grad": HUGE, **(optim or {})}),
        lr_sched=LrScheduleConfig(**(sched or {})),
        model=ModelConfig(_target_="embodied.testing.FakePolicy"),
    )  # fmt: skip
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(**{"group_size": 2, **algorithm}),
        sampling=Sampling(), device=CPU, seed=0, max_steps=10, max_bad_updates=3, iterations=iterations,
        reward=RewardConfig(overlong_penalty=OverlongPenaltyConfig(**(reward or {}))),
    )  # fmt: skip


def weights(policy) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}


def moved(policy, seed=1, scale=0.05):
    """The policy with other weights."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    return policy


def scored(made, arrays, results):
    """The training batch of what was collected, without an update."""
    return made._score(made._own(arrays, results), results, made._evaluate).batch


def records_of(arrays, batch) -> dict[str, torch.Tensor]:
    found = {name: torch.from_numpy(array[batch.rows]) for name, array in arrays.items()}
    return {**found, "task": found["task_id"].long()}


def bound(env, **options) -> FakePolicy:
    policy = FakePolicy(**options)
    policy.bind(env)
    return policy


def same_weights(one, two, atol=0.0) -> bool:
    one, two = weights(one), weights(two)
    return all(torch.allclose(one[name], two[name], rtol=0, atol=atol) for name in one)


# -- the policy that acted is not the one around which the loss clips -------------------------------------------------


@pytest.mark.parametrize("micro", [1, 3, 1000])
@pytest.mark.parametrize("mode", ["cap", "mask"])
def test_the_decoupled_loss_of_records_that_an_older_policy_made(collected, micro, mode):
    env, arrays, results = collected
    options = {"loss_type": "tis", "behav_imp_weight_cap": 1.1, "behav_imp_weight_mode": mode}
    made = trainer(env, micro=micro, policy=moved(bound(env)), **options)
    with torch.no_grad():
        plain = trainer(env)
        batch = scored(plain, arrays, results)
        records = records_of(arrays, batch)
        proximal = made.policy.evaluate(records, Sampling()).logprobs
    weight = (proximal - records["logprobs"]).exp()
    assert (weight > 1.1).any()
    weight = weight.clamp(max=1.1) if mode == "cap" else torch.where(weight > 1.1, 0.0, weight)
    mask = LAYOUT.mask(batch.counts, "token_level")
    share = aggregation.weights(mask, batch.sequence_ids, "seq-mean-token-mean")
    expected = torch.where(mask, -batch.advantages * weight * share, 0.0).sum().item()  # before the first step ρ is 1
    metrics, _ = made.update(arrays, results, iteration=0)
    assert metrics["train/loss"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert metrics["train/ratio_mean"] == pytest.approx(1, abs=1e-5)
    trained = mask & (batch.advantages != 0)
    assert metrics["train/behaviour_weight_mean"] == pytest.approx(weight[trained].mean().item(), rel=1e-4)


def test_the_proximal_policy_is_that_before_the_first_step_of_all_epochs(collected):
    """Against ppo on records whose log-probs are replaced by those of the proximal policy, without a cap to weigh."""
    env, arrays, results = collected
    start = moved(bound(env))
    batch = scored(trainer(env), arrays, results)
    with torch.no_grad():
        proximal = start.evaluate(records_of(arrays, batch), Sampling()).logprobs.numpy()
    on_policy = {**arrays, "logprobs": arrays["logprobs"].copy()}
    on_policy["logprobs"][batch.rows] = proximal
    options = {"batch": 7, "update_epoch": 2}
    one = trainer(env, policy=moved(bound(env)), loss_type="tis", behav_imp_weight_cap=1e-30, **options)
    before = weights(one.policy)
    one.update(arrays, results, iteration=0)
    assert all(torch.allclose(value, before[name], atol=1e-6) for name, value in weights(one.policy).items())
    two = trainer(env, policy=moved(bound(env)), loss_type="tis", **options)
    two.update(on_policy, results, iteration=0)
    three = trainer(env, policy=moved(bound(env)), loss_type="ppo", **options)
    three.update(on_policy, results, iteration=0)
    assert same_weights(two.policy, three.policy, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"kl_beta": 0.5, "kl_penalty_type": "full"},
        {"kl_beta": 0.5, "kl_penalty_type": "full", "use_kl_in_reward": True},
        {"loss_type": "gspo"},
        {"loss_type": "tis"},
    ],
)
def test_dropout_disturbs_no_pass_that_only_measures(collected, monkeypatch, options):
    env, arrays, results = collected
    made, seen = trainer(env, **options), set()
    evaluate = made.policy.evaluate

    def spied(*given, **named):
        seen.add((torch.is_grad_enabled(), made.policy.training))
        return evaluate(*given, **named)

    monkeypatch.setattr(made.policy, "evaluate", spied)
    made.update(arrays, results, iteration=0)
    assert seen == {(True, True), (False, False)}


# -- KL ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [1, 4, 1000])
@pytest.mark.parametrize("level", ["token_level", "chunk_level"])
def test_the_exact_kl_in_the_loss(collected, micro, level):
    env, arrays, results = collected
    made = trainer(
        env, micro=micro, kl_beta=2.0, kl_penalty_type="full", loss_agg_func="token-mean", logprob_type=level,
        loss_type="reinforce",
    )  # fmt: skip
    moved(made.policy)
    batch = scored(made, arrays, results)
    records = records_of(arrays, batch)
    with torch.no_grad():
        now, began = (p.evaluate(records, Sampling(), distribution=True) for p in (made.policy, bound(env)))
    mask = LAYOUT.mask(batch.counts, "token_level")
    tokens = torch.where(mask, full(now.distribution, began.distribution), 0.0)
    count = mask.sum() if level == "token_level" else len(batch)
    metrics, _ = made.update(arrays, results, iteration=0)
    assert metrics["train/kl_reference"] == pytest.approx((tokens.sum() / count).item(), rel=1e-4)
    new = torch.where(mask, now.logprobs, 0.0)
    policy_loss = -(batch.advantages * new).sum() / count
    assert metrics["train/loss"] == pytest.approx((policy_loss + 2 * tokens.sum() / count).item(), rel=1e-4)


@pytest.mark.parametrize("reward_type", ["chunk_level", "action_level"])
@pytest.mark.parametrize("kind", ["k2", "full"])
def test_the_kl_in_the_rewards_comes_before_the_advantages(collected, reward_type, kind):
    """Adv type raw: the advantage is the return less β times the KL of all tokens of the episode."""
    env, arrays, results = collected
    options = {"kl_beta": 0.5, "use_kl_in_reward": True, "kl_penalty_type": kind, "adv_type": "raw"}
    made = trainer(env, micro=3, reward_type=reward_type, logprob_forward_micro_batch_size=2, **options)
    moved(made.policy)
    metrics, batch = made.update(arrays, results, iteration=0)
    records = records_of(arrays, batch)
    with torch.no_grad():
        began, now = (p.evaluate(records, Sampling(), distribution=True) for p in (bound(env), moved(bound(env))))
    mask = LAYOUT.mask(batch.counts, "token_level")
    tokens = k2(records["logprobs"], began.logprobs) if kind == "k2" else full(now.distribution, began.distribution)
    tokens = torch.where(mask, tokens, 0.0)
    penalty = torch.zeros(8).index_add(0, batch.sequence_ids, tokens.sum(1))
    expected = torch.tensor([r.episode_return for r in results]) - 0.5 * penalty
    got = batch.advantages[:, 0]
    torch.testing.assert_close(got, expected[batch.sequence_ids], rtol=1e-4, atol=1e-5)
    assert metrics["train/kl_reference"] == pytest.approx(tokens.sum().item() / mask.sum().item(), rel=1e-3, abs=1e-7)
    assert bool(batch.positive.all()), "whether an episode paid is asked without penalties"


def test_the_kl_in_the_rewards_is_not_in_the_loss(collected):
    env, arrays, results = collected
    options = {"kl_beta": 0.5, "kl_penalty_type": "k2", "adv_type": "raw", "loss_agg_func": "token-mean"}
    made = trainer(env, use_kl_in_reward=True, **options)  # nothing has moved yet: KL and penalty are 0
    metrics, _ = made.update(arrays, results, iteration=0)
    plain, _ = trainer(env, adv_type="raw", loss_agg_func="token-mean").update(arrays, results, iteration=0)
    assert metrics["train/loss"] == pytest.approx(plain["train/loss"], rel=1e-6)
    assert metrics["train/kl_reference"] == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("in_reward", [False, True])
def test_the_adaptive_weight_follows_the_kl(collected, in_reward):
    env, arrays, results = collected
    control = KlControlConfig(type="adaptive", target_kl=1e-9, horizon=80)
    made = trainer(env, kl_beta=0.5, kl_penalty_type="k2", use_kl_in_reward=in_reward, kl_ctrl=control)
    first, _ = made.update(arrays, results, iteration=0)  # KL 0: the error is −1, bounded by −.2
    assert first["train/kl_beta"] == 0.5
    assert made.state_dict()["kl_beta"] == pytest.approx(0.5 * (1 - 0.2 * 8 / 80))
    moved(made.policy)
    arrays = {**arrays, "logprobs": arrays["logprobs"] + 0.1}
    second, _ = made.update(arrays, results, iteration=1)
    assert second["train/kl_beta"] == pytest.approx(0.49)
    assert made.state_dict()["kl_beta"] == pytest.approx(0.49 * 1.02)


def test_the_adaptive_weight_is_fed_the_mean_over_all_elements(collected):
    """With that mean as the target nothing changes; the mean of the episodes' means (verl) is another number."""
    env, arrays, results = collected
    options = {"kl_beta": 0.5, "use_kl_in_reward": True, "kl_penalty_type": "k2", "adv_type": "raw"}
    moved_by = 0.1 * (1 + arrays["episode_id"] % 4)[:, None].astype(np.float32)  # episodes of unlike KL
    arrays = {**arrays, "logprobs": arrays["logprobs"] + moved_by}
    _, batch = trainer(env, **options).update(arrays, results, iteration=0)
    records = records_of(arrays, batch)
    with torch.no_grad():
        began = bound(env).evaluate(records, Sampling())
    mask = LAYOUT.mask(batch.counts, "token_level")
    tokens = torch.where(mask, k2(records["logprobs"], began.logprobs), 0.0).double().sum(1)
    per_record = torch.stack([tokens, mask.sum(1).double()], dim=1)
    sums, counts = torch.zeros(8, 2, dtype=torch.float64).index_add(0, batch.sequence_ids, per_record).unbind(1)
    of_elements, of_episodes = (sums.sum() / counts.sum()).item(), (sums / counts).mean().item()
    assert abs(of_episodes / of_elements - 1) > 0.01
    for target, factor in ((of_elements, 1.0), (of_elements / 1.1, 1 + 0.1 * 8 / 80)):
        control = KlControlConfig(type="adaptive", target_kl=target, horizon=80)
        made = trainer(env, kl_ctrl=control, **options)
        made.update(arrays, results, iteration=0)
        assert made.state_dict()["kl_beta"] == pytest.approx(0.5 * factor, rel=1e-5)


def test_the_adaptive_mean_by_hand():
    """Episodes of 1 and 3 elements with KL 0.5 and 0.1 each: 0.8/4 = 0.2, where the mean of their means is 0.3."""
    found = UpdateMetrics()
    values = torch.tensor([[0.5, 9.0, 9.0], [0.1, 0.1, 0.1]])
    found.average("train/kl_reference", values, torch.tensor([[True, False, False], [True, True, True]]))
    assert found.mean("train/kl_reference") == pytest.approx(0.2)


def test_the_reference_can_be_moved_to_the_present_policy(collected):
    env, arrays, results = collected
    options = {"kl_beta": 0.5, "kl_penalty_type": "k2", "reference_reset_interval": 2}
    made = trainer(env, **options)
    seen = []
    for iteration in range(4):
        moved(made.policy, seed=iteration)
        states = len(made.optimizer.state)
        seen.append((states, made.update(arrays, results, iteration)[0]["train/kl_reference"]))
    kls = [kl for _, kl in seen]
    assert kls[0] > 0
    assert kls[1] > 0
    assert kls[2] == 0, "the third iteration begins at its own reference"
    assert kls[3] > 0
    keeping = trainer(env, reset_optimizer_with_reference=False, **options)
    for iteration in range(2):
        keeping.update(arrays, results, iteration)
    step = next(iter(keeping.optimizer.state.values()))["step"].item()
    keeping.update(arrays, results, 2)
    assert next(iter(keeping.optimizer.state.values()))["step"].item() == step + 1
    made.optimizer.zero_grad()
    assert next(iter(made.optimizer.state.values()))["step"].item() == 2, "the moments of iterations 3 and 4 alone"


# -- penalties and baselines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward_type", ["chunk_level", "action_level"])
def test_long_episodes_are_penalised_at_their_end(collected, reward_type):
    env, arrays, results = collected
    made = trainer(
        env, reward={"enable": True, "buffer_length": 4, "factor": 2.0}, adv_type="raw", reward_type=reward_type
    )
    _, batch = made.update(arrays, results, iteration=0)
    penalties = [min(-(r.num_steps - 6) / 4 * 2.0, 0.0) for r in results]
    assert len(set(penalties)) > 1
    assert min(penalties) == -2.0
    expected = torch.tensor([r.episode_return + p for r, p in zip(results, penalties, strict=True)])
    torch.testing.assert_close(batch.advantages[:, 0], expected[batch.sequence_ids], rtol=1e-5, atol=1e-6)
    later = trainer(
        env, reward={"enable": True, "buffer_length": 4, "factor": 2.0}, adv_type="gae", reward_type=reward_type,
        gamma=1.0, gae_lambda=0.0, policy=FakePolicy(value_head=True, value_type=reward_type),
    )  # fmt: skip
    plain = {**arrays, "value": np.zeros((len(arrays["t"]), 1 if reward_type == "chunk_level" else 4), np.float32)}
    _, shaped = later.update(plain, results, iteration=0)
    ends = np.cumsum([len(r.rows) for r in results]) - 1
    for end, result, penalty in zip(ends, results, penalties, strict=True):
        steps = int(plain["num_steps"][result.rows[-1]])
        rewards = plain["rewards"][result.rows[-1]][:steps]
        last = rewards.sum() if reward_type == "chunk_level" else rewards[-1]
        got = shaped.advantages[end, 0 if reward_type == "chunk_level" else steps - 1].item()
        assert got == pytest.approx(last + penalty, abs=1e-5), "λ = 0 and V = 0: the advantage is the reward itself"


def test_remax_compares_with_the_greedy_episode_of_the_start(collected):
    env, arrays, results = collected
    greedy = {result.episode.start: 0.25 * i for i, result in enumerate(results[::2])}
    _, batch = trainer(env, adv_type="remax").update(arrays, results, iteration=0, baselines=greedy)
    expected = torch.tensor([r.episode_return - greedy[r.episode.start] for r in results])
    torch.testing.assert_close(batch.advantages[:, 0], expected[batch.sequence_ids].float(), rtol=1e-5, atol=1e-5)


def test_the_order_of_groups_changes_no_advantage(collected):
    env, arrays, results = collected
    made = trainer(env, reward={"enable": True, "buffer_length": 4}, kl_beta=0.5, use_kl_in_reward=True)
    moved(made.policy)
    own = made._own(arrays, results)
    penalties = made._score._penalties(own, made._evaluate, 1000, UpdateMetrics(), unwatched)
    numbers = gather_numbers(arrays, results, penalties=penalties)
    forward = make_batch(numbers, results, made._score.estimator, Rewards(LAYOUT, "chunk_level"))
    order = [6, 7, 2, 3, 0, 1, 4, 5]
    shuffled = [numbers[i] for i in order], [results[i] for i in order]
    other = make_batch(*shuffled, made._score.estimator, Rewards(LAYOUT, "chunk_level"))
    by_row = dict(zip(forward.rows.tolist(), forward.advantages[:, 0].tolist(), strict=True))
    assert by_row == dict(zip(other.rows.tolist(), other.advantages[:, 0].tolist(), strict=True))


# -- the value head's warm-up -----------------------------------------------------------------------------------------


def test_the_warm_up_differentiates_nothing_but_the_value_head(collected):
    env, arrays, results = collected
    arrays = {**arrays, "value": np.zeros((len(arrays["t"]), 1), np.float32)}
    made = trainer(
        env, policy=FakePolicy(value_head=True), adv_type="gae", critic_warmup_steps=1, loss_type="gspo", kl_beta=0.1
    )
    passes, seen = [], []
    evaluate = made.policy.evaluate

    def spy(*given, **options):
        result = evaluate(*given, **options)
        passes.append((result.logprobs.requires_grad, result.value.requires_grad))
        return result

    made.policy.evaluate = spy
    step = made.optimizer.step
    made.optimizer.step = lambda: (
        seen.append({name.split(".")[0] for name, p in made.policy.named_parameters() if p.grad is not None}), step()
    )  # fmt: skip
    made.update(arrays, results, 0)
    assert passes == [(False, True)], "one pass, without a graph of the policy, reference or sequences"
    passes.clear()
    made.update(arrays, results, 1)
    assert seen == [{"value_head"}, {"value_head", "task", "body", "head"}]
    assert (True, True) in passes
    assert all(p.requires_grad for p in made.policy.parameters())


# -- averages, schedules, state ---------------------------------------------------------------------------------------


def test_the_average_of_the_weights(collected):
    env, arrays, results = collected
    made = trainer(env, batch=7, optim={"ema_decay": 0.75})
    expected, step = weights(made.policy), made.optimizer.step

    def follow():
        step()
        for name, value in weights(made.policy).items():
            expected[name] = 0.75 * expected[name] + 0.25 * value

    made.optimizer.step = follow
    metrics, _ = made.update(arrays, results, 0)
    assert metrics["train/optimizer_steps"] > 1
    present = weights(made.policy)
    with made.evaluated():
        for name, value in weights(made.policy).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)
    assert all(torch.equal(value, present[name]) for name, value in weights(made.policy).items())
    plain = trainer(env, batch=7)
    plain.update(arrays, results, 0)
    assert same_weights(plain.policy, made.policy), "what is trained does not depend on it"
    with plain.evaluated():
        assert same_weights(plain.policy, made.policy), "without ema_decay the present weights are evaluated"


def test_each_optimizer_step_has_its_place_in_the_schedule(collected):
    env, arrays, results = collected
    made = trainer(env, batch=10, sched={"lr_decay_style": "linear"}, iterations=4, update_epoch=2)
    rates, step = [], made.optimizer.step
    made.optimizer.step = lambda: (rates.append(made.optimizer.param_groups[0]["lr"]), step())
    metrics, _ = made.update(arrays, results, iteration=1)
    n = len(rates)
    assert n == metrics["train/optimizer_steps"] > 2
    assert rates == pytest.approx([0.01 * (1 - (1 + k / n) / 4) for k in range(1, n + 1)])
    assert metrics["train/lr"] == pytest.approx(0.005)


STATEFUL: dict[str, Any] = {
    "optim": {"ema_decay": 0.9}, "kl_beta": 0.5, "kl_penalty_type": "k2", "reference_reset_interval": 1,
    "kl_ctrl": KlControlConfig(type="adaptive", target_kl=1e-3, horizon=80),
}  # fmt: skip


@pytest.mark.parametrize(("interval", "done"), [(1, 2), (2, 3)])
def test_a_trainer_goes_on_from_its_state(collected, interval, done):
    """Also from one in whose next iteration the reference stays where it was moved to."""
    env, arrays, results = collected
    keys = {**STATEFUL, "reference_reset_interval": interval}
    whole = trainer(env, **keys)
    for iteration in range(done):
        whole.update(arrays, results, iteration)
    state = {name: value.clone() if torch.is_tensor(value) else value for name, value in whole.state_dict().items()}
    assert {name.partition(".")[0] for name in state} >= {"bad_in_a_row", "kl_beta", "average", "reference"}
    assert all(isinstance(value, int | float | str | dict | torch.Tensor) for value in state.values())
    parts = trainer(env, **keys)
    assert parts.state_dict().keys() == state.keys(), "what there is to load is known before it is loaded"
    parts.policy.load_state_dict(whole.policy.state_dict())
    parts.optimizer.load_state_dict(deepcopy(whole.optimizer.state_dict()))  # torch would share the moments
    parts.load_state_dict(state)
    one, _ = whole.update(arrays, results, done)
    two, _ = parts.update(arrays, results, done)
    assert one == two
    assert same_weights(whole.policy, parts.policy)
    for name, value in whole.state_dict().items():
        other = parts.state_dict()[name]
        assert torch.equal(value, other) if torch.is_tensor(value) else value == other, name


def test_a_plain_trainer_has_no_weights_in_its_state(collected):
    env, _, _ = collected
    state = trainer(env, kl_beta=1.0).state_dict()
    assert not any(state.pop("noise").values())
    assert state == {
        "weight_version": 0, "bad_in_a_row": 0, "last_finite": "none yet", "kl_beta": 1.0, "unlogged": {},
    }  # fmt: skip
