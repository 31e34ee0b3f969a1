"""Policy losses and their gradients against numbers worked out by hand."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from embodied.algorithms.importance import importance_weight, not_finite, off_policy, sequence_level
from embodied.algorithms.losses.aipo import Loss as Aipo
from embodied.algorithms.losses.cispo import Loss as Cispo
from embodied.algorithms.losses.ppo import Loss as Ppo
from embodied.algorithms.losses.reinforce import Loss as Reinforce
from embodied.algorithms.policy_loss import Anchor, PolicyLoss, make_loss, names
from embodied.errors import ConfigError, UnknownNameError
from embodied.schema import AlgorithmConfig

LOW, HIGH, C = 0.2, 0.28, 3.0
CLIPS = {"clip_ratio_low": LOW, "clip_ratio_high": HIGH}


def run(ratio: float, advantage: float, c: float | None = None) -> tuple[float, float, bool]:
    """Loss, its derivative by the log-prob, and whether it was clipped, of one element whose ratio is ``ratio``."""
    logprob = torch.tensor([[math.log(ratio) - 1.0]], dtype=torch.float64, requires_grad=True)
    old = torch.full_like(logprob, -1.0)
    loss = Ppo(LOW, HIGH, c)(logprob, old, torch.full_like(old, advantage))
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
    loss = Ppo(LOW, HIGH)(logprobs, old, torch.tensor([[-1.0, 1.0]]))
    loss.per_token.sum().backward()
    assert loss.ratio.tolist() == [[pytest.approx(math.exp(20), rel=1e-5), pytest.approx(math.exp(-20), rel=1e-5)]]
    assert loss.per_token[0, 0].item() == pytest.approx(math.exp(20), rel=1e-5)
    assert logprobs.grad.tolist() == [[0.0, 0.0]]


def test_reinforce():
    # −A·lp: −2·−1.5 = 3, derivative −A = −2; ρ = exp(−1.5 + 1) = .60653.
    logprobs = torch.tensor([[-1.5]], requires_grad=True)
    loss = Reinforce()(logprobs, torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    loss.per_token.sum().backward()
    assert loss.per_token.item() == 3.0
    assert logprobs.grad.item() == -2.0
    assert loss.ratio.item() == pytest.approx(0.60653, abs=1e-5)
    assert not loss.clipped.any()


def gradient_of(function, logprobs: list[list[float]]) -> tuple[PolicyLoss, list[list[float]]]:
    now = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    loss = function(now)
    loss.per_token.sum().backward()
    return loss, now.grad.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight", "clipped"),
    [(1.5, 2.0, 1.28, True), (0.5, 2.0, 0.8, True), (0.5, -2.0, 0.8, True), (1.1, -2.0, 1.1, False)],
)
def test_cispo_clips_the_weight_and_keeps_every_gradient(ratio, advantage, weight, clipped):
    # lp = ln ρ − 1: the loss is −w·A·lp, its derivative −w·A.
    logprob = math.log(ratio) - 1
    old, advantages = torch.full((1, 1), -1.0, dtype=torch.float64), torch.full((1, 1), advantage, dtype=torch.float64)
    loss, gradient = gradient_of(lambda now: Cispo(LOW, HIGH)(now, old, advantages), [[logprob]])
    assert loss.per_token.item() == pytest.approx(-weight * advantage * logprob)
    assert gradient == [[pytest.approx(-weight * advantage)]]
    assert (loss.ratio.item(), loss.clipped.item()) == (pytest.approx(ratio), clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (3.0, 2.0, -6.0, -6.0, False),
        (7.0, 2.0, -10.0, 0.0, True),
        (7.0, -2.0, 10.0, 0.0, True),
        (0.1, 2, -0.2, -0.2, 0),
    ],
)
def test_aipo(ratio, advantage, loss, gradient, clipped):
    old, advantages = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), advantage, dtype=torch.float64)
    got, slope = gradient_of(lambda now: Aipo(5.0)(now, old, advantages), [[math.log(ratio)]])
    assert got.per_token.item() == pytest.approx(loss)
    assert slope == [[pytest.approx(gradient)]]
    assert got.clipped.item() == bool(clipped)


@pytest.mark.parametrize(
    ("ratio", "of_aipo", "of_the_paper"), [(3.0, -6.0, -6.0), (7.0, 0.0, -10.0), (0.1, -0.2, -0.2)]
)
def test_the_gradient_of_aipo_ends_at_rho_and_that_of_its_paper_does_not(ratio, of_aipo, of_the_paper):
    # A = 2, rho = 5. The paper's is −min(ρ, 5)·2, which cispo has with the bounds 1 − 0.999 and 1 + 4.
    old, advantages = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
    clips = {"clip_ratio_low": 0.999, "clip_ratio_high": 4.0, "aipo_rho": 5.0}
    for name, wanted in (("aipo", of_aipo), ("cispo", of_the_paper)):
        loss = make_loss(name, clips)
        _, gradient = gradient_of(lambda now, loss=loss: loss(now, old, advantages), [[math.log(ratio)]])
        assert gradient == [[pytest.approx(wanted)]]


def test_gspo_gives_each_element_the_ratio_of_its_sequence():
    # lp − lp_old = .2, 0 → drift .1, s = e^.1 = 1.105171 for both; loss −s·A, derivative −s·A each.
    drift = torch.tensor([[0.1]], dtype=torch.float64)
    gspo, advantages = make_loss("gspo", CLIPS), torch.full((1, 2), 2.0, dtype=torch.float64)
    loss, gradient = gradient_of(lambda now: gspo(now, sequence_level(now, drift), advantages), [[-0.8, -1.0]])
    assert loss.ratio.tolist() == [pytest.approx([1.105171] * 2)]
    assert loss.per_token.tolist() == [pytest.approx([-2.210342] * 2)]
    assert gradient == [pytest.approx([-2.210342] * 2)]
    # drift .3: s = 1.349859 > 1.28, so that with A > 0 the whole sequence is clipped.
    loss, gradient = gradient_of(lambda now: gspo(now, sequence_level(now, 3 * drift), advantages), [[-0.8, -1.0]])
    assert loss.clipped.all()
    assert gradient == [[0.0, 0.0]]


def test_off_policy_elements_are_bad_ones_of_sequences_that_fell():
    # Fallen by .5 nats and by .05, limit .1; only where A < 0.
    drift = torch.tensor([[-0.5], [-0.05], [0.5]])
    advantages = torch.tensor([[-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]])
    assert off_policy(advantages, drift, 0.1).tolist() == [[True, False], [False, False], [False, False]]


def test_a_sequence_that_fell_by_just_delta_is_kept():
    advantages, drift = torch.full((3, 1), -1.0), torch.tensor([[-0.5], [-0.25], [0.75]])
    assert off_policy(advantages, drift, 0.5).tolist() == [[False], [False], [False]]
    assert off_policy(advantages, drift, 0.375).tolist() == [[True], [False], [False]]


@pytest.mark.parametrize("kind", names())
def test_a_loss_s_defaults_are_those_of_the_keys(kind):
    """Whoever makes a loss without a configuration gets the loss of one in which nothing is set."""
    keys = {name: field.default for name, field in AlgorithmConfig.model_fields.items()}
    assert make_loss(kind, {"clip_ratio_low": LOW, "clip_ratio_high": HIGH, "clip_ratio_c": None}) == make_loss(
        kind, {**keys, "clip_ratio_low": LOW, "clip_ratio_high": HIGH, "clip_ratio_c": None}
    )


@pytest.mark.parametrize(("c", "fits"), [(0.5, False), (1.0, False), (1.001, True)])
def test_the_dual_clip_leaves_some_gradient_of_a_bad_action(c, fits):
    """With c = 1 a bad action that is as likely as it was would have none."""
    if fits:
        assert run(1.0, -2.0, c)[:2] == (pytest.approx(2.0), pytest.approx(2.0))
    else:
        with pytest.raises(ConfigError, match="expected a number above 1"):
            Ppo(LOW, HIGH, c)


def test_make_loss_hands_on_the_clips():
    logprobs, old, advantages = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    got: PolicyLoss = make_loss("ppo", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "clip_ratio_c": 4.0})(
        logprobs, old, advantages
    )
    # ρ = e = 2.72 → −1.3; ρ = e² = 7.39, A = −1 → min(7.39, 4).
    assert got.per_token.tolist() == [[pytest.approx(-1.3), 4.0]]
    assert make_loss("reinforce", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3})(
        logprobs, old, advantages
    ).per_token.tolist() == [[-1.0, 2.0]]


def test_unknown_losses_and_senseless_clips_are_refused():
    with pytest.raises(UnknownNameError, match=r"algorithm.loss_type"):
        make_loss("pppo", {})
    with pytest.raises(ConfigError, match=r"clip_ratio_c is 0\.5, expected a number above 1"):
        make_loss("ppo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 0.5})


@dataclass(frozen=True)
class Squared:
    """A loss of a user's: one option of its own, one key of ``algorithm``."""

    clip_ratio_high: float
    scale: float = 1.0

    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __call__(self, logprobs, old_logprobs, advantages):
        ratio = (logprobs - old_logprobs).exp()
        return PolicyLoss(self.scale * ratio**2, ratio.detach(), torch.zeros_like(ratio, dtype=torch.bool))


