"""The terms of the loss: which are made, what they need and refuse, and how their sum and metrics come about."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rig import CPU

from embodied.algorithms.kl import Coefficient
from embodied.algorithms.layout import Counts
from embodied.errors import ConfigError, SpecMismatchError
from embodied.learn.score.batches import gather_numbers
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.objective import ADDED, COMPUTED, Objective
from embodied.learn.terms.entropy import EntropyTerm
from embodied.learn.terms.kl import KlTerm
from embodied.learn.terms.policy import PolicyTerm
from embodied.learn.terms.positive_nll import PositiveNllTerm
from embodied.learn.terms.term import Need, OptimizerBatch, Setup, Share
from embodied.learn.terms.value import ValueTerm
from embodied.learn.trainer import Trainer
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy, FlowPolicy
from embodied.types import Evaluation, PolicySpec, Sampling


def setup(spec: PolicySpec | None = None, **algorithm) -> Setup:
    return Setup(spec or FakePolicy(value_head=True).spec, AlgorithmConfig(**algorithm), 10, Coefficient(0.5))


def kinds(**algorithm) -> set[type]:
    return {type(term) for term in Objective(setup(**algorithm)).terms}


def test_every_term_that_is_computed_is_added_once():
    added = [kind for bracket in ADDED for kind in bracket]
    assert len(added) == len(set(added))
    assert set(added) == set(COMPUTED)


def test_a_term_is_made_if_the_configuration_asks_for_it():
    assert kinds() == {PolicyTerm, EntropyTerm}
    assert kinds(adv_type="gae", kl_beta=0.1, positive_nll_coef=0.2) == set(COMPUTED)
    assert kinds(kl_beta=0.1, use_kl_in_reward=True) == {PolicyTerm, EntropyTerm}, "the KL is in the rewards"
    without = Objective(setup(FlowPolicy().spec, logprob_type="action_level"))
    assert [type(term) for term in without.terms] == [PolicyTerm], "the policy gives no entropies"


@pytest.mark.parametrize(
    ("algorithm", "needs"),
    [
        ({}, set()),
        ({"loss_type": "gspo"}, {Need.DRIFT}),
        ({"loss_type": "tis"}, {Need.PROXIMAL}),
        ({"loss_type": "tis", "off_policy_masking_delta": 0.1}, {Need.PROXIMAL, Need.DRIFT}),
        ({"kl_beta": 0.1}, {Need.REFERENCE}),
        ({"kl_beta": 0.1, "kl_penalty_type": "full"}, {Need.REFERENCE, Need.DISTRIBUTION}),
        ({"adv_type": "gae"}, {Need.VALUES}),
    ],
)
def test_the_objective_needs_what_its_terms_need(algorithm, needs):
    assert Objective(setup(**algorithm)).needs == needs


@pytest.mark.parametrize(
    ("spec", "algorithm", "message"),
    [
        (FlowPolicy().spec, {"entropy_bonus": 0.1}, r"the policy gives no entropies(.|\n)*entropy_bonus=0"),
        (FlowPolicy().spec, {"kl_beta": 0.1, "kl_penalty_type": "full"}, r"gives no distribution(.|\n)*low_var_kl"),
        (FakePolicy().spec, {"adv_type": "gae"}, r"has no value head(.|\n)*value_head=true"),
    ],
)  # fmt: skip
def test_what_the_policy_does_not_offer_is_refused_with_the_fix(spec, algorithm, message):
    with pytest.raises(ConfigError, match=message):
        Objective(setup(spec, logprob_type="action_level", **algorithm))


def one_batch(objective: Objective, positive: bool = True) -> OptimizerBatch:
    """Two records of two episodes, of which the second ended after one action."""
    batch = SimpleNamespace(
        counts=Counts(torch.tensor([4, 1])), sequence_ids=torch.tensor([0, 1]), advantages=torch.tensor([[1.0], [0.0]]),
        positive=torch.tensor([False, positive]), value_targets=torch.tensor([[1.0], [2.0]]), proximal=None,
        shared=None,
    )  # fmt: skip
    return objective.optimizer_batch(batch, torch.arange(2))  # type: ignore[arg-type]


def evaluation(seed: int = 0) -> Evaluation:
    random = torch.Generator().manual_seed(seed)
    logprobs, entropy, value = (torch.rand(2, size, generator=random).requires_grad_() for size in (28, 28, 1))
    return Evaluation(logprobs, entropy, value)


ALL = {"adv_type": "gae", "kl_beta": 0.5, "positive_nll_coef": 0.2, "entropy_bonus": 0.1, "kl_penalty_type": "k2"}


def shares_of(objective: Objective, result: Evaluation) -> list[Share]:
    old = evaluation(1)
    records = {"logprobs": old.logprobs.detach(), "value": old.value.detach()}
    return objective.shares(one_batch(objective), records, result, Evaluation(records["logprobs"]))


def test_the_total_is_the_sum_of_the_shares_and_in_the_warm_up_the_value_loss_alone():
    objective, result = Objective(setup(**ALL)), evaluation()
    shares = shares_of(objective, result)
    assert len(shares) == len(COMPUTED)
    assert all(share.loss.requires_grad for share in shares)
    assert objective.total(shares).item() == pytest.approx(sum(share.loss.item() for share in shares), rel=1e-6)
    (value,) = (share for term, share in zip(objective.terms, shares, strict=True) if isinstance(term, ValueTerm))
    assert objective.total(shares, value_only=True) is value.loss


def test_shares_have_their_coefficients_and_signs():
    objective, result = Objective(setup(**ALL)), evaluation()
    shares = dict(zip(map(type, objective.terms), shares_of(objective, result), strict=True))
    mask = torch.zeros(2, 28)
    mask[0], mask[1, :7] = 1.0, 1.0
    mean = mask / mask.sum(dim=1, keepdim=True) / 2  # seq-mean-token-mean: two sequences, of 28 and 7 elements
    d = result.logprobs - evaluation(1).logprobs
    assert shares[EntropyTerm].loss.item() == pytest.approx(-0.1 * (result.entropy * mean).sum().item(), rel=1e-5)
    assert shares[KlTerm].loss.item() == pytest.approx(0.5 * (d**2 / 2 * mean).sum().item(), rel=1e-5)
    paid = -result.logprobs[1, :7].mean().item()
    assert shares[PositiveNllTerm].loss.item() == pytest.approx(0.2 * paid, rel=1e-5), "only the second episode paid"
    ratio = d[0].detach().exp().clamp(max=1.28)
    assert shares[PolicyTerm].loss.item() == pytest.approx(-ratio.mean().item() / 2, rel=1e-5)


def test_an_entropy_without_a_bonus_is_measured_and_has_no_gradient():
    objective, result = Objective(setup()), evaluation()
    shares = dict(zip(map(type, objective.terms), shares_of(objective, result), strict=True))
    entropy = shares[EntropyTerm]
    assert entropy.loss is None
    total, weight = entropy.means["train/entropy"].tolist()
    expected = (result.entropy[0].mean() + result.entropy[1, :7].mean()).item() / 2
    assert total / weight == pytest.approx(expected, rel=1e-5)
    objective.total(list(shares.values())).backward()
    assert result.entropy.grad is None


def test_entropies_that_were_declared_and_are_not_given_are_a_broken_contract():
    with pytest.raises(SpecMismatchError, match=r"entropy of evaluate\(\): got none, and PolicySpec.entropy is True"):
        shares_of(Objective(setup()), replace(evaluation(), entropy=None))


def test_records_get_a_gradient_if_one_term_gives_them_one():
    for algorithm, positive, expected in (
        ({}, True, [True, False]),
        ({"positive_nll_coef": 0.1}, True, [True, True]),
        ({"positive_nll_coef": 0.1}, False, [True, False]),
        ({"entropy_bonus": 0.1}, False, [True, True]),
        ({"kl_beta": 0.1}, False, [True, True]),
        ({"adv_type": "gae"}, False, [True, True]),
    ):
        objective = Objective(setup(**algorithm))
        found = objective.carries_gradient(one_batch(objective, positive))
        assert found.tolist() == expected, algorithm


# -- metrics -----------------------------------------------------------------------------------------------------------


class TwoRanks:
    """Stands for two ranks that measured the same names but one."""

    size = 2

    def __init__(self, other: UpdateMetrics) -> None:
        self._other = other

    def gather(self, own):
        other = self._other
        sums = np.array([other.samples, other.records, other.flops])
        return [own, (other.stats, sums, other.means, other.largest, other.per_batch)]


def test_the_metrics_are_those_that_the_terms_report_over_passes_and_ranks():
    one, two = UpdateMetrics(batches=2, steps=1), UpdateMetrics(batches=2, steps=1)
    mean = torch.tensor([3.0, 2.0], dtype=torch.float64)
    one.add([Share(None, {"train/mine": mean}, {"train/most": torch.tensor(1.5)}, {"train/cost": torch.tensor(1.0)})])
    one.add([Share(None, {"train/mine": mean}, {"train/most": torch.tensor(0.5)}, {"train/cost": torch.tensor(2.0)})])
    alone = one.metrics()
    assert (alone["train/mine"], alone["train/most"], alone["train/cost"]) == (1.5, 1.5, 1.5)
    two.add([Share(None, {"train/mine": 3 * mean, "train/other": mean}, {"train/most": torch.tensor(7.0)})])
    both = one.over(TwoRanks(two)).metrics()  # type: ignore[arg-type]
    assert (both["train/mine"], both["train/most"], both["train/cost"]) == (1.5, 7.0, 1.5)
    assert one.over(TwoRanks(two)).means["train/mine"].tolist() == [15.0, 10.0]  # type: ignore[arg-type]
    assert both["train/other"] == 1.5


# -- the trainer ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collected(shared_rig):
    rig = shared_rig(slots=4, workers=1, success_distance=0.6, policy={"value_head": True, "value_type": "chunk_level"})
    plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
    results, _ = rig.rollout().collect(plan, rig.job(value_truncated=True))
    return rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def trainer(env, **algorithm) -> Trainer:
    policy = FakePolicy(value_head=True)
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=1000, micro_batch_size=1000, optim=OptimConfig(lr=0.01),
        model=ModelConfig(_target_="embodied.testing.FakePolicy"),
    )  # fmt: skip
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(**{"group_size": 2, **algorithm}),
        sampling=Sampling(), device=CPU, seed=0, max_steps=10, max_bad_updates=3,
    )  # fmt: skip


def test_a_loss_around_the_proximal_policy_can_have_a_warm_up(collected):
    env, arrays, results = collected
    arrays = {**arrays, "logprobs": arrays["logprobs"] - 0.1}  # acted by another policy
    made = trainer(env, loss_type="tis", adv_type="gae", critic_warmup_steps=1, update_epoch=2)
    metrics, _ = made.update(arrays, results, 0)
    assert metrics["train/optimizer_steps"] == 2, "the warm-up ends within the update"
    assert metrics["train/behaviour_weight_mean"] == pytest.approx(np.exp(0.1), rel=1e-4)


def test_the_numbers_of_the_episodes_are_gathered_once_though_groups_are_filtered(collected, monkeypatch):
    env, arrays, results = collected
    calls = []
    monkeypatch.setattr(
        "embodied.learn.score.score.gather_numbers", lambda *given: (calls.append(1), gather_numbers(*given))[1]
    )
    means = sorted(np.mean([r.episode_return for r in results if r.episode.group_id == g]) for g in range(4))
    bounds = {"filter_rewards": True, "rewards_lower_bound": means[1] - 1e-3, "rewards_upper_bound": 99.0}
    metrics, batch = trainer(env, **bounds).update(arrays, results, 0)
    assert metrics["train/filtered_groups"] == 1
    assert len(calls) == 1
    assert batch.versions.tolist() == arrays["version"][batch.rows].tolist()
