"""Where a part of a shell's word ends: quotes, ``${…}``, ``$(…)``, backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

BLANKS = " \t\n"


class UnclosedError(ValueError):
    """A quote or a bracket of a script has no end."""


def skip(raw: str, at: int, in_quotes: bool = False) -> int:
    """Returns the offset behind the lexical unit that begins at ``at``: a quoted text, a ``$…``, or one character.

    Args:
        in_quotes: it stands within double quotes, where an apostrophe is one.

    Raises:
        UnclosedError: it does not end.
    """
    char, two = raw[at], raw[at : at + 2]
    if char == "\\":
        return min(at + 2, len(raw))
    if char == "'" and not in_quotes:
        return _found(raw, "'", at + 1)
    if two == "$'" and not in_quotes:
        return _until(raw, at + 2, "'", plain=True)
    if char == '"':
        return _until(raw, at + 1, '"', in_quotes=True)
    if char == "`":
        return _until(raw, at + 1, "`", plain=True)
    if two in CLOSERS:
        return _until(raw, at + 2, CLOSERS[two], in_quotes=in_quotes and two == "${")
    return at + 1


HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n(?:.*?\n)??[ \t]*\2(?=[\n)]|$)", re.DOTALL)
"""A text within a command, to the line with its name alone: quotes in it are none."""
CLOSERS = {"$(": ")", "${": "}", "$[": "]", "<(": ")", ">(": ")"}


def _found(raw: str, closer: str, at: int) -> int:
    end = raw.find(closer, at)
    if end < 0:
        raise UnclosedError(raw)
    return end + 1


def _until(raw: str, at: int, closer: str, in_quotes: bool = False, plain: bool = False) -> int:
    while at < len(raw):
        char = raw[at]
        if char == closer:
            return at + 1
        if plain:
            at += 2 if char == "\\" else 1
        elif closer == ")" and (text := HEREDOC.match(raw, at)):
            at = text.end()
        elif char == "#" and closer == ")" and raw[at - 1] in BLANKS:
            at = _line_end(raw, at)
        elif char == "(" and closer == ")":
            at = _until(raw, at + 1, ")")
        else:
            at = skip(raw, at, in_quotes)
    raise UnclosedError(raw)


def _line_end(raw: str, at: int) -> int:
    end = raw.find("\n", at)
    return end if end >= 0 else len(raw)


def simple(raw: str) -> tuple[list[str], int]:
    """Splits the simple command at a text's beginning into raw words, and gives its end offset;
    redirections are left out.

    Raises:
        UnclosedError: a quote or a bracket does not end.
    """
    found: list[str] = []
    at, dropped = 0, 0
    while at < len(raw):
        if redirect := REDIRECT.match(raw, at):
            at, dropped = redirect.end(), dropped if redirect[0].endswith("-") else len(found) + 1
        elif raw.startswith("\\\n", at) or raw[at] in " \t":
            at += 2 if raw[at] == "\\" else 1
        elif raw[at] in ENDS or raw[at] == "#":
            break
        else:
            end = _word_end(raw, at)
            if dropped != len(found) + 1:
                found.append(raw[at:end])
            at, dropped = end, 0
    return found, at


ENDS = "\n;&|)("
REDIRECT = re.compile(r"(?:\d+|&)?(?:<<<|<<-?|<>|>>|>\||[<>]&-?|<(?!\()|>(?!\())")
ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\(")


def _word_end(raw: str, at: int) -> int:
    if array := ARRAY.match(raw, at):
        at = _until(raw, array.end(), ")")
    while at < len(raw) and raw[at] not in ENDS + BLANKS and not (raw[at] in "<>" and raw[at + 1 : at + 2] != "("):
        at = skip(raw, at)
    return at


def tokens(raw: str) -> Iterator[str]:
    """Yields the raw words of a line, with their quotes and ``$``."""
    at = begun = 0
    while at < len(raw):
        if raw.startswith("\\\n", at) or raw[at] in BLANKS:
            if begun < at:
                yield raw[begun:at]
            at = begun = at + (2 if raw[at] == "\\" else 1)
        else:
            at = skip(raw, at)
    if begun < len(raw):
        yield raw[begun:]


def braces(raw: str) -> list[str]:
    """Expands shell braces, ``a{b,c}d`` and ``{1..3}``; a word without them is returned alone."""
    at = 0
    while at < len(raw):
        if raw[at] == "{" and (found := _brace(raw, at)):
            end, inner = found
            return [f"{raw[:at]}{one}" for middle in inner for one in braces(middle + raw[end:])]
        at = skip(raw, at)
    return [raw]


def _brace(raw: str, begin: int) -> tuple[int, list[str]] | None:
    """Where the brace ends, and what it stands for; null if it is none of a shell."""
    at, depth, cuts = begin + 1, 1, [begin]
    while at < len(raw) and depth:
        if raw[at] in BLANKS:
            return None
        depth += {"{": 1, "}": -1}.get(raw[at], 0)
        if depth == 0 or (raw[at] == "," and depth == 1):
            cuts.append(at)
        at = skip(raw, at)
    if depth:
        return None
    if len(cuts) > 2:
        parts = [raw[a + 1 : b] for a, b in pairwise(cuts)]
        return at, [one for part in parts for one in braces(part)]
    return (at, _range(raw[begin + 1 : at - 1])) if _range(raw[begin + 1 : at - 1]) else None


def _range(text: str) -> list[str]:
    bounds = text.split("..")
    try:
        first, last = int(bounds[0]), int(bounds[1])
        step = abs(int(bounds[2])) or 1 if len(bounds) == 3 else 1
    except (ValueError, IndexError):
        return []
    if len(bounds) > 3 or abs(last - first) > 10_000:
        return []
    zeros = any(one.lstrip("-").startswith("0") and len(one.lstrip("-")) > 1 for one in bounds[:2])
    width = max(map(len, bounds[:2])) if zeros else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [f"{number:0{width}d}" for number in numbers]
