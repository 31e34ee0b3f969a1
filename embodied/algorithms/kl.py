"""Estimates of KL(now ‖ reference), element by element, from the log-probs of what was sampled.

``d = lp − lp_ref``. Names and properties: J. Schulman, "Approximating KL divergence"
(http://joschu.net/blog/kl-approx.html). All tensors are float [N, M], an element as in
:mod:`embodied.algorithms.losses`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from embodied.algorithms.losses import MAX_LOG_RATIO, log_ratio
from embodied.errors import unknown_name

MAX_K3 = 10.0
"""k3 grows like exp(−d) where the reference is far more certain; beyond this it has no gradient."""

Estimate = Callable[[Tensor, Tensor], Tensor]
"""``(logprobs, reference) → estimate``, all [N, M]."""


def make_kl(kl_penalty_type: str) -> Estimate:
    """The estimate called ``kl_penalty_type`` (``algorithm.kl_penalty_type``).

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
    """``|d|``."""
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
