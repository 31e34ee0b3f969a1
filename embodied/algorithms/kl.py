"""Estimates of KL(now ‖ reference), element by element, from the log-probs of what was sampled.

``d = lp − lp_ref``. Names and properties: J. Schulman, "Approximating KL divergence"
(http://joschu.net/blog/kl-approx.html). All tensors are float [N, M], an element as in
:mod:`embodied.algorithms.policy_loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from embodied.algorithms.importance import MAX_LOG_RATIO, log_ratio
from embodied.errors import unknown_name
from embodied.types import Gaussian

MAX_K3 = 10.0
"""k3 grows like exp(−d) where the reference is far more certain; beyond this it has no gradient."""

Estimate = Callable[[Tensor, Tensor], Tensor]
"""``(logprobs, reference) → estimate``, all [N, M]."""


EXACT = "full"
"""The value of ``algorithm.kl_penalty_type`` that asks for :func:`full` instead of an estimate."""

MAX_CHANGE = 0.2
"""Largest relative error of the KL that :class:`AdaptiveCoefficient` answers to."""


def make_kl(kl_penalty_type: str) -> Estimate:
    """Makes the KL estimate called ``kl_penalty_type`` (``algorithm.kl_penalty_type``).

    ``full`` is not among them: it reads distributions, not log-probs (:func:`full`).

    Raises:
        UnknownNameError: it is not known.
    """
    known: dict[str, Estimate] = {"k1": k1, "kl": k1, "abs": absolute, "k2": k2, "mse": k2, "k3": k3, "low_var_kl": k3}
    if kl_penalty_type not in known:
        raise unknown_name("KL estimate", kl_penalty_type, known, "algorithm.kl_penalty_type")
    return known[kl_penalty_type]


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``d``: unbiased, of high variance, negative for half of the samples."""
    return logprobs - reference


def absolute(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``|d|`` with ``d = lp − lp_ref``: the absolute log-ratio as KL estimate."""
    return (logprobs - reference).abs()


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``d²/2``: biased, of low variance; its gradient is that of the KL itself."""
    return (logprobs - reference) ** 2 / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``exp(−d) + d − 1``: unbiased, of low variance, never negative. At most :data:`MAX_K3`."""
    d = (logprobs - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-d).exp() + d - 1).clamp(max=MAX_K3)


def unbiased(estimate: Tensor, logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """``ρ · estimate``: the KL of the present policy from samples of an older one, and its gradient
    (DeepSeek-V3.2, arXiv 2512.02556)."""
    return log_ratio(logprobs, old_logprobs).exp() * estimate


def full(distribution: Tensor | Gaussian, reference: Tensor | Gaussian) -> Tensor:
    """The KL itself, element by element, and its gradient. Never negative. Of tokens ``Σ_v π(v)·(log π(v) − log
    π_ref(v))``; of Gaussians ``ln(σ_ref/σ) + (σ² + (μ − μ_ref)²)/(2σ_ref²) − 1/2``.

    A token that sampling excludes (top-k, top-p) under one of the two policies counts as e⁻²⁰ times as likely there.

    Args:
        distribution: log-probs of all N tokens now, or Gaussians, differentiable [..., N].
        reference: the same of the reference.

    Returns:
        [...]; of Gaussians in the shape of their means.
    """
    if isinstance(distribution, Gaussian) or isinstance(reference, Gaussian):
        mean, std = distribution
        ref_mean, ref_std = reference
        return (ref_std / std).log() + (std**2 + (mean - ref_mean) ** 2) / (2 * ref_std**2) - 0.5
    d = (distribution - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (distribution.exp() * d).sum(dim=-1)


@dataclass
class Coefficient:
    """The weight ``β`` of the KL. This one stays as it is (``algorithm.kl_ctrl.type: fixed``)."""

    value: float

    def update(self, kl: float, episodes: int) -> None:
        """Adapts the KL's weight after an iteration to its mean KL (nats) and number of episodes; a fixed one stays.

        Args:
            kl: mean of an element in that iteration, nats.
            episodes: of that iteration.
        """


@dataclass
class AdaptiveCoefficient(Coefficient):
    """``β ← β·(1 + clip(kl/target − 1, ±0.2)·n/horizon)``: the controller of arXiv 1909.08593, section 2.2.

    ``kl`` is the mean over all elements of an iteration (``train/kl_reference``) and n the number of its episodes. verl
    takes the mean over sequences of each sequence's mean, with n sequences; the paper and TRL take the mean over
    sequences of each sequence's sum. For episodes of equal length the first two are the same.

    Example: target 0.1, horizon 100; 10 episodes with a KL of 0.3 raise β by a factor of 1 + 0.2·10/100 = 1.02.
    """

    target: float  # nats an element
    horizon: int  # episodes over which β may change by a fifth

    def update(self, kl: float, episodes: int) -> None:
        error = min(max(kl / self.target - 1, -MAX_CHANGE), MAX_CHANGE)
        self.value *= 1 + error * episodes / self.horizon


def make_coefficient(kl_beta: float, type: str, target_kl: float, horizon: int) -> Coefficient:
    """Makes the weight of the KL that ``algorithm.kl_beta`` and ``algorithm.kl_ctrl`` describe."""
    return AdaptiveCoefficient(kl_beta, target_kl, horizon) if type == "adaptive" else Coefficient(kl_beta)