def test_a_loss_of_the_users_is_found_by_its_path_and_gets_its_options():
    made = make_loss(f"{__name__}.Squared", {**CLIPS, "gamma": 0.9}, {"scale": 3.0})
    assert made == Squared(HIGH, 3.0)
    with pytest.raises(UnknownNameError, match=r"unknown option of the loss .*scael.*Did you mean 'scale'"):
        make_loss(f"{__name__}.Squared", CLIPS, {"scael": 3.0})
    with pytest.raises(UnknownNameError, match=r"unknown option of the loss ppo 'scale'"):
        make_loss("ppo", CLIPS, {"scale": 3.0})
    with pytest.raises(ConfigError, match=r"losses.Nothing'"):
        make_loss(f"{__name__}.Nothing", CLIPS)
    with pytest.raises(ConfigError, match="is no loss: a dataclass with an anchor"):
        make_loss("builtins.dict", CLIPS)


def test_each_file_is_a_loss():
    assert names() == ("aipo", "cispo", "gspo", "ppo", "reinforce", "tis")


def test_the_weight_for_the_acting_policy():
    # exp(lp_prox − lp_behaviour) = .5, 1.5, 4 with a cap of 2.
    behaviour = torch.zeros(1, 3)
    proximal = torch.tensor([[0.5, 1.5, 4.0]]).log()
    assert importance_weight(proximal, behaviour, 2.0).tolist() == [pytest.approx([0.5, 1.5, 2.0])]
    assert importance_weight(proximal, behaviour, 2.0, "mask").tolist() == [pytest.approx([0.5, 1.5, 0.0])]
    assert importance_weight(proximal, behaviour, None).tolist() == [pytest.approx([0.5, 1.5, 4.0])]


