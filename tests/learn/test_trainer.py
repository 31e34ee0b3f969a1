"""The trainer against an explicit computation, on records of the fake env."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from broken_policies import NotFinite
from hypothesis import given, settings
from hypothesis import strategies as st
from rig import CPU

from embodied.algorithms import aggregation
from embodied.algorithms.advantages.advantages import grpo
from embodied.algorithms.layout import Layout
from embodied.algorithms.losses import ppo
from embodied.errors import ConfigError, NumericalError
from embodied.learn.batch import micro_batches, optimizer_batches
from embodied.learn.step.optimizer import make_optimizer
from embodied.learn.terms.term import Need
from embodied.learn.trainer import Trainer
from embodied.runtime.plan import eval_plan, train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy
from embodied.types import Elements, Sampling

LAYOUT = Layout(Elements((4, 7), action_axis=0), 4)
HUGE = 1e9  # a norm that no gradient reaches: nothing is clipped


def optim(**changes: Any) -> OptimConfig:
    return OptimConfig(**{"lr": 0.01, "clip_grad": HUGE, **changes})


def trainer(env, batch=1000, micro=1000, policy=None, optimizer=None, max_bad_updates=3, **algorithm: Any) -> Trainer:
    policy = policy or FakePolicy()
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=batch, micro_batch_size=micro, optim=optimizer or optim(),
        model=ModelConfig(_target_="embodied.testing.FakePolicy"),
    )  # fmt: skip
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(group_size=2, **algorithm), sampling=Sampling(),
        device=CPU, seed=0, max_steps=10, max_bad_updates=max_bad_updates,
    )  # fmt: skip


def weights(policy) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}


def update_and_gradients(made: Trainer, arrays, results):
    """Metrics of one update, and the gradients that its single optimizer step saw."""
    seen: list[dict[str, torch.Tensor]] = []
    step = made.optimizer.step

    def spy():
        seen.append({n: p.grad.clone() for n, p in made.policy.named_parameters() if p.grad is not None})
        step()

    made.optimizer.step = spy
    metrics, batch = made.update(arrays, results, iteration=0)
    (gradients,) = seen
    assert not [name for name, p in made.policy.named_parameters() if p.grad is not None], "freed, actor.offload_grad"
    return metrics, batch, gradients


def explicit(made: Trainer, arrays, results, batch, entropy_bonus=0.0):
    """The loss of all records in one pass, advantage zero or not, and its gradients."""
    policy = FakePolicy()
    policy.bind(made.env)
    records = {name: torch.from_numpy(array[batch.rows]) for name, array in arrays.items()}
    records["task"] = records["task_id"].long()
    result = policy.evaluate(records, Sampling())
    level = made.algorithm.logprob_type
    mask = LAYOUT.mask(batch.counts, level)
    new = LAYOUT.reduce(result.logprobs, batch.counts, level)
    old = LAYOUT.reduce(records["logprobs"], batch.counts, level)
    advantages = grpo(*returns_and_groups(results)).values[batch.sequence_ids]
    loss = ppo.Loss(0.2, 0.28)(new, old, advantages[:, None].expand_as(new)).per_token
    total = (loss * aggregation.weights(mask, batch.sequence_ids, made.algorithm.loss_agg_func)).sum()
    if entropy_bonus:
        token_mask = LAYOUT.mask(batch.counts, "token_level")
        entropy = LAYOUT.reduce(result.entropy, batch.counts, "token_level")
        share = aggregation.weights(token_mask, batch.sequence_ids, made.algorithm.loss_agg_func)
        total = total - entropy_bonus * (entropy * share).sum()
    total.backward()
    return total.item(), {name: parameter.grad for name, parameter in policy.named_parameters()}


def returns_and_groups(results):
    returns = torch.tensor([result.episode_return for result in results])
    return returns, torch.tensor([result.episode.group_id for result in results])


def assert_close(got, expected):
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=2e-6)


def with_equal_returns(arrays, results, groups):
    """The same records, but in ``groups`` every episode got a reward of 0.5 at its first step and nothing else."""
    arrays = {name: array.copy() for name, array in arrays.items()}
    changed = []
    for result in results:
        if result.episode.group_id in groups:
            arrays["rewards"][list(result.rows)] = 0
            arrays["rewards"][result.rows[0], 0] = 0.5
            result = replace(result, episode_return=0.5)
        changed.append(result)
    return arrays, changed


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "token-mean", "token-sum"])
@pytest.mark.parametrize("micro", [1, 3, 1000])
def test_micro_batches_change_neither_loss_nor_gradients(collected, micro, mode):
    env, arrays, results = collected
    made = trainer(env, micro=micro, loss_agg_func=mode)
    metrics, batch, gradients = update_and_gradients(made, arrays, results)
    loss, expected = explicit(made, arrays, results, batch)
    assert metrics["train/loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert_close(gradients, expected)
    assert metrics["train/optimizer_steps"] == metrics["train/weight_version"] == 1
    assert metrics["train/skipped_records"] == 0


def test_records_without_advantage_are_skipped_and_denominators_stay(collected):
    env, arrays, results = collected
    arrays, results = with_equal_returns(arrays, results, groups={0, 2})
    made = trainer(env, calculate_noise_scale=False)  # which has a pass of two records of its own
    seen = []
    evaluate = made.policy.evaluate
    made.policy.evaluate = lambda records, s: (seen.append(set(records["task"].shape)), evaluate(records, s))[1]
    metrics, batch, gradients = update_and_gradients(made, arrays, results)
    loss, expected = explicit(made, arrays, results, batch)
    skipped = sum(len(result.rows) for result in results if result.episode.group_id in {0, 2})
    assert metrics["train/skipped_records"] == skipped
    assert seen == [{len(batch) - skipped}], "skipped records never reach the forward pass"
    assert metrics["train/loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert_close(gradients, expected)
    assert batch.groups.zero_groups == 2


def test_nothing_is_updated_when_no_record_has_an_advantage(collected):
    env, arrays, results = collected
    arrays, results = with_equal_returns(arrays, results, groups={0, 1, 2, 3})
    made = trainer(env)
    before = weights(made.policy)
    metrics, batch = made.update(arrays, results, iteration=0)
    assert (metrics["train/optimizer_steps"], metrics["train/weight_version"]) == (0, 0)
    assert metrics["train/skipped_records"] == len(batch)
    assert all(torch.equal(value, before[name]) for name, value in weights(made.policy).items())


def test_an_entropy_bonus_trains_on_every_record(collected):
    env, arrays, results = collected
    arrays, results = with_equal_returns(arrays, results, groups={0, 2})
    made = trainer(env, micro=3, entropy_bonus=0.1)
    metrics, batch, gradients = update_and_gradients(made, arrays, results)
    loss, expected = explicit(made, arrays, results, batch, entropy_bonus=0.1)
    assert metrics["train/skipped_records"] == 0
    assert metrics["train/loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert_close(gradients, expected)
    assert 2.0 < metrics["train/entropy"] <= np.log(16), "16 bins of a policy that was not trained"


def test_groups_without_an_advantage_do_not_lower_the_entropy_that_is_shown(collected):
    env, arrays, results = collected
    everything, _ = trainer(env).update(arrays, results, iteration=0)
    fewer, _ = trainer(env).update(*with_equal_returns(arrays, results, groups={0, 2}), iteration=0)
    assert fewer["train/skipped_records"] > 0
    assert fewer["train/entropy"] == pytest.approx(everything["train/entropy"], rel=0.1)


def test_trainer_and_rollout_agree_about_log_probs(collected):
    env, arrays, results = collected
    metrics, _ = trainer(env).update(arrays, results, iteration=0)
    assert metrics["train/logprob_gap"] < 1e-5
    assert metrics["train/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["train/clip_share"] == 0
    other, _ = trainer(env, policy=FakePolicy(seed=1)).update(arrays, results, iteration=0)
    assert other["train/logprob_gap"] > 0.1


def test_optimizer_batches_and_epochs_are_counted(collected):
    env, arrays, results = collected
    count = sum(len(result.rows) for result in results)
    metrics, _ = trainer(env, batch=5, micro=2, update_epoch=2).update(arrays, results, iteration=0)
    assert metrics["train/optimizer_steps"] == metrics["train/weight_version"] == 2 * -(-count // 5)


def test_records_that_fill_no_optimizer_batch_are_one_that_weighs_as_much(collected):
    env, arrays, results = collected
    made = trainer(env, batch=5)
    batch = made.update(arrays, results, iteration=0)[1]
    steps = made._steps(batch, 0, 0)
    assert len(steps[-1]) == len(batch) % 5 > 0
    assert sorted(torch.cat(steps).tolist()) == list(range(len(batch)))
    wholes = [made._objective.optimizer_batch(batch, chosen) for chosen in steps]
    assert [whole.of_terms[0].sum().item() for whole in wholes] == pytest.approx([1] * len(steps))


def test_the_order_of_records_is_a_function_of_its_seed():
    def order(seed):
        return torch.cat(list(optimizer_batches(17, 4, *seed))).tolist()

    assert sorted(order((1, 2, 3))) == list(range(17))
    assert order((1, 2, 3)) == order((1, 2, 3))
    assert len({tuple(order(seed)) for seed in ((1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3))}) == 4
    assert [len(part) for part in optimizer_batches(17, 4, 0, 0, 0)] == [4, 4, 4, 4, 1]
    assert torch.cat(list(optimizer_batches(17, 4, 1, 2, 3, shuffle=False))).tolist() == list(range(17))


def test_records_are_taken_in_the_order_of_the_plan_if_that_is_asked_for(collected):
    env, arrays, results = collected
    shuffled, in_order = (
        trainer(env, batch=5, micro=5, shuffle_rollout=shuffle).update(arrays, results, iteration=0)[0]
        for shuffle in (True, False)
    )
    assert shuffled["train/optimizer_steps"] == in_order["train/optimizer_steps"]
    assert shuffled["train/loss"] != in_order["train/loss"]


def test_the_entropy_is_measured_if_somebody_asks_for_it(collected):
    env, arrays, results = collected
    for options, measured in (
        ({}, True), ({"calculate_entropy": False}, False), ({"calculate_entropy": False, "entropy_bonus": 0.01}, True)
    ):  # fmt: skip
        metrics, _ = trainer(env, **options).update(arrays, results, iteration=0)
        assert ("train/entropy" in metrics) == measured


def test_an_update_that_is_not_finite_changes_nothing(collected):
    env, arrays, results = collected
    made = trainer(env, policy=NotFinite(), max_bad_updates=3)
    before = weights(made.policy)
    metrics, _ = made.update(arrays, results, iteration=0)
    assert (metrics["train/bad_updates"], metrics["train/optimizer_steps"]) == (1, 0)
    assert made.weight_version == 0
    assert not made.optimizer.state
    assert all(torch.equal(value, before[name]) for name, value in weights(made.policy).items())


def with_logprobs(arrays, value: float, counting: bool) -> dict[str, np.ndarray]:
    """A copy whose records have ``value`` as their first log-prob, or as those of all that was not executed."""
    logprobs = arrays["logprobs"].copy()
    elements = np.arange(logprobs.shape[1])
    executed = elements // 7 < arrays["num_steps"][:, None]
    logprobs[(elements == 0) & executed if counting else ~executed] = value
    return {**arrays, "logprobs": logprobs}


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_update_with_a_log_ratio_that_is_not_finite_is_left_out(collected, value):
    env, arrays, results = collected
    made = trainer(env, micro=3)
    before = weights(made.policy)
    metrics, _ = made.update(with_logprobs(arrays, value, counting=True), results, iteration=0)
    assert (metrics["train/bad_updates"], metrics["train/optimizer_steps"], made.weight_version) == (1, 0, 0)
    assert metrics["train/bad_ratios"] > 0
    assert all(torch.equal(found, before[name]) for name, found in weights(made.policy).items())


def test_a_log_ratio_of_what_does_not_count_changes_no_bit(collected):
    env, arrays, results = collected
    plain, odd = trainer(env), trainer(env)
    poisoned = with_logprobs(arrays, np.nan, counting=False)
    assert np.isnan(poisoned["logprobs"]).any()
    metrics = [made.update(found, results, iteration=0)[0] for made, found in ((plain, arrays), (odd, poisoned))]
    assert metrics[0] == metrics[1]
    assert metrics[0]["train/bad_ratios"] == 0
    assert all(torch.equal(found, weights(plain.policy)[name]) for name, found in weights(odd.policy).items())


def test_a_finite_update_begins_the_count_anew_and_too_many_in_a_row_stop(collected):
    env, arrays, results = collected
    made = trainer(env, policy=NotFinite(), max_bad_updates=2)
    for poisoned, expected in ((True, 1), (False, 0), (True, 1)):
        made.policy.poisoned = poisoned
        metrics, _ = made.update(arrays, results, iteration=0)
        assert made.engine.finite.bad_in_a_row == metrics["train/bad_updates"] == expected
    with pytest.raises(NumericalError, match=r"2 updates in a row; last finite: loss .* at weight version 1"):
        made.update(arrays, results, iteration=0)
    assert made.weight_version == 1


def test_metrics_of_updates_are_means_over_those_that_were_taken(collected):
    env, arrays, results = collected
    policy = NotFinite()
    policy.poisoned = False
    whole, _ = trainer(env, policy=FakePolicy()).update(arrays, results, iteration=0)
    made = trainer(env, policy=policy, update_epoch=2)
    step = made.optimizer.step
    made.optimizer.step = lambda: (step(), setattr(policy, "poisoned", True))
    metrics, _ = made.update(arrays, results, iteration=0)
    assert (metrics["train/optimizer_steps"], metrics["train/bad_updates"]) == (1, 1)
    assert metrics["train/loss"] == pytest.approx(whole["train/loss"], abs=1e-6)
    assert metrics["train/grad_norm"] == pytest.approx(whole["train/grad_norm"], rel=1e-5)


def test_gradients_are_clipped_to_the_norm(collected):
    env, arrays, results = collected
    made = trainer(env, optimizer=optim(clip_grad=1e-3))
    metrics, _, gradients = update_and_gradients(made, arrays, results)
    norm = torch.sqrt(sum((g**2).sum() for g in gradients.values())).item()
    assert norm == pytest.approx(1e-3, rel=1e-2)
    assert metrics["train/grad_norm"] > 1e-3


def test_the_value_head_has_a_learning_rate_of_its_own():
    policy = FakePolicy(value_head=True)
    optimizer = make_optimizer(policy, optim(lr=0.1, value_lr=0.5, adam_beta1=0.7, weight_decay=0.25))
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in policy.named_parameters():
        assert rates[id(parameter)] == (0.5 if name.startswith("value_head") else 0.1)
    assert [group["name"] for group in optimizer.param_groups] == ["policy", "value"]
    assert {(group["betas"], group["weight_decay"]) for group in optimizer.param_groups} == {((0.7, 0.999), 0.25)}
    assert [g["name"] for g in make_optimizer(FakePolicy(), optim()).param_groups] == ["policy"]


def test_a_policy_that_is_all_frozen_is_refused():
    policy = FakePolicy()
    policy.requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        make_optimizer(policy, optim())


def test_frozen_parameters_stay_as_they_are(collected):
    env, arrays, results = collected
    policy = FakePolicy()
    policy.task.requires_grad_(False)
    made = trainer(env, policy=policy)
    before = weights(policy)
    made.update(arrays, results, iteration=0)
    changed = {name for name, value in weights(policy).items() if not torch.equal(value, before[name])}
    assert changed == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


SEQUENCES = {"update_epoch": 2, "off_policy_masking_delta": 1e-3, "positive_nll_coef": 0.3}


@pytest.mark.parametrize("loss_type", ["ppo", "gspo", "cispo", "aipo", "reinforce"])
def test_sequences_that_micro_batches_cut_are_whole_to_every_loss(collected, loss_type):
    """Two epochs, so that log-probs have moved: what depends on a whole episode is the same however it is cut."""
    env, arrays, results = collected
    outcomes = []
    for micro in (1, 2, 4, 1000):
        made = trainer(env, micro=micro, loss_type=loss_type, optimizer=optim(lr=0.002), **SEQUENCES)
        outcomes.append((made.update(arrays, results, iteration=0)[0], weights(made.policy)))
    for metrics, policy in outcomes[1:]:
        assert metrics["train/loss"] == pytest.approx(outcomes[0][0]["train/loss"], abs=1e-5)
        assert metrics["train/ratio_mean"] == pytest.approx(outcomes[0][0]["train/ratio_mean"], abs=1e-5)
        for name, value in policy.items():
            torch.testing.assert_close(value, outcomes[0][1][name], rtol=0, atol=2e-4)


def test_the_ratio_of_gspo_is_that_of_the_episode(collected):
    env, arrays, results = collected
    made = trainer(env, policy=FakePolicy(seed=1), loss_type="gspo", clip_ratio_high=HUGE, positive_nll_coef=1e-9)
    metrics, batch = made.update(arrays, results, iteration=0)
    other = FakePolicy(seed=1)
    other.bind(env)
    records = {name: torch.from_numpy(array[batch.rows]) for name, array in arrays.items()}
    records["task"] = records["task_id"].long()
    with torch.no_grad():
        gaps = other.evaluate(records, Sampling()).logprobs - records["logprobs"]
    mask = LAYOUT.mask(batch.counts, "token_level")
    ids = batch.sequence_ids[:, None].expand_as(mask)
    ratios = [gaps[mask & (ids == s)].mean().exp() for s in range(8)]
    assert batch.positive.all(), "dense rewards: no episode is left out"
    expected = torch.stack([ratios[int(s)] for s in ids[mask]]).mean().item()
    assert metrics["train/ratio_mean"] == pytest.approx(expected, rel=1e-4)


def test_positive_nll_raises_the_log_probs_of_what_paid(collected):
    env, arrays, results = collected
    arrays, results = with_equal_returns(arrays, results, groups={0, 1, 2, 3})
    made = trainer(env, positive_nll_coef=0.5, optimizer=optim(lr=1e-4))
    metrics, batch, _ = update_and_gradients(made, arrays, results)
    mask = LAYOUT.mask(batch.counts, "token_level")
    old = torch.from_numpy(arrays["logprobs"][batch.rows])
    assert metrics["train/skipped_records"] == 0
    assert metrics["train/loss"] == pytest.approx(-0.5 * old[mask].mean().item(), rel=1e-5)


def test_sequences_that_fell_too_far_have_no_gradient(collected):
    env, arrays, results = collected
    arrays = {**arrays, "logprobs": arrays["logprobs"] + 1.0}  # as if every token had lost one nat since
    plain = trainer(env, loss_type="reinforce")
    masked = trainer(env, loss_type="reinforce", off_policy_masking_delta=0.5)
    lenient = trainer(env, loss_type="reinforce", off_policy_masking_delta=1.5)
    losses = [made.update(arrays, results, iteration=0)[0]["train/loss"] for made in (plain, masked, lenient)]
    assert losses[0] == pytest.approx(losses[2])
    assert Need.DRIFT in masked._objective.needs
    _, batch = trainer(env, loss_type="reinforce").update(arrays, results, iteration=0)
    records = {name: torch.from_numpy(array[batch.rows]) for name, array in arrays.items()}
    records["task"] = records["task_id"].long()
    policy = FakePolicy()
    policy.bind(env)
    new = policy.evaluate(records, Sampling()).logprobs.detach()
    mask = LAYOUT.mask(batch.counts, "token_level")
    share = aggregation.weights(mask, batch.sequence_ids, "seq-mean-token-mean")
    expected = torch.where(mask, -batch.advantages.clamp(min=0) * new * share, 0.0).sum().item()
    assert losses[1] == pytest.approx(expected, rel=1e-4)


def test_an_epoch_ends_where_the_ratio_passes_the_limit(collected):
    env, arrays, results = collected
    arrays = {**arrays, "logprobs": arrays["logprobs"] - np.log(3).astype(np.float32)}  # ρ = 3 everywhere
    stopped, _ = trainer(env, batch=5, update_epoch=2, early_stop_imp_ratio=2.9).update(arrays, results, iteration=0)
    assert (stopped["train/early_stops"], stopped["train/optimizer_steps"]) == (2, 0)
    going, _ = trainer(env, batch=1000, early_stop_imp_ratio=3.1).update(arrays, results, iteration=0)
    assert (going["train/early_stops"], going["train/optimizer_steps"]) == (0, 1)


def test_groups_beyond_the_bounds_leave_batch_and_denominators(collected):
    env, arrays, results = collected
    means = {g: np.mean([r.episode_return for r in results if r.episode.group_id == g]) for g in range(4)}
    low, _, high, _ = sorted(means, key=means.get)
    bounds = {"filter_rewards": True, "rewards_lower_bound": means[low] + 1e-3, "rewards_upper_bound": means[high]}
    filtered, batch = trainer(env, **bounds).update(arrays, results, iteration=0)
    kept = [r for r in results if means[low] < means[r.episode.group_id] <= means[high]]
    alone, _ = trainer(env).update(arrays, kept, iteration=0)
    assert filtered["train/filtered_groups"] == 2
    assert filtered["train/loss"] == pytest.approx(alone["train/loss"], rel=1e-6)
    assert len(batch) == sum(len(r.rows) for r in results), "metrics of the rollout are those of all episodes"


def test_nothing_is_updated_when_every_group_is_filtered(collected):
    env, arrays, results = collected
    bounds = {"filter_rewards": True, "rewards_lower_bound": 98.0, "rewards_upper_bound": 99.0}
    metrics, _ = trainer(env, **bounds).update(arrays, results, iteration=0)
    assert (metrics["train/filtered_groups"], metrics["train/optimizer_steps"]) == (4, 0)


@pytest.mark.parametrize("micro", [1, 4, 1000])
def test_the_kl_penalty_pulls_towards_the_weights_that_training_began_with(collected, micro):
    env, arrays, results = collected
    arrays, results = with_equal_returns(arrays, results, groups={0, 1, 2, 3})
    made = trainer(env, micro=micro, kl_beta=2.0, kl_penalty_type="k2", loss_agg_func="token-mean")
    first, batch = made.update(arrays, results, iteration=0)
    assert first["train/kl_reference"] == first["train/loss"] == 0
    with torch.no_grad():
        for parameter in made.policy.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    moved = weights(made.policy)
    records = {name: torch.from_numpy(array[batch.rows]) for name, array in arrays.items()}
    records["task"] = records["task_id"].long()
    began = FakePolicy()
    began.bind(env)
    with torch.no_grad():
        d = made.policy.evaluate(records, Sampling()).logprobs - began.evaluate(records, Sampling()).logprobs
    mask = LAYOUT.mask(batch.counts, "token_level")
    expected = (d[mask] ** 2 / 2).mean().item()
    later, _ = made.update(arrays, results, iteration=1)
    assert later["train/kl_reference"] == pytest.approx(expected, rel=1e-4)
    assert later["train/loss"] == pytest.approx(2 * expected, rel=1e-4)
    assert later["train/skipped_records"] == 0
    third, _ = made.update(arrays, results, iteration=2)
    assert third["train/kl_reference"] < expected
    assert not torch.equal(moved["head.weight"], made.policy.head.weight)


def test_the_unbiased_kl_estimate_is_weighted_by_the_ratio(collected):
    env, arrays, results = collected
    arrays, results = with_equal_returns(arrays, results, groups={0, 1, 2, 3})
    arrays["logprobs"] = arrays["logprobs"] - np.log(3).astype(np.float32)  # ρ = 3 everywhere
    plain, corrected = (trainer(env, kl_beta=1.0, unbiased_kl_estimate=yes) for yes in (False, True))
    for made in (plain, corrected):
        with torch.no_grad():
            made.policy.head.bias += torch.linspace(-1, 1, len(made.policy.head.bias))
    # Both moved alike, so that ρ is 3·exp(d): not a common factor, but the sum is larger by about 3.
    values = [made.update(arrays, results, iteration=0)[0]["train/kl_reference"] for made in (plain, corrected)]
    assert values[1] > 2 * values[0] > 0


def test_the_constant_of_dr_grpo_can_be_given(collected):
    env, arrays, results = collected
    options = {"loss_agg_func": "seq-mean-token-sum-norm", "loss_type": "reinforce"}
    derived, _ = trainer(env, **options).update(arrays, results, iteration=0)
    given, _ = trainer(env, unbiased_loss_max_tokens=35, **options).update(arrays, results, iteration=0)
    assert given["train/loss"] == pytest.approx(2 * derived["train/loss"], rel=1e-5), "10 steps of 7 tokens are 70"


def test_grpo_raises_the_return(make_rig):
    """15 iterations of 64 episodes on one task: the point learns to move towards its goal. Scored on fixed starts."""
    rig = make_rig(slots=8, workers=2, rows=256, policy={"num_tasks": 1, "bins": 4}, num_tasks=1, num_init_states=8)
    made = trainer(
        rig.env.spec, policy=rig.policy, batch=64, optimizer=optim(lr=0.02, clip_grad=1.0), update_epoch=2,
        loss_agg_func="token-mean",
    )  # fmt: skip
    rollout = rig.rollout(policy_batch=8)

    def score() -> float:
        results, _ = rollout.collect(
            eval_plan(rig.env.spec, episodes_per_task=32), rig.job(max_steps=16, keep_records=False)
        )
        return float(np.mean([result.episode_return for result in results]))

    before = score()
    for iteration in range(15):
        plan = train_plan(rig.env.spec, seed=3, iteration=iteration, episodes=64, group_size=16)
        results, _ = rollout.collect(plan, rig.job(max_steps=16, version=made.weight_version))
        made.update(rig.slab.arrays, results, iteration)
        rollout.records.keep()
    after = score()
    assert after > 1.4 * before, f"mean return {before:.2f} before and {after:.2f} after"


class Dear(FakePolicy):
    """Records of task 1 cost three times as much as those of task 0."""

    def flops(self, records, training):
        return (1.0 + 2.0 * (records["task"] == 1)) * (10 if training else 1)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_micro_batches_are_near_equal_and_of_like_cost(count, size, seed):
    costs = torch.from_numpy(np.random.default_rng(seed).integers(1, 4, count).astype(float))
    index = 100 + torch.arange(count)
    for given_costs in (None, costs):
        parts = micro_batches(index, size, given_costs)
        sizes = [len(part) for part in parts]
        assert len(parts) == -(-count // size)
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1
        assert sorted(torch.cat(parts).tolist()) == index.tolist()
    ordered = costs[torch.cat(parts) - 100]
    assert (ordered.diff() <= 0).all(), "the dearest first"
    assert torch.equal(torch.cat(micro_batches(index, size, torch.ones(count))), index), "equal costs keep the order"


def test_the_order_of_micro_batches_by_cost_changes_neither_loss_nor_gradients(collected):
    env, arrays, results = collected
    plain = trainer(env, micro=3)
    dear = trainer(env, micro=3, policy=Dear())
    one, batch, gradients = update_and_gradients(plain, arrays, results)
    two, _, others = update_and_gradients(dear, arrays, results)
    assert two["train/loss"] == pytest.approx(one["train/loss"], rel=1e-5, abs=1e-6)
    assert_close(others, gradients)
    dear_ones = int((arrays["task_id"][batch.rows] == 1).sum())
    assert 0 < dear_ones < len(batch)
    assert (dear.samples, dear.flops) == (len(batch), 10.0 * (len(batch) + 2 * dear_ones))


def test_what_was_trained_on_is_counted_once_an_epoch(collected):
    env, arrays, results = collected
    arrays, results = with_equal_returns(arrays, results, groups={0, 2})
    made = trainer(env, update_epoch=2, batch=5)
    metrics, batch = made.update(arrays, results, iteration=0)
    assert made.samples == 2 * len(batch) - metrics["train/skipped_records"]
    assert 0 < metrics["train/records"] == len(batch) - metrics["train/skipped_records"] / 2, "each once"
    per_record = made.policy.flops({"actions": np.zeros(1)}, training=True)[0]
    assert per_record == 2 * 3 * (27 * 32 + 32 * 28 * 16)
    assert made.flops == made.samples * per_record


def test_staleness_counts_updates_since_a_record_was_acted(collected):
    env, arrays, results = collected  # acted at version 5
    made = trainer(env, batch=10)
    made.engine.weight_version = 7
    metrics, batch = made.update(arrays, results, iteration=0)
    steps = -(-len(batch) // 10)
    assert metrics["train/staleness_max"] == 2 + steps - 1
    sizes = [len(part) for part in torch.arange(len(batch)).split(10)]
    expected = sum(size * (2 + i) for i, size in enumerate(sizes)) / len(batch)
    assert metrics["train/staleness_mean"] == pytest.approx(expected)


def test_the_mean_gap_and_the_largest(collected):
    env, arrays, results = collected
    shifted = {**arrays, "logprobs": arrays["logprobs"] + 0.25}
    metrics, _ = trainer(env).update(shifted, results, iteration=0)
    assert metrics["train/logprob_gap"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["train/logprob_gap_mean"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["train/ratio_p50"] == pytest.approx(np.exp(-0.25), rel=1e-3)
