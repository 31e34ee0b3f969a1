"""The policy that training began with, for a KL penalty: the same module with its trainable weights exchanged.

Only what is trained is kept a second time (adapters and heads with LoRA, all of it without). Exchanging is a swap of
pointers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from embodied.protocols import Policy


class Reference:
    """Remembers the trainable weights that ``policy`` has now. A resumed run builds the policy before it loads the
    checkpoint, so the reference stays that of the run's beginning."""

    def __init__(self, policy: Policy) -> None:
        self._parameters = [p for _, p in policy.named_parameters() if p.requires_grad]
        self._kept = [p.detach().clone() for p in self._parameters]

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Within it the policy is the reference, without gradients."""
        self._swap()
        try:
            with torch.no_grad():
                yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for i, parameter in enumerate(self._parameters):
            parameter.data, self._kept[i] = self._kept[i], parameter.data
