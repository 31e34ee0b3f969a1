"""The integer behind the work: ``9,0;9``."""

from __future__ import annotations

import re

from embodied.errors import ConfigError

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict
from .answers import MAX_DIGITS, text_of

_INTEGER = re.compile(rf"\s*([+-]?[0-9]{{1,{MAX_DIGITS}}})\s*")


def integer(text: str) -> int | None:
    """Parses a text that is an integer, with white space around it; None if it is none."""
    match = _INTEGER.fullmatch(text)
    return None if match is None else int(match[1])


class IntegerAfter:
    """Verifier that compares the integer after the last ``separator`` with the answer. A response is wrong without the
    separator, and if anything else than an integer follows it."""

    bounded = True

    def __init__(self, separator: str = ";") -> None:
        if not isinstance(separator, str) or not separator:
            raise ConfigError(f"separator is {separator!r}, expected a text", 'set separator to a text, e.g. ";"')
        self._separator = separator

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the answer in the data is no integer."""
        answer = integer(text_of(problem))
        if answer is None:
            raise VerifierFailed(f"the answer {text_of(problem)[:60]!r} is no integer")
        _, separator, after = response.rpartition(self._separator)
        found = integer(after) if separator else None
        return Verdict(float(found == answer), found == answer, "" if found is None else str(found))
