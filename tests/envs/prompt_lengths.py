"""A counter of tokens that needs no tokenizer, for processes that count."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from embodied.errors import CheckpointError


def prompt_counter(folder: str | None = None) -> Callable[[Sequence[str]], list[int]]:
    """Each character is a token."""
    if folder is not None:
        raise CheckpointError(f"no folder {folder}", "give another one")
    return lambda prompts: [max(1, len(prompt)) for prompt in prompts]


def killed() -> Callable[[Sequence[str]], list[int]]:
    """Has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)
    return lambda prompts: []
