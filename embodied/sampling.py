"""How a decision is drawn: the random numbers that it consumes, the settings, and the distribution.

``embodied.types`` has these names, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Noise:
    """The random numbers that one decision consumes: float32 [*shape], a function of seed, episode and record.

    ``uniform`` and ``greedy`` count along the first axis. Example: 28 normal numbers that two denoising steps turn into
    a chunk of 4 actions × 7, 28 that one of the steps adds, and a uniform one that chooses this step. A greedy decision
    adds nothing, and still begins with the first 28: ``Noise((57,), "normal", uniform=1, greedy=28)``.
    """

    shape: tuple[int, ...]
    kind: str = "uniform"  # uniform: in [0, 1); normal: of mean 0 and variance 1
    uniform: int = 0  # so many at the end are uniform, whatever the kind
    greedy: int = 0  # so many at the beginning are read with Sampling.do_sample=False; the others change nothing then

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """Draws the numbers: float32 [*shape]."""
        if self.kind != "normal":
            return generator.random(self.shape, dtype=np.float32)
        drawn = generator.standard_normal(self.shape, dtype=np.float32)
        if self.uniform:
            drawn[-self.uniform :] = generator.random((self.uniform, *self.shape[1:]), dtype=np.float32)
        return drawn


@dataclass(frozen=True)
class Sampling:
    """How actions are drawn from the action logits. Log-probs are those of the distribution that was sampled."""

    do_sample: bool = True  # False: argmax
    temperature: float = 1.0  # > 0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    # of texts
    repetition_penalty: float = 1.0  # logits of tokens that stand in prompt or answer: ÷ this if above 0, × if below
    max_new_tokens: int | None = None  # None = as many as the policy's records hold
    min_new_tokens: int = 0  # the end of the text is not sampled earlier
    stop: tuple[str, ...] = ()  # the text ends with the first token that completes one of these
    ignore_eos: bool = False  # the tokenizer's end of text ends nothing
    include_stop: bool = True  # the answer ends with the text of ``stop``; False: before it. The tokens are the same
    logprob_dtype: str = "float32"  # number format in which log-probs are computed from logits (embodied.logprobs)


class Gaussian(NamedTuple):
    """The distribution of each element of B decisions whose elements are independent Gaussians."""

    mean: Tensor  # float32 [B, M₀]; [B, *elements.shape] will do as well
    std: Tensor  # the same shape, above 0


OUTSIDE = -5e3
"""Nats. Where ``top_k`` or ``top_p`` truncates, a log-prob below it is that of an element that they leave out."""
