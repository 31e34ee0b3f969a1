"""Conditions of a shell: ``[ … ]``, ``[[ … ]]`` and ``test``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from embodied.migrate.shell.state import State
from embodied.migrate.shell.texts.patterns import matches
from embodied.migrate.shell.texts.sums import UnknowableError
from embodied.migrate.shell.texts.text import Text
from embodied.migrate.shell.words import pattern, text

NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
TEXTS = ("=", "==", "!=", "=~", "<", ">")
BINARY = (*NUMBERS, *TEXTS, "-nt", "-ot", "-ef")
UNARY = re.compile(r"-[a-zA-Z]")
ALONE = re.compile(r"\"?\$(?:\{(\w+)\}|(\w+))\"?")
NOTHING = ('""', "''")


def holds(tokens: Sequence[str], state: State, double: bool) -> bool | None:
    """Evaluates a shell condition (``[ … ]``, or ``[[ … ]]`` if ``double``); None if its outcome cannot be known
    without a run.

    Args:
        tokens: its words, as the script writes them.
        double: it is one of ``[[ … ]]``, which has patterns.
    """
    test = _Test(list(tokens), state, double)
    try:
        found = test.any_of()
    except (IndexError, UnknowableError):
        return None
    return found if test.at == len(test.tokens) else None


def asks_whether_empty(tokens: Sequence[str], state: State) -> tuple[str, bool] | None:
    """Finds the unset name that a shell condition tests for emptiness, and the condition's outcome if it is empty; None
    otherwise."""
    said = tokens[:1] != ["!"]
    rest = list(tokens[0 if said else 1 :])
    if len(rest) == 3 and rest[1] in ("=", "==", "!=") and rest[2] in NOTHING:
        rest = ["-z" if rest[1] != "!=" else "-n", rest[0]]
    if len(rest) == 1:
        rest = ["-n", *rest]
    if len(rest) != 2 or rest[0] not in ("-z", "-n") or not (alone := ALONE.fullmatch(rest[1])):
        return None
    name = alone[1] or alone[2]
    return None if state.knows(name) else (name, (rest[0] == "-z") == said)


def asks_whether_same(tokens: Sequence[str], state: State) -> tuple[Text, str, bool] | None:
    """Finds the unknown text that a shell condition compares with a word: the text, the word, and the outcome if they
    are equal; None otherwise."""
    if len(tokens) != 3 or tokens[1] not in ("=", "==", "!="):
        return None
    value, word = text(tokens[0], state), tokens[2].strip("\"'")
    if value.known or len(value.parts) != 1 or not re.fullmatch(r"[\w.:/-]+", word):
        return None
    return value, word, tokens[1] != "!="


class _Test:
    def __init__(self, tokens: list[str], state: State, double: bool) -> None:
        self.tokens, self.state, self.double, self.at = tokens, state, double, 0

    def any_of(self) -> bool | None:
        found = self._all_of()
        while self._is("||", "-o"):
            other = self._all_of()
            found = True if found or other else None if None in (found, other) else False
        return found

    def _all_of(self) -> bool | None:
        found = self._one()
        while self._is("&&", "-a"):
            other = self._one()
            found = False if found is False or other is False else None if None in (found, other) else True
        return found

    def _is(self, *signs: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at] in signs:
            self.at += 1
            return True
        return False

    def _take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def _one(self) -> bool | None:
        rest = self.tokens[self.at :]
        if len(rest) > 2 and rest[1] in BINARY:
            return self._compared()
        if self._is("!"):
            found = self._one()
            return None if found is None else not found
        if self._is("("):
            found = self.any_of()
            if not self._is(")"):
                raise IndexError
            return found
        if len(rest) > 1 and UNARY.fullmatch(rest[0]) and rest[1] not in ("&&", "||", "-a", "-o"):
            return self._asked()
        return _is_some(self._text())

    def _text(self) -> Text:
        return text(self._take(), self.state)

    def _asked(self) -> bool | None:
        sign = self._take()
        if sign == "-v":
            name = self._sure(self._text())
            return self.state.text(name) is not None if self.state.knows(name) else None
        given = self._text()
        if sign not in ("-z", "-n"):
            return None  # about files, or a terminal
        some = _is_some(given)
        return None if some is None else some == (sign == "-n")

    def _sure(self, given: Text) -> str:
        if not given.known:
            raise UnknowableError(given.shown)
        return given.shown

    def _compared(self) -> bool | None:
        left, sign = self._text(), self._take()
        if sign == "=~":
            right = pattern(self._take(), self.state, re.escape)
        else:
            right = pattern(self._take(), self.state) if self.double and sign in TEXTS else self._text()
        if not (left.known and right.known):
            return None
        if sign in NUMBERS:
            return NUMBERS[sign](self.state.number(left.shown), self.state.number(right.shown))
        return self._texts(left.shown, sign, right.shown)

    def _texts(self, left: str, sign: str, right: str) -> bool | None:
        if sign == "=~":
            try:
                return re.search(right, left) is not None
            except re.error:
                return None
        if sign in ("<", ">"):
            return left < right if sign == "<" else left > right
        if sign not in TEXTS:
            return None
        same = matches(left, right) if self.double else left == right
        return same == (sign != "!=")


def _is_some(given: Text) -> bool | None:
    return bool(given.shown) if given.known else True if given.is_nonempty else None
