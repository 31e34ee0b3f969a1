"""Counts the tokens of prompts as the policy does, with its tokenizer alone."""

from __future__ import annotations

from collections.abc import Sequence

from .network import load_tokenizer
from .settings import Settings
from .source import located
from .tokenizer import TextTokenizer


class PromptCounter:
    """Counts tokens of prompts, and of conversations by the chat template."""

    def __init__(self, settings: Settings) -> None:
        self._tokenizer = TextTokenizer(load_tokenizer(located(settings)), settings, (0,))

    def __call__(self, prompts: Sequence[str]) -> list[int]:
        """The tokens of each prompt, as an observation holds it (``embodied.instructions``)."""
        return [self._tokenizer.length(prompt) for prompt in prompts]
