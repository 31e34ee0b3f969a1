r"""Finds what stands in ``\boxed{…}``."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*\{|\\(?:boxed|fbox)(?![a-zA-Z])|\\.|[{}]", re.DOTALL)
_WHOLE = re.compile(r"[\s$]*(\\(?:boxed|fbox)(?![a-zA-Z]).*?)[\s$.]*", re.DOTALL)
_BARE = re.compile(r"\s*((?:[+-]\s*)?[0-9](?:[0-9.,/]*[0-9])?(?:\s*\\?%)?|[a-zA-Z](?![a-zA-Z]))")
_COMMAND = re.compile(r"\s*([+-]?\s*\\[a-zA-Z]+)")
_NESTED = 20
"""Boxes in a box that are looked into."""
_ARGUMENTS = 4


def last_boxed(text: str) -> str | None:
    r"""Finds the content of the last ``\boxed{…}`` (or ``\fbox{…}``) with balanced braces, or behind ``\boxed`` without
    braces; a box that holds nothing but a box is looked into. None if there is none.

    >>> last_boxed(r"\boxed{1} or rather \boxed{\frac{1}{2}}"), last_boxed(r"so $\boxed 5$.")
    ('\\frac{1}{2}', '5')
    """
    found = _last(text)
    for _ in range(_NESTED):
        if found is None or not (whole := _WHOLE.fullmatch(found)) or not _is_one_box(whole[1]):
            break
        found = _last(whole[1])
    return found


def _is_one_box(text: str) -> bool:
    """Whether the box that the text begins with is all of it."""
    depth = 0
    for token in _TOKENS.finditer(text):
        opens = token[0].endswith("{") and token[0] != r"\{"
        depth += opens - (token[0] == "}")
        if depth == 0 and token.start() > 0:
            return token.end() == len(text)
        if depth == 0 and not opens:  # a box without braces
            return _behind(text, token.end()) == text[token.end() :].strip()
    return False


def _last(text: str) -> str | None:
    opened: list[int | None] = []  # start of the box's content for each open brace; None: no box
    found = None
    for token in _TOKENS.finditer(text):
        sign = token[0]
        if sign.endswith("{") and sign != r"\{":
            opened.append(token.end() if len(sign) > 1 else None)
        elif sign == "}" and opened:
            begin = opened.pop()
            found = found if begin is None else text[begin : token.start()]
        elif sign in (r"\boxed", r"\fbox"):
            bare = _behind(text, token.end())
            found = found if bare is None else bare
    return found


def _behind(text: str, start: int) -> str | None:
    r"""What TeX and its writers put into a box without braces: a number, a letter, a command with its arguments."""
    if bare := _BARE.match(text, start):
        return bare[1]
    if not (command := _COMMAND.match(text, start)):
        return None
    end = command.end()
    for _ in range(_ARGUMENTS):
        if text[end : end + 1].isdigit():
            end += 1
        elif (closed := _group_end(text, end)) is not None:
            end = closed
        else:
            break
    return text[command.start(1) : end]


def _group_end(text: str, start: int) -> int | None:
    """The end of the group in braces that begins here; None if none does, or if it is never closed."""
    if text[start : start + 1] != "{":
        return None
    depth = 0
    for token in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, start + 300):
        depth += (token[0] == "{") - (token[0] == "}")
        if depth == 0:
            return token.end()
    return None
