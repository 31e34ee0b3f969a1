"""Estimates of the KL and their gradients against numbers worked out by hand."""

import math

import pytest
import torch

from embodied.algorithms.kl import MAX_K3, full, make_coefficient, make_kl, unbiased
from embodied.errors import UnknownNameError
from embodied.types import Gaussian


def run(name: str, d: float) -> tuple[float, float]:
    """The estimate and its derivative by the log-prob."""
    now = torch.tensor([[-1.0 + d]], dtype=torch.float64, requires_grad=True)
    estimate = make_kl(name)(now, torch.full((1, 1), -1.0, dtype=torch.float64))
    estimate.sum().backward()
    return estimate.item(), now.grad.item()


@pytest.mark.parametrize(
    ("names", "d", "estimate", "gradient"),
    [
        (("k1", "kl"), -0.5, -0.5, 1.0),
        (("abs",), -0.5, 0.5, -1.0),
        (("k2", "mse"), -0.5, 0.125, -0.5),
        (("k3", "low_var_kl"), -0.5, math.exp(0.5) - 1.5, 1 - math.exp(0.5)),  # .148721, −.648721
        (("k3", "low_var_kl"), 2.0, math.exp(-2) + 1, 1 - math.exp(-2)),  # 1.135335, .864665
        (("k3", "low_var_kl"), -5.0, MAX_K3, 0.0),  # e⁵ − 6 = 142.4
        (("k3", "low_var_kl"), 0.0, 0.0, 0.0),
    ],
)
def test_estimates(names, d, estimate, gradient):
    for name in names:
        assert run(name, d) == (pytest.approx(estimate), pytest.approx(gradient))


@pytest.mark.parametrize("d", [-1e4, -800.0, -100.0, 100.0, 800.0, 1e4])
@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3"])
def test_estimates_and_their_gradients_are_finite_at_extremes(name, d):
    """exp(800) is infinite, and 0 · ∞ is no gradient."""
    for dtype in (torch.float32, torch.float64):
        now = torch.full((1, 1), d, dtype=dtype, requires_grad=True)
        estimate = make_kl(name)(now, torch.zeros(1, 1, dtype=dtype))
        weighted = unbiased(estimate, now, torch.zeros(1, 1, dtype=dtype))
        for value in (estimate, weighted):
            (gradient,) = torch.autograd.grad(value.sum(), now, retain_graph=True)
            assert torch.isfinite(value).all()
            assert torch.isfinite(gradient).all()
        if name == "k3":
            assert (estimate.item(), torch.autograd.grad(estimate.sum(), now)[0].item()) == (
                MAX_K3,
                0.0,
            )


@pytest.mark.parametrize("apart", [60.0, 1e4, 3e38])
def test_the_exact_kl_has_a_finite_gradient_at_extremes(apart):
    for signs in ((1.0, -1.0), (-1.0, 1.0)):
        logits = torch.tensor([signs[0] * apart, 0.0], requires_grad=True)
        exact = full(logits.log_softmax(-1), torch.tensor([signs[1] * apart, 0.0]).log_softmax(-1))
        exact.backward()
        assert 0 <= exact.item() <= 20 + 1e-5
        assert torch.isfinite(logits.grad).all()


def test_the_expectation_of_k1_and_k3_is_the_kl():
    # π = (.5, .3, .2), π_ref = (.2, .3, .5): Σ π log(π/π_ref) = .5·ln 2.5 + .2·ln .4 = .274887.
    pi, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    for name in ("k1", "k3"):
        assert (pi.exp() * make_kl(name)(pi, reference)).sum().item() == pytest.approx(0.274887, abs=1e-6)


def test_the_ratio_makes_samples_of_an_older_policy_count_as_those_of_the_present_one():
    pi, reference, old = (torch.tensor(p).log() for p in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1]))
    assert (old.exp() * unbiased(make_kl("k3")(pi, reference), pi, old)).sum().item() == pytest.approx(
        0.274887, abs=1e-6
    )


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match=r"algorithm.kl_penalty_type"):
        make_kl("k4")


def test_the_exact_kl_and_its_gradient():
    # As above: .274887. dKL/dlogit_v = π_v (log π_v − log ref_v − KL): .5·(.916291 − .274887) = .320702,
    # .3·(0 − .274887) = −.082466, .2·(−.916291 − .274887) = −.238236.
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().requires_grad_()
    exact = full(logits.log_softmax(-1), torch.tensor([[0.2, 0.3, 0.5]]).log())
    exact.sum().backward()
    assert exact.tolist() == [pytest.approx(0.274887, abs=1e-6)]
    assert logits.grad.tolist() == [pytest.approx([0.320702, -0.082466, -0.238236], abs=1e-6)]


def test_a_token_that_sampling_excludes_leaves_the_exact_kl_finite():
    # π = (½, ½), the reference excludes the second: ½·(ln ½ − 0) + ½·20 = 9.653426.
    excluded = torch.tensor([0.0, -1e4])
    assert full(torch.tensor([0.5, 0.5]).log(), excluded).item() == pytest.approx(9.653426, abs=1e-5)
    assert full(excluded, torch.tensor([0.5, 0.5]).log()).item() == pytest.approx(math.log(2), abs=1e-6)


def test_the_mean_of_the_estimates_is_the_exact_kl():
    rng = torch.Generator().manual_seed(0)
    pi, reference = ((0.5 * torch.randn(5, 8, generator=rng)).log_softmax(-1) for _ in range(2))
    expected = full(pi, reference)
    for name in ("k1", "k3"):
        torch.testing.assert_close((pi.exp() * make_kl(name)(pi, reference)).sum(-1), expected)


def test_the_adaptive_coefficient():
    # Target .1, horizon 100. KL .3: the error 2 is bounded by .2, so 10 episodes make .5·(1 + .2·.1) = .51.
    beta = make_coefficient(0.5, "adaptive", target_kl=0.1, horizon=100)
    beta.update(0.3, 10)
    assert beta.value == pytest.approx(0.51)
    beta.update(0.11, 50)  # error .1: .51·1.05
    assert beta.value == pytest.approx(0.5355)
    beta.update(0.0, 100)  # error −1, bounded by −.2: .5355·.8
    assert beta.value == pytest.approx(0.4284)
    fixed = make_coefficient(0.5, "fixed", target_kl=0.1, horizon=100)
    fixed.update(0.3, 10)
    assert fixed.value == 0.5


def test_the_kl_of_gaussians_is_that_of_many_samples_and_its_gradient_that_of_the_formula():
    mean, std = torch.tensor([0.3, -1.0, 0.0]).requires_grad_(), torch.tensor([0.5, 0.2, 1.0]).requires_grad_()
    reference = Gaussian(torch.tensor([0.1, -0.7, 0.0]), torch.tensor([0.4, 0.3, 1.0]))
    exact = full(Gaussian(mean, std), reference)
    now, then = torch.distributions.Normal(mean, std), torch.distributions.Normal(*reference)
    torch.testing.assert_close(exact, torch.distributions.kl_divergence(now, then))
    with torch.no_grad():
        drawn = mean + std * torch.randn(100_000, 3, generator=torch.Generator().manual_seed(0))
        estimates = now.log_prob(drawn) - then.log_prob(drawn)
    assert ((estimates.mean(0) - exact).abs() < 3 * estimates.std(0) / 100_000**0.5 + 1e-7).all()
    exact.sum().backward()
    torch.testing.assert_close(mean.grad, (mean - reference.mean).detach() / reference.std**2)
    torch.testing.assert_close(std.grad, (std / reference.std**2 - 1 / std).detach())
