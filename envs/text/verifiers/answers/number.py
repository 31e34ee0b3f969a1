r"""Numbers as they are written: ``1,234.5``, ``1{,}234``, ``1.5e3``, ``0.1\overline{6}``, and in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

MAX_DIGITS = 1000
"""Characters of a number. Longer ones are compared as text, because reading them takes time that grows faster."""
_GAP = r"(?:\{,\}|\\,|,\\!\s?|\\!|,)"
_LONE_GAP = r"(?:\{,\}|\\,|,\\!\s?|\\!)"
_POWER = r"(?:[eE][+-]?[0-9]+(?![a-zA-Z0-9]))?"
WRITTEN, WRITTEN_IN_BRACKETS = (
    re.compile(
        rf"[0-9]{{1,3}}(?:{gap}[0-9]{{3}})+(?!,?[0-9])(?:\.[0-9]+)?{_POWER}"  # thousands
        r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?:,[0-9]+)?(?![0-9.])"  # those of continental Europe
        r"|[0-9]+\{,\}[0-9]+"  # a comma before the decimals
        rf"|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+){_POWER}"
        r"|\.(?=\s*\\(?:overline|bar|dot)(?![a-zA-Z]))"
    )
    for gap in (_GAP, _LONE_GAP)
)
"""A number as it is written, at the place where it begins. In brackets a comma without a space separates."""
_GAPS = re.compile(_GAP)
_EUROPEAN = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3}){2,}(?:,[0-9]+)?")
_COMMA = re.compile(r"([0-9]+)\{,\}([0-9]{1,2}|[0-9]{4,})")
_SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = {
    word: 10 * ten
    for ten, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
             "\u4e07": 10**4, "\u4ebf": 10**8}  # fmt: skip


def decimal(written: str) -> Fraction | None:
    """Parses a number that :data:`WRITTEN` matches; None if it is too long, or its power of ten too large."""
    if len(written) > MAX_DIGITS:
        return None
    if _EUROPEAN.fullmatch(written):
        written = written.replace(".", "").replace(",", ".")
    elif comma := _COMMA.fullmatch(written):
        written = f"{comma[1]}.{comma[2]}"
    digits, _, power = _GAPS.sub("", written).lower().partition("e")
    if power and (len(power) > 5 or abs(int(power)) > MAX_DIGITS):
        return None
    if digits in ("", "."):
        return None
    return Fraction(digits) * Fraction(10) ** int(power or 0)


def repeating(before: str, period: str) -> Fraction | None:
    """Computes a repeating decimal: ``0.1`` with the period ``6`` is 1/6. None if it is none."""
    whole, point, decimals = before.partition(".")
    if not point or not (whole + decimals + period).isdigit() or not period or len(before) + len(period) > MAX_DIGITS:
        return None
    return Fraction(before + "0") + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(decimals))


def in_words(text: str) -> int | None:
    """Parses a number written in words: ``forty-two``, ``one hundred and five``; None if it is none."""
    words = text.replace("-", " ").split()
    return _large(words) if words and words[-1] != "and" else None


def _large(words: Sequence[str]) -> int | None:
    for name in ("trillion", "billion", "million", "thousand", "hundred"):
        if name not in words:
            continue
        at, multiple = words.index(name), MULTIPLES[name]
        rest = words[at + 2 :] if words[at + 1 : at + 2] == ["and"] else words[at + 1 :]
        count, more = _large(words[:at]), _large(rest) if rest else 0
        fits = count is not None and more is not None and 0 < count < 1000 and more < multiple
        return count * multiple + more if fits else None  # type: ignore[operator]
    return _below_100(words)


def _below_100(words: Sequence[str]) -> int | None:
    if len(words) == 1:
        return _SMALL.index(words[0]) if words[0] in _SMALL else _TENS.get(words[0])
    if len(words) == 2 and words[0] in _TENS and words[1] in _SMALL[1:10]:
        return _TENS[words[0]] + _SMALL.index(words[1])
    return None


def spelled(value: Fraction) -> str:
    r"""Formats a number in LaTeX: ``-\frac{1}{2}``."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"{'-' if value < 0 else ''}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
