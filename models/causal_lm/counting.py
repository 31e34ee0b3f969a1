"""Prompts as the policy reads them, with its tokenizer alone: how many tokens they have, and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .files.load import load_tokenizer
from .files.source import located
from .settings import Settings
from .text.pictures import Pictures
from .text.tokenizer import TextTokenizer


class PromptCounter:
    """Counts tokens of prompts, and of conversations by the chat template."""

    def __init__(self, settings: Settings) -> None:
        self._tokenizer = _tokenizer(settings)

    def __call__(self, prompts: Sequence[str]) -> list[int]:
        """Counts the tokens of each prompt, given as an observation holds it (``embodied.instructions``)."""
        return [self._tokenizer.length(prompt) for prompt in prompts]


class PromptReader:
    """Renders prompts, and conversations by the chat template, as the policy reads them."""

    def __init__(self, settings: Settings) -> None:
        self._tokenizer = _tokenizer(settings)

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """The text of each prompt, which is given as an observation holds it (``embodied.instructions``).

        Raises:
            SpecMismatchError: one is too long for the policy.
        """
        return [self._tokenizer.shown(prompt) for prompt in prompts]


def _tokenizer(settings: Settings) -> TextTokenizer:
    found = located(settings)
    text_alone = found.model_path is None or found.gguf_file is not None
    pictures = None if text_alone else Pictures.of(Path(found.model_path or "").expanduser())
    return TextTokenizer(load_tokenizer(found), settings, (0,), pictures)
