"""Mathematical equality, by the package math-verify (optional)."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections.abc import Callable
from typing import Any

from embodied.errors import AssetsMissingError

from ..verdict import Problem, Verdict
from .answers import Answer, equal, gold_of, last_boxed, read, spelling_beside
from .failures import VerifierFailed

PACKAGE = "math-verify==0.9.0"
_HOPED = re.compile(r"final answer is:?\s{0,9}(.{1,1000}?)\s{0,9}I hope it is correct", re.IGNORECASE | re.DOTALL)
_VALUES = frozenset(("number", "expression", "relation", "list", "set"))
"""Kinds that algebra can find equal though they are written differently."""


class Symbolic:
    r"""Compares the answer of a response with that of the problem as mathematics: ``x+1`` is ``1+x``, ``\frac{1}{2}``
    is ``0.5``, ``\{2,1\}`` is ``\{1,2\}``.

    The answer of a response is what stands in its last box, else in its last formula, else its last number. "The final
    answer is $7$. I hope it is correct." counts like a box.

    What ``boxed`` finds equal is right. Else math-verify is asked, of values that algebra can compare: not of two
    numbers, which are exact, nor of texts, letters, times, and what has another unit. An equation and a number are
    never equal (math-verify takes the right side of ``2x=4``).

    Its own time limits are off. They need the main thread of a process, and the helper's deadline
    (:class:`~.guarded.Guarded`) holds in any case.

    Args:
        precision: decimals to which an irrational number and a decimal are rounded before they are compared; of small
            ones as many significant digits, less one, agree too.

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
            raise AssetsMissingError(f"math-verify cannot be imported: {error}", f"pip install {PACKAGE}") from error
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it says that its time limits are off
        box_first = math_verify.LatexExtractionConfig(boxed_match_priority=0)
        sought = (box_first, math_verify.ExprExtractionConfig())
        parse = functools.partial(math_verify.parse, extraction_config=sought, parsing_timeout=None)
        verify = functools.partial(math_verify.verify, float_rounding=self._precision, timeout_seconds=None)
        self._judge = parse, verify

    def reads(self, problem: Problem) -> None:
        """Raises :class:`VerifierFailed` if the answer in the data is none. Takes no time to speak of."""
        gold_of(problem)

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the answer in the data is a worked solution without a box, or math-verify
        cannot parse it."""
        gold, said = gold_of(problem), read(self._said(response))
        right = equal(gold, said) or (_comparable(gold, said) and self._equal(gold, said))
        return Verdict(float(right), right, spelling_beside(gold if right else said, gold))

    def _said(self, response: str) -> str:
        """What a response gives as its answer; "" if nothing is found."""
        hoped = next(reversed(list(_HOPED.finditer(response))), None)
        if hoped is not None and last_boxed(response[hoped.end() :]) is None:
            boxed = last_boxed(hoped[1])
            return hoped[1].rstrip(". ") if boxed is None else boxed
        if (boxed := last_boxed(response)) is not None:
            return boxed
        parse, _ = self._loaded()
        found = parse(response)
        return str(found[-1]) if found else ""

    def _equal(self, gold: Answer, said: Answer) -> bool:
        """Whether math-verify finds two answers equal."""
        parse, verify = self._loaded()
        named = "relation" in (gold.kind, said.kind)
        expected = parse(_formula(gold, named))
        if not expected:
            raise VerifierFailed(f"the answer {gold.whole[:60]!r} cannot be parsed")
        found = parse(_formula(said, named))
        return bool(verify(expected, found)) and self._near(expected[0], found[0])

    def _near(self, one: Any, other: Any) -> bool:
        """Whether two numbers agree to so many digits too. Rounding to decimals makes all small numbers equal."""
        if not all(getattr(value, "is_number", False) for value in (one, other)) or one == other:
            return True
        least = 10.0 ** (1 - self._precision) * max(abs(complex(one)), abs(complex(other)))
        return abs(complex(one) - complex(other)) <= least

    def _loaded(self) -> tuple[Callable[..., list[Any]], Callable[..., bool]]:
        self.load()
        assert self._judge is not None
        return self._judge


def _comparable(gold: Answer, said: Answer) -> bool:
    """Whether two answers that are not written alike may be equal by algebra."""
    if not all(part.kind in _VALUES for answer in (gold, said) for part in (answer, *answer.items)):
        return False
    if gold.kind == said.kind == "number" or not said.key or ":" in gold.key + said.key:
        return False
    if gold.label is not None and said.label is not None and gold.label != said.label:
        return False
    if gold.unit is not None and said.unit is not None and gold.unit != said.unit:
        return False
    if any(item.unit is not None for answer in (gold, said) for item in answer.items):
        return False
    return _is_equation(gold) == _is_equation(said)


def _is_equation(answer: Answer) -> bool:
    return answer.kind == "relation" and "=" in answer.key


def _formula(answer: Answer, named: bool) -> str:
    r"""An answer as math-verify finds it.

    Args:
        named: with what it is the value of, as an equation.
    """
    key = rf"\{{{answer.key}\}}" if answer.kind == "set" else answer.key
    name = f"{answer.label}=" if named and answer.label is not None else ""
    return rf"\boxed{{{name}{key}}}".replace("*", r"\cdot ")
