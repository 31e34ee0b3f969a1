"""Mathematical equality, by the package math-verify (optional)."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from embodied.errors import AssetsMissingError

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict
from .answers import Answer, equal, gold_of, last_boxed, read, spelling_beside
from .answers.tokens import FUNCTIONS, GREEK

PACKAGE = "math-verify==0.9.0"
INSTALL = f"pip install {PACKAGE}, or 'embodied-rl[text]' which brings it along"
_HOPED = re.compile(r"final answer is:?\s{0,9}(.{1,1000}?)\s{0,9}I hope it is correct", re.IGNORECASE | re.DOTALL)
_VALUES = frozenset(("number", "expression", "relation", "tuple", "matrix"))
_COMPARABLE = (
    {"number", "expression"}, {"expression"}, {"relation"}, {"relation", "expression"}, {"relation", "tuple"},
    {"tuple"}, {"matrix"}, {"list"}, {"set"}, {"list", "set"}, {"list", "expression"},
)  # fmt: skip
"""Kinds that algebra can find equal though they are written differently. Two numbers are exact."""
_NOT_ALGEBRA = re.compile(r":|[0-9]_\{|\\begin\{(?!pmatrix\})")  # a ratio, a base, cases of which it compares the first
_MARKS = re.compile(r"\\[a-zA-Z]+|'")
_ALGEBRA = FUNCTIONS | frozenset((
    "frac", "sqrt", "pi", "infty", "binom", "cdot", "emptyset", "mathbb", "cup", "cap", "setminus", "in", "le", "ge",
    "ne", "lt", "gt", "pm", "mp", "langle", "rangle", "lfloor", "rfloor", "lceil", "rceil", "begin", "end", "sum",
    "prod", "int", "infin", "approx", "mathrm", "to", "Rightarrow", "log", "circ",
))  # fmt: skip
"""Commands that math-verify understands, or that an equal answer may be written without."""
_NAMES = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")


class Symbolic:
    r"""Verifier that compares the response's answer with the problem's as mathematics: ``x+1`` is ``1+x``,
    ``\frac{1}{2}`` is ``0.5``, ``\{2,1\}`` is ``\{1,2\}``.

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
            raise AssetsMissingError(f"math-verify cannot be imported: {error}", INSTALL) from error
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it says that its time limits are off
        box_first = math_verify.LatexExtractionConfig(boxed_match_priority=0)
        sought = (box_first, math_verify.ExprExtractionConfig())
        parse = functools.partial(math_verify.parse, extraction_config=sought, parsing_timeout=None)
        verify = functools.partial(math_verify.verify, float_rounding=self._precision, timeout_seconds=None)
        self._judge = parse, verify

    def reads(self, problem: Problem) -> None:
        """Raises :class:`VerifierFailed` if the problem's answer cannot be parsed. Takes no time to speak of."""
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
        same = verify(expected, found) or (named and verify(found, expected))  # x>0 of (0, oo), in this order alone
        return bool(same) and self._near(expected[0], found[0])

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
    if {gold.kind, said.kind} not in _COMPARABLE or not said.key or _are_tables(gold, said):
        return False
    if gold.kind == said.kind == "list" and len(gold.items) != len(said.items):
        return False
    parts = (*gold.items, *said.items)
    if not all(part.kind in _VALUES and part.unit is None for part in parts):
        return False
    if any(len({part.label for part in answer.items}) > 1 for answer in (gold, said)):  # x=2, y=5
        return False
    if gold.unit is not None and said.unit is not None and gold.unit != said.unit:
        return False
    if gold.label is not None and said.label is not None and gold.label != said.label:
        return False
    if _NOT_ALGEBRA.search(gold.key + " " + said.key):
        return False
    if _marks(gold) != _marks(said):
        return False
    if _variables(gold) != _variables(said) and "relation" not in (gold.kind, said.kind):
        return False
    return _is_equation(gold, said) == _is_equation(said, gold)


def _are_tables(gold: Answer, said: Answer) -> bool:
    """Whether one of them alone is a matrix."""
    return (gold.kind == "matrix") != (said.kind == "matrix")


def _variables(answer: Answer) -> frozenset[str]:
    """The variables of an answer. math-verify takes some for units, and capital for small ones."""
    found = _NAMES.findall(answer.key)
    return frozenset(name for name in found if (name in GREEK if name.startswith("\\") else name not in "ei"))


def _marks(answer: Answer) -> Counter[str]:
    """Primes, and commands that are no algebra. math-verify reads many as if they were not there."""
    return Counter(one for one in _MARKS.findall(answer.key) if one[1:] not in _ALGEBRA and one not in GREEK)


def _is_equation(answer: Answer, other: Answer) -> bool:
    """Whether it is an equation, or becomes one beside another because it says what a variable is."""
    if answer.kind != "relation":
        return other.kind == "relation" and answer.label is not None and answer.kind == "expression"
    return "=" in answer.key


def _formula(answer: Answer, named: bool) -> str:
    r"""An answer as math-verify finds it.

    Args:
        named: with what it is the value of, as an equation.
    """
    key = rf"\{{{answer.key}\}}" if answer.kind == "set" else answer.key
    if answer.value is not None:
        key = _decimal(answer.value) or key
    name = f"{answer.label}=" if named and answer.label is not None else ""
    return rf"\boxed{{{name}{key}}}".replace("*", r"\cdot ")


def _decimal(value: Fraction) -> str | None:
    """The number with a point, if it has few decimals: math-verify only rounds what is written so."""
    shown = f"{float(value):.15f}".rstrip("0").rstrip(".") if abs(value) < 10**15 else ""
    return shown if shown and Fraction(shown) == value else None
