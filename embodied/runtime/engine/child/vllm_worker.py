"""Extends vLLM's worker (``worker_extension_cls``): it can load weights from a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from weights_file import read


class LoadsFile:
    """Mixin of vLLM's worker that loads weights from a file into its ``model_runner``."""

    model_runner: Any

    def load_file(self, path: str) -> list[dict[str, Any]]:
        """Replaces all weights by those of the file; returns what was read of each tensor."""
        found: list[dict[str, Any]] = []

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for facts, numbers in read(path):
                mapped = torch.frombuffer(numbers, dtype=getattr(torch, facts["dtype"])).view(facts["shape"])
                tensor = mapped.clone()  # vLLM may keep it, and the file is emptied afterwards
                found.append(facts)
                yield facts["name"], tensor

        self.model_runner.reload_weights(weights_iterator=weights())
        return found
