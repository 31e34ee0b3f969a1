"""The one place where log-probs are computed from logits, in the number format that a run asks for.

Acting and learning both come here, so that equal logits give equal log-probs and a ratio of exactly 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embodied.types import Sampling

if TYPE_CHECKING:
    from torch import Tensor

LOGPROB_DTYPES = ("float32", "bfloat16", "float16")
"""Values of ``algorithm.logprob_dtype``. A policy that calls :func:`log_softmax` alone declares them in its spec."""


def log_softmax(scaled: Tensor, sampling: Sampling) -> Tensor:
    """Log-probs float32 [..., N] over N choices: the log-softmax of ``scaled`` in ``sampling.logprob_dtype``.

    Args:
        scaled: logits of the distribution that is sampled, temperature and truncation included, [..., N].
    """
    import torch

    return scaled.to(getattr(torch, sampling.logprob_dtype)).log_softmax(dim=-1).float()
