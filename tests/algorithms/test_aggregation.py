"""Loss weights against hand-computed numbers, and the promise that they make: cutting the batch changes nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms.advantages.advantages import grpo
from embodied.algorithms.aggregation import MODES, sequence_means, weights
from embodied.algorithms.layout import LEVELS, Counts, Layout
from embodied.algorithms.policy_loss import make_loss
from embodied.errors import UnknownNameError
from embodied.types import Elements

# Sequence 5 has records 0 and 2 with 2 + 1 = 3 valid elements; sequence 2 has record 1 with 1. So n = 4, S = 2.
MASK = torch.tensor([[True, True], [True, False], [True, False]])
IDS = torch.tensor([5, 2, 5])
# Losses of sequence 5: 1, 2, 6 (sum 9, mean 3); of sequence 2: 4.
LOSSES = torch.tensor([[1.0, 2.0], [4.0, 100.0], [6.0, 100.0]])


@pytest.mark.parametrize(
    ("mode", "expected", "loss"),
    [
        ("token-mean", [[1 / 4, 1 / 4], [1 / 4, 0], [1 / 4, 0]], 13 / 4),
        ("token-sum", [[1, 1], [1, 0], [1, 0]], 13.0),
        ("seq-mean-token-sum", [[1 / 2, 1 / 2], [1 / 2, 0], [1 / 2, 0]], (9 + 4) / 2),
        ("seq-mean-token-mean", [[1 / 6, 1 / 6], [1 / 2, 0], [1 / 6, 0]], (3 + 4) / 2),
        ("seq-mean-token-sum-norm", [[1 / 20, 1 / 20], [1 / 20, 0], [1 / 20, 0]], 13 / (2 * 10)),
    ],
)
def test_each_mode(mode, expected, loss):
    got = weights(MASK, IDS, mode, norm_constant=10)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32))
    assert (got * LOSSES).sum().item() == pytest.approx(loss)


def test_a_sequence_without_valid_elements_does_not_count():
    # Of sequences 0 and 1 only 0 has valid elements, so S = 1 and each of its two weighs ½.
    got = weights(torch.tensor([[True, True], [False, False]]), torch.tensor([0, 1]), "seq-mean-token-mean")
    assert got.tolist() == [[0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_valid_weighs_nothing(mode):
    assert weights(torch.zeros(2, 2, dtype=torch.bool), torch.tensor([0, 1]), mode, 4.0).tolist() == [[0.0, 0.0]] * 2


def test_the_weights_of_a_long_batch_still_sum_to_one():
    # 3 million elements of weight 1/3e6 each, rounded to float32: off by less than 1e-7 in total.
    got = weights(torch.ones(30_000, 100, dtype=torch.bool), torch.arange(30_000) // 60, "token-mean")
    assert got.double().sum().item() == pytest.approx(1.0, abs=1e-7)


def test_bad_arguments_are_refused():
    with pytest.raises(UnknownNameError, match=r"algorithm.loss_agg_func"):
        weights(MASK, IDS, "token_mean")
    for constant in (None, 0.0):
        with pytest.raises(ValueError, match="positive norm_constant"):
            weights(MASK, IDS, "seq-mean-token-sum-norm", constant)


K, A = 3, 2
LAYOUT = Layout(Elements((K, A), action_axis=0), K)


class Batch:
    """N records of random episodes in groups of two, and a policy of 4 weights that gives their T = 6 log-probs."""

    def __init__(self, records: int, seed: int, garbage: float = 0.0) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.sequence_ids = torch.randint(0, 4, (records,), generator=rng)
        self.num_steps = torch.randint(1, K + 1, (records,), generator=rng)
        self.inputs = torch.randn(records, K * A, 4, generator=rng)
        old = torch.randn(records, K * A, generator=rng)
        self.old = torch.where(LAYOUT.mask(Counts(self.num_steps), "token_level"), old, garbage)
        returns = torch.randint(0, 2, (4,), generator=rng).float()
        self.advantages = grpo(returns, torch.tensor([0, 0, 1, 1])).values[self.sequence_ids]

    def logprobs(self, policy: torch.Tensor, rows: torch.Tensor, garbage: float = 0.0) -> torch.Tensor:
        kept = LAYOUT.mask(Counts(self.num_steps[rows]), "token_level")
        return torch.where(kept, self.inputs[rows] @ policy, (self.inputs[rows] @ policy) * 0 + garbage)


def loss_and_gradient(batch: Batch, level: str, mode: str, parts: list[torch.Tensor], garbage: float = 0.0):
    """Σ of the losses of all ``parts`` (rows of the batch), and the gradient that they left in the policy."""
    policy = torch.tensor([0.3, -0.2, 0.5, 0.1], requires_grad=True)
    share = weights(LAYOUT.mask(Counts(batch.num_steps), level), batch.sequence_ids, mode, norm_constant=12)
    loss_function, total = make_loss("ppo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}), 0.0
    for rows in parts:
        steps = batch.num_steps[rows]
        now = LAYOUT.reduce(batch.logprobs(policy, rows, garbage), Counts(steps), level)
        old = LAYOUT.reduce(batch.old[rows], Counts(steps), level)
        advantages = LAYOUT.spread(batch.advantages[rows][:, None], level)
        loss = (share[rows] * loss_function(now, old, advantages).per_token).sum()
        loss.backward()
        total += loss.item()
    return total, policy.grad if policy.grad is not None else torch.zeros(4)


def assert_same(first, second):
    assert first[0] == pytest.approx(second[0], rel=1e-4, abs=1e-5)
    torch.testing.assert_close(first[1], second[1], rtol=1e-4, atol=1e-5)


batches = st.builds(Batch, records=st.integers(4, 20), seed=st.integers(0, 10_000))
levels, modes = st.sampled_from(LEVELS), st.sampled_from(MODES)


@settings(deadline=None)
@given(batch=batches, level=levels, mode=modes, seed=st.integers(0, 99))
def test_1_2_and_4_micro_batches_in_any_order_are_one_update(batch, level, mode, seed):
    rows = torch.arange(len(batch.num_steps))
    whole = loss_and_gradient(batch, level, mode, [rows])
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    for parts in (1, 2, 4):
        assert_same(loss_and_gradient(batch, level, mode, list(shuffled.tensor_split(parts))), whole)


@settings(deadline=None)
@given(batch=batches, level=levels, mode=modes)
def test_leaving_out_records_of_advantage_zero_changes_nothing(batch, level, mode):
    rows = torch.arange(len(batch.num_steps))
    kept = rows[batch.advantages != 0]
    assert_same(loss_and_gradient(batch, level, mode, [kept]), loss_and_gradient(batch, level, mode, [rows]))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
@settings(deadline=None, max_examples=30)
@given(records=st.integers(4, 12), seed=st.integers(0, 10_000), level=levels, mode=modes)
def test_what_is_stored_after_the_end_never_matters(garbage, records, seed, level, mode):
    rows = [torch.arange(records)]
    clean = loss_and_gradient(Batch(records, seed), level, mode, rows)
    dirty = loss_and_gradient(Batch(records, seed, garbage), level, mode, rows, garbage)
    assert dirty[0] == clean[0]
    assert torch.equal(dirty[1], clean[1])


def test_sequence_means():
    # Sequence 4: records 0 and 2, sums 1 and 5, elements 2 and 1: 6/3 = 2. Sequence 9: 3 of 1. Sequence 1: none.
    mask = torch.tensor([[True, True], [True, False], [False, True], [False, False]])
    means = sequence_means(torch.tensor([1.0, 3.0, 5.0, 0.0]), mask, torch.tensor([4, 9, 4, 1]))
    assert means.tolist() == [[2.0], [3.0], [2.0], [0.0]]


def test_means_of_long_sequences_are_summed_in_float64():
    """2²⁴ + 1 is no float32: 2²⁴ and sixteen times 1 would stay 2²⁴."""
    sums = torch.tensor([2.0**24] + [1.0] * 16)
    means = sequence_means(sums, torch.ones(17, 1, dtype=torch.bool), torch.zeros(17, dtype=torch.long))
    assert means.unique().tolist() == [torch.tensor((2.0**24 + 16) / 17, dtype=torch.float64).float().item()]