def test_decoupled_loss_clips_around_the_proximal_policy():
    # lp_behaviour = 0, lp_prox = ln 4, ρ = exp(lp − lp_prox) = 1.5 with A = 2: clipped at 1.28·2, times min(4, cap 2).
    logprobs = torch.tensor([[math.log(6.0)]], dtype=torch.float64, requires_grad=True)
    proximal, behaviour = torch.tensor([[math.log(4.0)]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    loss = make_loss("tis", CLIPS)(logprobs, proximal, torch.tensor([[2.0]]))
    total = (loss.per_token * importance_weight(proximal, behaviour, 2.0)).sum()
    assert total.item() == pytest.approx(-5.12)
    assert loss.clipped.all()


def test_log_ratios_that_are_not_finite_count_where_the_mask_keeps_them():
    inf, nan = torch.inf, torch.nan
    now = torch.tensor([[0.0, inf, -1.0, nan], [-inf, 2.0, 0.0, inf]])
    acting = torch.tensor([[0.0, inf, -inf, 0.0], [0.0, 1.0, 0.0, 0.0]])
    proximal = torch.tensor([[nan, 0.0, 0.0, 0.0], [0.0, 0.0, inf, 0.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, True, False]])
    assert int(not_finite(now, [acting], mask)) == 3, "inf - inf is no number"
    assert int(not_finite(now, [acting, proximal], mask)) == 5
    assert int(not_finite(now, [acting, proximal], torch.zeros_like(mask))) == 0
