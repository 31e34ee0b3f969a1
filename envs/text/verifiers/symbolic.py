"""Mathematical equality, by the package math-verify (optional)."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from embodied.errors import AssetsMissingError

from ..verdict import Problem, Verdict
from .answers import canonical, last_boxed, text_of
from .failures import VerifierFailed

PACKAGE = "math-verify==0.9.0"
INSTALL = f"pip install {PACKAGE}, or 'embodied-rl[text]' which brings it along"


class Symbolic:
    r"""Compares the answer of a response with that of the problem as mathematics: ``x+1`` is ``1+x``, ``\frac{1}{2}``
    is ``0.5``, ``\{2,1\}`` is ``\{1,2\}``.

    The answer of a response is what stands in its last box, else after "the final answer is", else in its last formula,
    else its last number. "The final answer is $7$. I hope it is correct." counts like a box.

    Percent signs do not count, as with ``boxed``: ``10\%`` is ``10``, and is not ``0.1``. "What percentage …" is
    answered with and without the sign, and ``0.1`` would be another percentage. They are removed before math-verify
    sees a text. Left to itself it finds ``0.1`` wrong too, but ``10`` right or wrong by whether the sign is in a box.

    Its own time limits are off. They need the main thread of a process, and the helper's deadline
    (:class:`~.guarded.Guarded`) holds in any case.

    Args:
        precision: decimals to which numbers are rounded before they are compared.

    Raises:
        AssetsMissingError: math-verify is not installed.
    """

    bounded = False

    def __init__(self, precision: int = 6) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise AssetsMissingError(
                "the verifier 'math' needs the package math-verify, which is not installed",
                f"pip install {PACKAGE}, or take the verifier 'boxed', which compares texts and numbers",
            )
        self._precision = precision
        self._judge: tuple[Callable[..., list[Any]], Callable[..., bool]] | None = None  # parse, verify

    def load(self) -> None:
        """Import math-verify with sympy: about a second. Raises :class:`AssetsMissingError` if that fails."""
        if self._judge is not None:
            return
        try:
            import math_verify
        except ImportError as error:
            raise AssetsMissingError(f"math-verify cannot be imported: {error}", INSTALL) from error
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it says that its time limits are off
        box_first = math_verify.LatexExtractionConfig(boxed_match_priority=0)
        sought = (box_first, math_verify.ExprExtractionConfig())
        parse = functools.partial(math_verify.parse, extraction_config=sought, parsing_timeout=None)
        verify = functools.partial(math_verify.verify, float_rounding=self._precision, timeout_seconds=None)
        self._judge = parse, verify

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if nothing mathematical is found in the answer of the data."""
        self.load()
        assert self._judge is not None
        parse, verify = self._judge
        answer = text_of(problem)
        gold = parse(_without_percent(_formula(answer)))
        if not gold:
            raise VerifierFailed(f"the answer {answer[:60]!r} cannot be parsed")
        found = parse(_without_percent(response))
        right = bool(verify(gold, found))
        said = answer if right else _found(found)  # right answers are equal, however they are written
        return Verdict(float(right), right, canonical(said))


def _found(parsed: list[Any]) -> str:
    """The text that math-verify took for the answer, the last that it gives; "" if it found none."""
    return str(parsed[-1]) if parsed else ""


def _formula(answer: str) -> str:
    """The answer as math-verify finds it: LaTeX only counts within signs of a formula."""
    marked = "$" in answer or "\\(" in answer or "\\[" in answer or last_boxed(answer) is not None
    return answer if marked else f"${answer}$"


def _without_percent(text: str) -> str:
    return text.replace("\\%", "").replace("%", "")
