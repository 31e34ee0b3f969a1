"""Evaluates arithmetic that a model has written, exactly and within limits. Nothing of Python can be reached with it,
and no expression takes more than a moment.

    sum     = product { (+ | -) product }
    product = sign { (* | /) sign }
    sign    = { + | - } power
    power   = atom [ ** sign ]
    atom    = number | ( sum )
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_DEPTH = 40  # nesting of parentheses, signs and powers
MAX_EXPONENT = 64
MAX_DIGITS = 60  # digits of numerator and denominator
DECIMALS = 6
_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(\*\*|[-+*/()]))")
_SIGNS = ("**", "*", "/", "+", "-", "(", ")")
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})


class BadExpression(Exception):
    """An expression cannot be evaluated; the text says why, for the model to read."""


def calculate(text: str) -> str:
    """Evaluates an arithmetic expression: returns a whole number, or a decimal that is rounded to 6 places. The
    operations are those of the module; ``×``, ``÷`` and ``^`` are read as well.

    Raises:
        BadExpression: it is too long, is none, divides by zero, or a number becomes too large.

    >>> calculate("17*(23+4)"), calculate("10/4"), calculate("2/3")
    ('459', '2.5', '0.666667')
    """
    if len(text) > MAX_CHARACTERS:
        raise BadExpression("too long")
    parser = _Parser(_tokens(text.translate(_SAME)))
    value = parser.sum(0)
    if parser.next is not None:
        raise BadExpression(f"unexpected {parser.next}")
    return _written(value)


def _tokens(text: str) -> list[str]:
    found, position, text = [], 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise BadExpression(f"unexpected {text[position:].lstrip()[:1]}")
        found.append(match[1] or match[2])
        position = match.end()
    return found


class _Parser:
    """Recursive descent; each method evaluates one rule of the grammar from the present token on."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._position = tokens, 0

    @property
    def next(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take(self, *wanted: str) -> str | None:
        token = self.next
        if token is None or token not in wanted:
            return None
        self._position += 1
        return token

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while sign := self._take("+", "-"):
            other = self._product(depth)
            value = _limited(value + other if sign == "+" else value - other)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._sign(depth)
        while operation := self._take("*", "/"):
            other = self._sign(depth)
            if operation == "/" and other == 0:
                raise BadExpression("division by zero")
            value = _limited(value * other if operation == "*" else value / other)
        return value

    def _sign(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise BadExpression("too deep")
        if sign := self._take("+", "-"):
            value = self._sign(depth + 1)
            return value if sign == "+" else -value
        return self._power(depth)

    def _power(self, depth: int) -> Fraction:
        base = self._atom(depth)
        return _raised(base, self._sign(depth + 1)) if self._take("**") else base

    def _atom(self, depth: int) -> Fraction:
        if self._take("("):
            value = self.sum(depth + 1)
            if not self._take(")"):
                raise BadExpression("a parenthesis is not closed")
            return value
        token = self.next
        if token is None or token in _SIGNS:
            raise BadExpression(f"unexpected {token or 'end'}")
        self._position += 1
        return _limited(Fraction(token))


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise BadExpression(f"an exponent is a whole number up to {MAX_EXPONENT}")
    if base == 0 and exponent < 0:
        raise BadExpression("division by zero")
    return _limited(base**exponent.numerator)


def _limited(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise BadExpression("a number is too large")
    return value


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(abs(value) * 10**DECIMALS)
    whole, rest = divmod(scaled, 10**DECIMALS)
    text = f"{whole}.{rest:0{DECIMALS}d}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 and scaled else text
