"""Chains of denoising steps and their densities, against the ODE, chains written out by hand, and samples."""

from __future__ import annotations

import math

import pytest
import torch
from embodied.models.flow_vla.sampling.chains import Chain, Field, sample_all, sample_one, solve
from embodied.models.flow_vla.sampling.guidance import guided, prefix_weights
from embodied.models.flow_vla.sampling.steps import entropy, kl, log_prob, mean_of, plain_steps, sde_steps
from embodied.models.flow_vla.sampling.times import beta_times, times
from torch import Tensor

MEANS = torch.tensor([[2.0, 0.0], [-1.0, 1.5], [-1.0, -1.5]])
SPREADS = torch.tensor([0.3, 0.5, 0.2])
B, H, W = 5, 3, 2


def mixture(x: Tensor, time: Tensor) -> Tensor:
    """Exact velocity towards three Gaussians in the plane, of x [N, 1, 2] at times [N]."""
    t = time.double().view(-1, 1, 1, 1)
    points = x.double()[:, :, None]
    variance = (1 - t) ** 2 * SPREADS.double().view(1, 1, 3, 1) ** 2 + t**2
    away = points - (1 - t) * MEANS.double()
    share = torch.softmax((-(away**2) / (2 * variance) - variance.log() / 2).sum(-1, keepdim=True), 2)
    noise = (share * t * away / variance).sum(2)
    data = (share * (MEANS.double() + (1 - t) * SPREADS.double().view(1, 1, 3, 1) ** 2 * away / variance)).sum(2)
    return (noise - data).float()


def field(x: Tensor, time: Tensor) -> tuple[Tensor, None]:
    return wave(x, time), None


def wave(x: Tensor, time: Tensor) -> Tensor:
    """A made-up velocity that depends on everything."""
    return torch.sin(2 * x + time.view(-1, 1, 1)) + 0.3 * x.sum(-1, keepdim=True)


@pytest.fixture
def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """First noise [B, H, W], draws of four steps [B, 4, H, W], a uniform number [B]."""
    random = torch.Generator().manual_seed(3)
    shapes = (B, H, W), (B, 4, H, W)
    return *(torch.randn(shape, generator=random) for shape in shapes), torch.rand(B, generator=random)  # type: ignore[return-value]


