"""Log-probs and advantages that are made up to try a policy loss on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RECORDS = 4  # N of the made-up batch
MOST_ELEMENTS = 512  # elements checked a record; a text may have more, and all are alike
LITTLE, MUCH = 0.1, 2.0  # nats
STEPS = (0.0, LITTLE, MUCH)


@dataclass(frozen=True)
class Inputs:
    """Log-probs now and of the old policy, and advantages: float32 [N, M] each."""

    logprobs: Tensor
    old: Tensor
    advantages: Tensor

    def part(self, rows: slice, elements: slice) -> Inputs:
        """Selects records and elements."""
        return Inputs(*(t[rows, elements] for t in (self.logprobs, self.old, self.advantages)))


def made_up(elements: int, step: float) -> Inputs:
    """Makes log-probs, old log-probs and advantages of both signs and 0, to try a user's loss on.

    Args:
        step: by which the log-probs differ from the old ones at the most, in nats; 0 = all ratios are 1. Where it is
            :data:`MUCH`, tokens are as rare and advantages as large as training has them at its edges.
    """
    count = min(elements, MOST_ELEMENTS)
    steps = torch.arange(RECORDS * count, dtype=torch.float32).view(RECORDS, count)
    old = -0.2 - 1.5 * torch.sin(steps).abs()
    if step == MUCH:
        old = -MUCH - 0.01 - 6 * torch.sin(steps).abs()
    moved = step * torch.cos(2.3 * steps) * torch.where(steps % 3 == 0, 0.1, 1.0)
    if step == MUCH:
        moved = torch.where(steps % 2 == 0, MUCH, -MUCH) * torch.cos(0.1 * steps).abs()
    advantages = torch.where(steps % 5 == 4, 0.0, torch.cos(1.7 * steps + 0.3))
    return Inputs(old + moved if step else old.clone(), old, advantages * (3 if step == MUCH else 1))


def ratio_range(inputs: Inputs) -> str:
    """Says for an error message at which ratios a tried loss failed."""
    ratios = (inputs.logprobs.detach() - inputs.old).exp()
    if bool((ratios == 1).all()):
        return "where all ratios are 1"
    return f"at ratios between {ratios.min():.2f} and {ratios.max():.2f}"
