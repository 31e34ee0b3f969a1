"""Parts of a policy. It holds one :class:`Parts`; decoding, evaluation, saving, export and serving take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from embodied.protocols import Team

from ..shared.precision import number_format
from ..shared.trained import not_training
from .network.trunk import Trunk
from .network.value_head import ValueHead
from .network.vision import Vision
from .settings import Settings
from .text.tokenizer import TextTokenizer


@dataclass
class Situation:
    """State of a policy that changes while it is used: bytes of an answer, team, modules that train."""

    max_bytes: int  # L, of an answer
    team: Team | None = None  # processes that compute each text together; None = this process alone
    record_rows: tuple[Tensor, int] | None = None  # of the latest pass, see embodied.protocols.LaysOutRecords
    training_modules: list[nn.Module] = field(default_factory=list)  # modules that behave differently in training


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a policy: network, tokenizer, heads, settings and state."""

    network: Any
    trunk: Trunk  # reads the network
    tokenizer: TextTokenizer
    value_head: ValueHead | None
    vision: Vision | None  # reads pictures
    settings: Settings
    now: Situation

    @property
    def device(self) -> torch.device:
        return self.network.model.embed_tokens.weight.device

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Context without dropout and recomputation, in the number format of the settings."""
        with not_training(self.now.training_modules), self.number_format():
            yield

    def number_format(self) -> torch.autocast:
        """Context of the settings' number format (autocast)."""
        return number_format(self.device, self.settings.precision)
