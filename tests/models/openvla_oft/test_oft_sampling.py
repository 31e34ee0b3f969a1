"""Drawing action tokens: temperature, truncation, inversion of the cumulative distribution."""

from __future__ import annotations

import math

import pytest
import torch
from embodied.models.shared.sampling import draw, entropy, log_probs

from embodied.types import OUTSIDE, Sampling

QUARTERS = torch.tensor([[[0.5, 0.25, 0.125, 0.125]]]).log()


def test_temperature() -> None:
    """p^(1/T): [.5, .25, .125, .125] at T = 2 ∝ [.7071, .5, .3536, .3536]."""
    weights = torch.tensor([0.5, 0.25, 0.125, 0.125]).sqrt()
    got = log_probs(QUARTERS, Sampling(temperature=2.0)).exp()
    torch.testing.assert_close(got[0, 0], weights / weights.sum())


def test_top_k_and_top_p_keep_the_most_likely() -> None:
    top_k = log_probs(QUARTERS, Sampling(top_k=2)).exp()[0, 0]
    torch.testing.assert_close(top_k, torch.tensor([2 / 3, 1 / 3, 0.0, 0.0]))
    top_p = log_probs(QUARTERS, Sampling(top_p=0.7)).exp()[0, 0]
    torch.testing.assert_close(top_p, torch.tensor([2 / 3, 1 / 3, 0.0, 0.0]))
    assert log_probs(QUARTERS, Sampling(top_p=0.4)).exp()[0, 0].tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.4999, 0), (0.5001, 1), (0.7501, 2), (0.8751, 3), (1 - 1e-7, 3)]
)
def test_draw_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    assert draw(log_probs(QUARTERS, Sampling()), torch.tensor([[uniform]]), Sampling()).item() == token


def test_log_probs_are_computed_in_the_format_that_is_asked_for() -> None:
    logits = 3 * torch.randn(4, 5, 32, generator=torch.Generator().manual_seed(0))
    for sampling in (Sampling(), Sampling(logprob_dtype="float32")):
        assert torch.equal(log_probs(logits, sampling), logits.log_softmax(-1))
    for name in ("bfloat16", "float16"):
        dtype = getattr(torch, name)
        assert torch.equal(log_probs(logits, Sampling(logprob_dtype=name)), logits.to(dtype).log_softmax(-1).float())
        half = log_probs(logits, Sampling(temperature=0.7, top_k=4, top_p=0.9, logprob_dtype=name))
        whole = log_probs(logits, Sampling(temperature=0.7, top_k=4, top_p=0.9))
        assert torch.equal(half < OUTSIDE, whole < OUTSIDE), "the same classes are left out"
        assert torch.isfinite(entropy(half)).all()


def test_truncated_classes_are_never_drawn() -> None:
    sampling = Sampling(top_k=2)
    logits = torch.tensor([[0.0, 3.0, 2.0, -1.0]]).repeat(1000, 1, 1)
    tokens = draw(log_probs(logits, sampling), torch.linspace(0, 1 - 1e-7, 1000)[:, None], sampling)
    assert set(tokens.flatten().tolist()) == {1, 2}


def test_frequencies_match_probabilities() -> None:
    logits = torch.randn(1, 1, 256, generator=torch.Generator().manual_seed(0))
    grid = (torch.arange(100_000, dtype=torch.float32) + 0.5) / 100_000
    logp = log_probs(logits, Sampling()).expand(1, 100_000, 256)
    counts = torch.bincount(draw(logp, grid[None], Sampling())[0], minlength=256) / 100_000
    torch.testing.assert_close(counts, logp[0, 0].exp(), atol=2e-5, rtol=0)


def test_argmax_ignores_the_noise() -> None:
    assert draw(QUARTERS, torch.tensor([[0.99]]), Sampling(do_sample=False)).item() == 0


def test_entropy_and_its_gradient_are_finite_under_truncation() -> None:
    logits = QUARTERS.clone().requires_grad_()
    logp = log_probs(logits, Sampling(top_k=2))
    value = entropy(logp)
    value.sum().backward()
    assert value.item() == pytest.approx(math.log(3) - 2 / 3 * math.log(2), abs=1e-6)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(logp).all()
