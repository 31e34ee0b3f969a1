"""The form of a response, whatever it says."""

from __future__ import annotations

import re

from embodied.errors import ConfigError

from ..verdict import Problem, Verdict

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_TAGGED = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)


class Format:
    """Verifier that gives 1 if a regular expression matches the response, else 0.

    Args:
        pattern: looked for with ``re.search``, a dot stands for any character, also the end of a line. Write ``^`` and
            ``$`` to match the whole response. A pattern can take time that grows exponentially with the response, so it
            has a time limit. None: the response is ``<think>…</think><answer>…</answer>``, each tag once, and
            nothing but white space around and between the two.

    Raises:
        ConfigError: ``pattern`` is no regular expression.
    """

    bounded = False

    def __init__(self, pattern: str | None = None) -> None:
        self.bounded = pattern is None
        try:
            self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"pattern {pattern!r} is no regular expression: {error}", "correct the verifier's pattern"
            ) from error

    def load(self) -> None:
        """Does nothing: nothing has to be imported."""

    def __call__(self, problem: Problem, response: str) -> Verdict:
        if self._pattern is None:
            right = all(response.count(tag) == 1 for tag in _TAGS) and _TAGGED.fullmatch(response) is not None
        else:
            right = self._pattern.search(response) is not None
        return Verdict(float(right), right)
