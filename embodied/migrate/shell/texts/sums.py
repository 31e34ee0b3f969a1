"""Sums of a shell: ``$((…))`` with whole numbers of 64 bits."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+#[0-9a-zA-Z@_]+|\d+(?![\w#]))|(?P<name>[A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(?P<sign>\*\*|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^<>!~?:=(),]))"
)
NAME = re.compile(r"[A-Za-z_]\w*")
DEPTH = 50


class UnknowableError(ValueError):
    """A shell arithmetic expression has a value that only a run can know, or is malformed."""


def _divided(a: int, b: int) -> int:
    if b == 0:
        raise UnknowableError("a division by 0")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if b < 0:
        raise UnknowableError("a negative power")
    return pow(a, b, 1 << 64)


BINARY: Mapping[str, tuple[int, Callable[[int, int], int]]] = {
    ",": (0, lambda a, b: b),
    "||": (3, lambda a, b: int(bool(a or b))), "&&": (4, lambda a, b: int(bool(a and b))),
    "|": (5, operator.or_), "^": (6, operator.xor), "&": (7, operator.and_),
    "==": (8, operator.eq), "!=": (8, operator.ne),
    "<": (9, operator.lt), ">": (9, operator.gt), "<=": (9, operator.le), ">=": (9, operator.ge),
    "<<": (10, lambda a, b: a << (b & 63)), ">>": (10, lambda a, b: a >> (b & 63)),
    "+": (11, operator.add), "-": (11, operator.sub),
    "*": (12, operator.mul), "/": (12, _divided), "%": (12, lambda a, b: a - b * _divided(a, b)), "**": (13, _power),
}  # fmt: skip
"""Sign → how tightly it binds, and what it computes."""
UNARY: Mapping[str, Callable[[int], int]] = {
    "-": operator.neg, "+": operator.pos, "!": lambda a: int(not a), "~": operator.invert,
}  # fmt: skip
ASSIGN, QUESTION = 1, 2


def whole(number: int) -> int:
    """Wraps an integer into the range of a signed 64-bit number, as a shell computes."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class Arithmetic:
    """Parser and evaluator of a shell arithmetic expression (``$((…))``).

    Args:
        text: without any ``$``.
        get: name → its text; raises UnknowableError if nobody knows it.
        set_: sets a name, as ``i++`` does.
    """

    def __init__(self, text: str, get: Callable[[str], str], set_: Callable[[str, str], None], depth: int = 0) -> None:
        self.signs: list[tuple[str, str]] = []
        self.get, self.set, self.depth, self.live = get, set_, depth, True
        text = text.rstrip()
        at = 0
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found or depth > DEPTH:
                raise UnknowableError(text)
            kind = str(found.lastgroup)
            self.signs.append((kind, found[kind]))
            at = found.end()
        self.at = 0

    def value(self) -> int:
        """Evaluates the expression.

        Raises:
            UnknowableError: it is no sum, or nobody knows a name in it.
        """
        if not self.signs:
            return 0
        number = self._level(0)
        if self.at < len(self.signs):
            raise UnknowableError(self.signs[self.at][1])
        return number

    def _next(self) -> tuple[str, str]:
        return self.signs[self.at] if self.at < len(self.signs) else ("", "")

    def _take(self) -> tuple[str, str]:
        self.at += 1
        if self.at > len(self.signs):
            raise UnknowableError("the end")
        return self.signs[self.at - 1]

    def _level(self, least: int) -> int:
        left = self._single(least)
        while True:
            kind, sign = self._next()
            if kind == "sign" and sign == "?" and least <= QUESTION:
                left = self._chosen(left)
            elif kind == "sign" and sign in BINARY and BINARY[sign][0] >= least:
                self._take()
                binds, compute = BINARY[sign]
                skipped = (sign == "&&" and not left) or (sign == "||" and bool(left))
                right = self._part(binds if sign == "**" else binds + 1, not skipped)
                left = whole(compute(left, right)) if self.live else 0
            else:
                return left

    def _part(self, least: int, live: bool) -> int:
        """A part of the sum, which is not computed where it does not count."""
        before = self.live
        self.live = before and live
        try:
            return self._level(least)
        finally:
            self.live = before

    def _chosen(self, test: int) -> int:
        self._take()
        yes = self._part(ASSIGN, bool(test))
        if self._take() != ("sign", ":"):
            raise UnknowableError(":")
        no = self._part(QUESTION, not test)
        return yes if test else no

    def _single(self, least: int) -> int:
        kind, text = self._take()
        if kind == "number":
            return whole(number_of(text))
        if kind == "name":
            return self._named(text, least)
        if text == "(":
            number = self._level(0)
            if self._take() != ("sign", ")"):
                raise UnknowableError(")")
            return number
        if text in ("++", "--"):
            kind, name = self._next()
            if kind == "name":
                self._take()
                return self._set(name, self._read(name) + (1 if text == "++" else -1))
            return UNARY[text[0]](UNARY[text[0]](self._single(least)))
        if text in UNARY:
            return whole(UNARY[text](self._single(14)))
        raise UnknowableError(text)

    def _named(self, name: str, least: int) -> int:
        kind, sign = self._next()
        if kind == "sign" and sign in ("++", "--"):
            self._take()
            before = self._read(name)
            self._set(name, before + (1 if sign == "++" else -1))
            return before
        if kind == "sign" and sign.endswith("=") and sign not in ("==", "!=", "<=", ">=") and least <= 14:
            self._take()
            right = self._level(ASSIGN)
            if sign == "=":
                return self._set(name, right)
            return self._set(name, whole(BINARY[sign[:-1]][1](self._read(name), right)) if self.live else 0)
        return self._read(name)

    def _read(self, name: str) -> int:
        if not self.live:
            return 0
        return Arithmetic(self.get(name), self.get, self.set, self.depth + 1).value()

    def _set(self, name: str, number: int) -> int:
        if self.live:
            self.set(name, str(whole(number)))
        return whole(number)


def number_of(text: str) -> int:
    """Parses a shell number: decimal, ``0x`` and ``0`` in front, or ``base#digits``."""
    base, hash_, digits = text.partition("#")
    try:
        if hash_:
            if not 2 <= int(base) <= 36:
                raise UnknowableError(text)
            return int(digits, int(base))
        if text[:2].lower() == "0x":
            return int(text, 16)
        return int(text, 8) if text.startswith("0") else int(text)
    except ValueError:
        raise UnknowableError(text) from None
