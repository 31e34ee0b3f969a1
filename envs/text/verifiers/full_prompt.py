"""The prompt as the policy reads it, for verifiers that hand it to others (``data.return_full_prompt``).

The policy's tokenizer makes it, in the env worker: chat template, special tokens, and what truncation leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.targets import load_target

from ..reading import text_of
from ..verdict import Problem

KEY = "full_prompt"
KEPT = 1 << 10  # prompts: those of a group are equal


class FullPrompts:
    """Renders prompts as the policy reads them, for verifiers that hand them on.

    Args:
        reader: dotted path of a function that is called with ``options`` and gives a function from prompts, as an
            observation holds them, to texts.
        options: its keyword arguments.
    """

    def __init__(self, reader: str, options: Mapping[str, Any]) -> None:
        self._reader, self._options = reader, dict(options)
        self._read: Callable[[str], str] | None = None

    @classmethod
    def of(cls, option: Mapping[str, Any] | None) -> FullPrompts | None:
        """Makes it from a verifier's option; None = full prompts are not handed over. Raises :class:`ConfigError` if
        something is missing or unknown."""
        if option is None:
            return None
        if not isinstance(option, Mapping) or set(option) != {"reader", "options"}:
            raise ConfigError(
                f"{KEY} of a verifier is {option!r}, expected reader and options", "set data.return_full_prompt=true"
            )
        return cls(option["reader"], option["options"])

    def load(self) -> None:
        """Reads the tokenizer, once: a few seconds, and some 220 MB of packages.

        Raises:
            EmbodiedError: it cannot be read.
        """
        if self._read is not None:
            return
        make = load_target(self._reader, f"{KEY}.reader")
        texts: Callable[[Sequence[str]], list[str]] = make(**self._options)
        self._read = lru_cache(KEPT)(lambda prompt: texts([prompt])[0])

    def __call__(self, problem: Problem) -> str:
        """The prompt that the response to this problem answers."""
        self.load()
        assert self._read is not None
        return self._read(text_of(problem.prompt if problem.asked is None else problem.asked))
