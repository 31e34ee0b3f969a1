"""Reading and comparing answers: plain text, numbers, and the little LaTeX that answers are written in.

Every function here takes time in proportion to the length of its text.
"""

from __future__ import annotations

import re
from fractions import Fraction

from ..verdict import Problem
from .failures import VerifierFailed

MAX_DIGITS = 1000
"""Characters of a number. Longer ones are compared as text, because reading them takes time that grows faster."""

_TOKENS = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\.|[{}]", re.DOTALL)
_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(rf"([+-]?{_DECIMAL})(?:/({_DECIMAL}))?")
_FRACTION = re.compile(rf"([+-]?)\\frac\{{([+-]?{_DECIMAL})\}}\{{({_DECIMAL})\}}")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?")
_WORDS = r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\{([^{}]*)\}"

_STEPS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        ("\N{MINUS SIGN}", "-"),
        (r"\\?\$|\\[!,;: ]|\\q?quad(?![a-zA-Z])|~", ""),  # signs of money and of formulas, spaces of LaTeX
        (r"\\(?:left|right)(?![a-zA-Z])", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\^\{?\\circ\}?|\\degree(?![a-zA-Z])|°|\\?%", ""),
        (r"\{,\}", ","),
        (rf"(?<=[0-9}}])\s*{_WORDS}\s*$", ""),  # a unit
        (_WORDS, r"\1"),
        (r"\s+", ""),
        (r"\.$", ""),
        (r"\\frac([0-9])([0-9])", r"\\frac{\1}{\2}"),
        (r"\\sqrt([0-9])", r"\\sqrt{\1}"),
        (r"^[a-zA-Z]=(?=[^=]+$)", ""),  # x=5
    )
)


def text_of(problem: Problem) -> str:
    """The problem's answer as text. Raises :class:`VerifierFailed` if the data has none."""
    text = "" if problem.answer is None else str(problem.answer).strip()
    if not text:
        raise VerifierFailed("the problem has no answer")
    return text


def last_boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{…}`` (or ``\fbox{…}``) with balanced braces; None if there is none.

    >>> last_boxed(r"\boxed{1} or rather \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    """
    opened: list[int | None] = []  # for each brace that is open: where the box's content begins; None: no box
    found = None
    for token in _TOKENS.finditer(text):
        sign = token[0]
        if sign.endswith("{") and sign != r"\{":
            opened.append(token.end() if len(sign) > 1 else None)
        elif sign == "}" and opened:
            begin = opened.pop()
            found = found if begin is None else text[begin : token.start()]
    return found


def normalised(text: str) -> str:
    r"""The text without what does not change its meaning: spaces, ``\left``, units after a number, ``$``, ``%`` …

    >>> normalised(r"$\dfrac12\text{ cm}$"), normalised("1,234.")
    ('\\frac{1}{2}', '1234')
    """
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


def number(text: str) -> Fraction | None:
    r"""The number that a :func:`normalised` text is: ``-1.50``, ``3/4``, ``\frac{3}{4}``; None if it is none."""
    if len(text) > MAX_DIGITS:
        return None
    if plain := _NUMBER.fullmatch(text):
        return _ratio("", plain[1], plain[2] or "1")
    if fraction := _FRACTION.fullmatch(text):
        return _ratio(fraction[1], fraction[2], fraction[3])
    return None


def _ratio(sign: str, above: str, below: str) -> Fraction | None:
    divisor = Fraction(below)
    return (-1 if sign == "-" else 1) * Fraction(above) / divisor if divisor else None


def canonical(text: str) -> str:
    r"""One spelling for all answers that are equal: an exact number as a fraction in lowest terms, a word in lower
    case, else the normalised text. Empty for a text that says nothing.

    >>> canonical("0.50"), canonical(r"\frac{2}{4}"), canonical("East"), canonical(r"$x$")
    ('1/2', '1/2', 'east', 'x')
    """
    text = normalised(text)
    if (value := number(text)) is not None:
        return str(value)
    return text.casefold() if len(text) > 1 and text.isalpha() else text


def same(one: str, other: str) -> bool:
    r"""Whether two answers are equal as normalised texts or as exact numbers: ``0.5`` is ``\frac{1}{2}``, ``0.33`` is
    not ``1/3``. Case does not count in words.

    A percent sign does not count: ``10\%`` is ``10``, and is not ``0.1``.
    """
    found = canonical(one)
    return bool(found) and found == canonical(other)
