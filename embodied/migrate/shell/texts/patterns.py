"""Patterns of a shell, ``*.yaml`` and ``[a-z]?``, on texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from embodied.migrate.shell.texts.text import Piece, Text, as_text, known

SPECIAL = re.compile(r"([*?\[\]\\])")
CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9a-fA-F", "blank": r" \t", "word": r"\w",
}  # fmt: skip


def expression(pattern: str) -> str:
    """Translates a shell pattern into a regular expression; a character after a backslash stands for itself."""
    found, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            found, at = found + re.escape(pattern[at + 1]), at + 2
        elif char == "[" and (end := _end_of_set(pattern, at)):
            found, at = found + _set(pattern[at + 1 : end]), end + 1
        else:
            found, at = found + {"*": ".*", "?": "."}.get(char, re.escape(char)), at + 1
    return found


def _end_of_set(pattern: str, at: int) -> int:
    begin = at + 2 if pattern[at + 1 : at + 2] in ("!", "^") else at + 1
    end = pattern.find("]", begin + 1)
    while end > 0 and pattern.rfind("[:", begin, end) > pattern.rfind(":]", begin, end + 1):
        end = pattern.find("]", end + 1)
    return max(end, 0)


def _set(inner: str) -> str:
    no = "^" if inner[0] in "!^" else ""
    inner = inner[1:] if no else inner
    for name in CLASSES:
        inner = inner.replace(f"[:{name}:]", f"\0{name}\0")
    inner = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner)
    for name, signs in CLASSES.items():
        inner = inner.replace(f"\0{name}\0", signs)
    return f"[{no}{inner}]"


def itself(text: str) -> str:
    """Escapes a text so that, as a shell pattern, it matches only itself."""
    return SPECIAL.sub(r"\\\1", text)


def of_pieces(pieces: Iterable[Piece], itself: Callable[[str], str] = itself) -> Text:
    """Joins the expanded pieces of a word into a shell pattern; quoted pieces match only themselves.

    Args:
        itself: makes a pattern of a quoted text.
    """
    return as_text(
        Piece(known(itself(piece.value.shown)))
        if piece.quoted and isinstance(piece.value, Text) and piece.value.known
        else piece
        for piece in pieces
    )


def matches(text: str, pattern: str) -> bool:
    """Returns whether a text matches a shell pattern as a whole."""
    return _compiled(expression(pattern)).fullmatch(text) is not None


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        return re.compile(r"(?!)")


def without_start(text: str, pattern: str, longest: bool) -> str:
    """Removes a matching prefix, as ``${A#pattern}`` and ``${A##pattern}`` do."""
    test = _compiled(expression(pattern))
    ends = range(len(text), -1, -1) if longest else range(len(text) + 1)
    return next((text[end:] for end in ends if test.fullmatch(text, 0, end)), text)


def without_end(text: str, pattern: str, longest: bool) -> str:
    """Removes a matching suffix, as ``${A%pattern}`` and ``${A%%pattern}`` do."""
    test = _compiled(expression(pattern))
    begins = range(len(text) + 1) if longest else range(len(text), -1, -1)
    return next((text[:begin] for begin in begins if test.fullmatch(text, begin)), text)


def replaced(text: str, pattern: str, new: str, where: str) -> str:
    """Replaces matches of a shell pattern, as ``${A/pattern/new}`` does; ``where`` says at which places.

    Args:
        where: ``/`` everywhere, ``#`` at the start, ``%`` at the end, empty at the first place.
    """
    if not pattern:
        return f"{new}{text}" if where == "#" else f"{text}{new}" if where == "%" else text
    if where == "%":
        test = _compiled(expression(pattern))
        return next((text[:begin] + new for begin in range(len(text) + 1) if test.fullmatch(text, begin)), text)
    test = _compiled(expression(pattern))
    if where == "#":
        found = test.match(text)
        return new + text[found.end() :] if found else text
    return test.sub(lambda found: new if found[0] else "", text, count=0 if where == "/" else 1)
