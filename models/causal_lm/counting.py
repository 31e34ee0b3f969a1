"""Counts the tokens of prompts as the policy does, with its tokenizer alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .network import load_tokenizer
from .pictures import Pictures
from .settings import Settings
from .source import located
from .tokenizer import TextTokenizer


class PromptCounter:
    """Counts tokens of prompts, and of conversations by the chat template."""

    def __init__(self, settings: Settings) -> None:
        found = located(settings)
        pictures = (
            None if found.model_path is None or found.gguf_file else Pictures.of(Path(found.model_path).expanduser())
        )
        self._tokenizer = TextTokenizer(load_tokenizer(found), settings, (0,), pictures)

    def __call__(self, prompts: Sequence[str]) -> list[int]:
        """The tokens of each prompt, as an observation holds it (``embodied.instructions``)."""
        return [self._tokenizer.length(prompt) for prompt in prompts]