def test_without_noise_a_chain_is_the_ode_to_the_bit(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    first, draws, uniform = drawn
    wanted, steps = solve(wave, first, 4), sde_steps(4, 0.0)
    chosen = (uniform * 4).long()
    chains = sample_all(field, first, draws, steps), sample_one(field, first, draws[:, 0], chosen, steps)
    assert all(torch.equal(chain.chunk, wanted) for chain in chains)
    noisy = sample_one(field, first, draws[:, 0], chosen, sde_steps(4, 0.5))
    assert not torch.equal(noisy.chunk, wanted)


def test_a_chain_written_out_by_hand(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    first, draws, _ = drawn
    a, n = 0.7, 4
    chain = sample_all(field, first, draws, sde_steps(n, a))
    x = first.double()
    for i in range(n):
        t, d = 1 - i / n, 1 / n
        v = wave(x.float(), torch.full((B,), t)).double()
        g = a * math.sqrt(t / (1 / n if i == 0 else 1 - t))
        x0, e = x - t * v, x + (1 - t) * v
        s = t - d
        mean = (1 - s) * x0 + (s - g**2 * d / (2 * t)) * e
        x = mean + g * math.sqrt(d) * draws[:, i].double()
        away = (x.float().double() - mean) / (g * math.sqrt(d))
        by_hand = -(away**2) / 2 - math.log(g * math.sqrt(d)) - math.log(2 * math.pi) / 2
        assert torch.allclose(chain.after[:, i].double(), x, atol=1e-5)
        found = log_prob(chain.after[:, i], chain.mean[:, i], chain.std[:, i])
        assert torch.allclose(found, by_hand, atol=2e-5)
        x = x.float().double()


def test_one_random_step_is_that_step_and_the_rest_the_ode(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    first, draws, uniform = drawn
    steps, chosen = sde_steps(4, 0.5), (uniform * 4).long()
    assert len(set(chosen.tolist())) > 1
    chain = sample_one(field, first, draws[:, 0], chosen, steps)
    for row in range(B):
        x = first[row : row + 1]
        for number, step in enumerate(steps):
            v = wave(x, torch.full((1,), step.time))
            if number == chosen[row]:
                assert torch.equal(chain.before[row, 0], x[0])
                x = (mean_of(step, x, v) + step.std * draws[row : row + 1, 0].double()).float()
                assert torch.equal(chain.after[row, 0], x[0])
            else:
                x = (x.double() - step.width * v.double()).float()
        assert torch.allclose(chain.chunk[row], x[0], atol=1e-6)
    assert torch.equal(chain.steps[:, 0], chosen)


def test_marginals_of_the_sde_are_those_of_the_ode() -> None:
    count, samples = 50, 20_000
    random = torch.Generator().manual_seed(0)
    first = torch.randn(samples, 1, 2, generator=random)
    ode = solve(mixture, first, count)[:, 0].double()
    draws = torch.randn(count, samples, 1, 2, generator=random)
    exact: Field = lambda x, time: (mixture(x, time), None)  # noqa: E731
    sde = sample_all(exact, torch.randn(samples, 1, 2, generator=random), draws.transpose(0, 1), sde_steps(count, 0.5))
    found = sde.chunk[:, 0].double()
    for one, other in ((found, ode), (products(found), products(ode))):
        error = (one.var(0) / samples + other.var(0) / samples).sqrt()
        assert ((one.mean(0) - other.mean(0)).abs() < 3 * error).all()


def products(x: Tensor) -> Tensor:
    """Numbers whose means are the covariance."""
    x = x - x.mean(0)
    return torch.stack([x[:, 0] ** 2, x[:, 0] * x[:, 1], x[:, 1] ** 2], -1)


def test_the_standard_deviations_of_the_flow_sde() -> None:
    assert [round(step.std, 2) for step in sde_steps(4, 0.5)] == [0.5, 0.43, 0.25, 0.14]
    assert sde_steps(4, 0.5)[-1].std == pytest.approx(0.5 / math.sqrt(4 * 3))


def test_closed_kl_against_samples() -> None:
    random = torch.Generator().manual_seed(1)
    mean, other, std, wide = 0.3, 0.1, 0.4, 0.7
    x = mean + std * torch.randn(100_000, generator=random).double()
    values = log_prob(x, torch.tensor(mean).double(), std) - log_prob(x, torch.tensor(other).double(), wide)
    error = 3 * float(values.std()) / math.sqrt(len(x))
    one, two = torch.tensor(mean).double(), torch.tensor(other).double()
    assert abs(float(values.mean()) - float(kl(one, two, std, wide))) < error
    same = log_prob(x, one, std) - log_prob(x, two, std)
    assert abs(float(same.mean()) - float(kl(one, two, std))) < 3 * float(same.std()) / math.sqrt(len(x))


def test_closed_kl_of_the_flow_sde_in_terms_of_velocities() -> None:
    x, v, u = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(2)).unbind(0)
    for step in sde_steps(4, 0.5)[1:]:
        g, t, d = step.std / math.sqrt(step.width), step.time, step.width
        wanted = d / 2 * (1 / g + g * (1 - t) / (2 * t)) ** 2 * (v.double() - u.double()) ** 2
        assert torch.allclose(kl(mean_of(step, x, v), mean_of(step, x, u), step.std), wanted, rtol=1e-9)


def test_gradient_of_a_policy_loss_by_the_formula_written_out(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    first, draws, _ = drawn
    step = sde_steps(4, 0.5)[1]
    scale = torch.tensor(1.1, requires_grad=True)
    v = wave(first, torch.full((B,), step.time))
    after = (mean_of(step, first, v) + step.std * draws[:, 0].double()).float()
    mask = torch.arange(H)[None, :, None] < torch.tensor([1, 2, 3, 3, 2])[:, None, None]  # episodes that end inside
    advantage = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0]).view(B, 1, 1)
    logp = log_prob(after, mean_of(step, first, scale * v), step.std)
    (logp * mask * advantage).sum().backward()
    away = after.double() - mean_of(step, first, 1.1 * v)
    slope = -(step.width + step.correction * (1 - step.time)) * v.double()
    wanted = (away / step.std**2 * slope * mask * advantage).sum()
    assert float(scale.grad) == pytest.approx(float(wanted), rel=1e-5)  # type: ignore[arg-type]


def test_nan_that_was_never_executed_changes_no_gradient() -> None:
    mean = torch.zeros(2, 3, 4, dtype=torch.float64, requires_grad=True)
    after = torch.ones(2, 3, 4)
    after[0, 2], after[1, 1:] = math.nan, math.nan
    found = log_prob(after, mean, 0.5)
    mask = ~after.isnan()
    assert torch.equal(found.isnan(), ~mask)
    torch.where(mask, found, 0.0).sum().backward()
    assert mean.grad is not None
    assert torch.equal(mean.grad, torch.where(mask, 4.0, 0.0).double())


def test_entropy_of_a_gaussian() -> None:
    std = torch.tensor([0.1, 1.0, 3.0]).double()
    assert torch.allclose(entropy(std), torch.distributions.Normal(0.0, std).entropy())


def test_learned_deviations_take_the_place_of_the_formulas(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    first, draws, uniform = drawn
    std = torch.rand(B, H, W) + 0.1
    learned: Field = lambda x, time: (wave(x, time), std)  # noqa: E731
    chosen = (uniform * 4).long()
    chains: tuple[Chain, ...] = (
        sample_all(learned, first, draws, plain_steps(4)),
        sample_one(learned, first, draws[:, 0], chosen, plain_steps(4)),
    )
    for chain in chains:
        assert torch.equal(chain.std, std.double()[:, None].expand_as(chain.std))
        away = (chain.after - chain.mean) / chain.std
        assert torch.allclose(away[:, 0].float(), draws[:, 0], atol=1e-5)


def test_times_run_from_noise_and_supervised_ones_are_a_beta_distribution() -> None:
    assert times(4) == (1.0, 0.75, 0.5, 0.25, 0.0)
    found = beta_times(torch.linspace(0, 1, 100_001))
    assert float(found.min()) == pytest.approx(0.001)
    assert float(found.max()) == pytest.approx(1.0)
    assert float(found.mean()) == pytest.approx(0.999 * 1.5 / 2.5 + 0.001, abs=1e-4)  # of Beta(1.5, 1)
    assert float(found.var()) == pytest.approx(0.999**2 * 1.5 / (2.5**2 * 3.5), rel=1e-3)


def test_guidance_keeps_what_is_executed_meanwhile() -> None:
    first = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(4))
    goal = torch.full((2, 6, 2), 0.7)
    weights = prefix_weights("exp", delay=3, horizon=5, total=6)
    assert weights[:3].tolist() == [1, 1, 1]
    assert 1 > weights[3] > weights[4] > weights[5] == 0
    straight = lambda x, time: x - 0.2  # noqa: E731
    plain, found = solve(straight, first, 10), guided(straight, first, goal, weights, 10)
    assert (found - goal)[:, :3].abs().max() < 0.1 * (plain - goal)[:, :3].abs().max()
    assert torch.equal(found[:, 5], plain[:, 5])
    each = torch.stack([weights, torch.zeros(6)])
    rows = guided(straight, first, goal, each, 10)
    assert torch.equal(rows[0], found[0])
    assert torch.equal(rows[1], plain[1])
