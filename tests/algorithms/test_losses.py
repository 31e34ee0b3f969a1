"""Policy losses and their gradients against numbers worked out by hand."""

import math

import pytest
import torch

from embodied.algorithms.losses import PolicyLoss, make_loss, ppo, reinforce
from embodied.errors import ConfigError, UnknownNameError

LOW, HIGH, C = 0.2, 0.28, 3.0


def run(ratio: float, advantage: float, c: float | None = None) -> tuple[float, float, bool]:
    """Loss, its derivative by the log-prob, and whether it was clipped, of one element whose ratio is ``ratio``."""
    logprob = torch.tensor([[math.log(ratio) - 1.0]], dtype=torch.float64, requires_grad=True)
    old = torch.full_like(logprob, -1.0)
    loss = ppo(logprob, old, torch.full_like(old, advantage), LOW, HIGH, c)
    loss.per_token.sum().backward()
    assert loss.ratio.item() == pytest.approx(ratio)
    assert not loss.ratio.requires_grad
    return loss.per_token.item(), logprob.grad.item(), loss.clipped.item()


# d/dlp of −ρA is −ρA itself, because dρ/dlp = ρ; a clipped element has none.
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),  # −1·2
        (1.1, 2.0, -2.2, -2.2, False),  # within the clip
        (1.5, 2.0, -2.56, 0.0, True),  # −min(3, 1.28·2): the upper bound is 1.28, not 1.2
        (0.5, 2.0, -1.0, -1.0, False),  # −min(1, 1.6): a good action that lost probability is pulled back
        (0.5, -2.0, 1.6, 0.0, True),  # −min(−1, .8·−2)
        (0.9, -2.0, 1.8, 1.8, False),
        (1.5, -2.0, 3.0, 3.0, False),  # −min(−3, −2.56): a bad action that gained probability is pushed back
        (5.0, -2.0, 10.0, 10.0, False),  # without the dual clip, however far it is
        (5.0, 0.0, 0.0, 0.0, False),
    ],
)
def test_ppo(ratio, advantage, loss, gradient, clipped):
    assert run(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (5.0, -2.0, 6.0, 0.0, True),  # min(10, 3·2)
        (2.9, -2.0, 5.8, 5.8, False),  # just below c
        (5.0, 2.0, -2.56, 0.0, True),  # A > 0: the dual clip does nothing
        (0.5, -2.0, 1.6, 0.0, True),
    ],
)
def test_dual_clip(ratio, advantage, loss, gradient, clipped):
    assert run(ratio, advantage, C) == (pytest.approx(loss), pytest.approx(gradient), clipped)


def test_a_ratio_beyond_exp_20_stays_finite_and_has_no_gradient():
    logprobs = torch.tensor([[0.0, -200.0]], requires_grad=True)
    old = torch.tensor([[-200.0, 0.0]])
    loss = ppo(logprobs, old, torch.tensor([[-1.0, 1.0]]), LOW, HIGH)
    loss.per_token.sum().backward()
    assert loss.ratio.tolist() == [[pytest.approx(math.exp(20), rel=1e-5), pytest.approx(math.exp(-20), rel=1e-5)]]
    assert loss.per_token[0, 0].item() == pytest.approx(math.exp(20), rel=1e-5)
    assert logprobs.grad.tolist() == [[0.0, 0.0]]


def test_reinforce():
    # −A·lp: −2·−1.5 = 3, derivative −A = −2; ρ = exp(−1.5 + 1) = .60653.
    logprobs = torch.tensor([[-1.5]], requires_grad=True)
    loss = reinforce(logprobs, torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    loss.per_token.sum().backward()
    assert loss.per_token.item() == 3.0
    assert logprobs.grad.item() == -2.0
    assert loss.ratio.item() == pytest.approx(0.60653, abs=1e-5)
    assert not loss.clipped.any()


def test_make_loss_hands_on_the_clips():
    logprobs, old, advantages = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    got: PolicyLoss = make_loss("ppo", 0.1, 0.3, 4.0)(logprobs, old, advantages)
    # ρ = e = 2.72 → −1.3; ρ = e² = 7.39, A = −1 → min(7.39, 4).
    assert got.per_token.tolist() == [[pytest.approx(-1.3), 4.0]]
    assert make_loss("reinforce", 0.1, 0.3)(logprobs, old, advantages).per_token.tolist() == [[-1.0, 2.0]]


def test_unknown_losses_and_senseless_clips_are_refused():
    with pytest.raises(UnknownNameError, match=r"algorithm.loss_type"):
        make_loss("pppo", 0.2, 0.2)
    with pytest.raises(ConfigError, match=r"clip_ratio_c is 0\.5, expected a number above 1"):
        make_loss("ppo", 0.2, 0.2, 0.5)
