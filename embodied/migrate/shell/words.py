"""Words of a shell: quotes, escapes, ``$NAME``, ``${…}``, ``$((…))``; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from embodied.migrate.shell.parameters import WordExpander, parameter
from embodied.migrate.shell.state import State
from embodied.migrate.shell.texts import patterns
from embodied.migrate.shell.texts.scan import UnclosedError, braces, skip
from embodied.migrate.shell.texts.sums import UnknowableError
from embodied.migrate.shell.texts.text import EMPTY, Piece, Text, as_text, as_words, known, unknown

NAMED = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!_-])")
ANSI = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)
SIGNS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}


def words(raw: str, state: State) -> list[Text]:
    """Expands a raw shell word into the words of a command.

    Args:
        raw: as the script writes it.
    """
    found = []
    for one in _braces(raw):
        found += as_words(pieces(_home(one), state), state.blanks)
    return found


def _braces(raw: str) -> list[str]:
    try:
        return braces(raw)
    except UnclosedError:
        return [raw]


def text(raw: str, state: State) -> Text:
    """Expands a raw shell word into one text, as an assignment does."""
    return as_text(pieces(_home(raw), state))


def pattern(raw: str, state: State, itself: Callable[[str], str] = patterns.itself) -> Text:
    """Expands a raw shell word into a pattern, in which quoted text matches only itself.

    Args:
        itself: makes a pattern of a quoted text.
    """
    return patterns.of_pieces(pieces(raw, state), itself)


def _home(raw: str) -> str:
    """The user's folder in the place of ``~``, at the beginning or behind the ``=`` of a name."""
    return re.sub(r"^([A-Za-z_]\w*=)?~(?=/|$)", lambda at: f"{at[1] or ''}{Path.home()}", raw)


def pieces(raw: str, state: State, in_quotes: bool = False) -> Iterator[Piece]:
    """Expands a raw shell word piece by piece: quotes, parameters, substitutions.

    Args:
        in_quotes: the word stands within double quotes.
    """
    try:
        yield from list(_pieces(raw, state, in_quotes))
    except UnclosedError:
        yield Piece(unknown(raw), True)


def _listed(raw: str, state: State, in_quotes: bool) -> list[Piece]:
    return list(pieces(raw, state, in_quotes))


def _pieces(raw: str, state: State, in_quotes: bool) -> Iterator[Piece]:
    at = begun = 0
    while at < len(raw):
        char = raw[at]
        if char not in "\\$`\"'" or (char == "'" and in_quotes):
            at += 1
            continue
        if begun < at:
            yield Piece(known(raw[begun:at]), in_quotes)
        end, found = _part(raw, at, state, in_quotes)
        yield from found
        at = begun = end
    if begun < at:
        yield Piece(known(raw[begun:at]), in_quotes)


def _part(raw: str, at: int, state: State, in_quotes: bool) -> tuple[int, list[Piece]]:
    """Where a quoted part or a ``$…`` ends, and what it stands for."""
    if raw[at] == "$" and (name := NAMED.match(raw, at)):
        return name.end(), parameter(name[1], name[0], WordExpander(state, _listed), in_quotes)
    end = skip(raw, at, in_quotes)
    source = raw[at:end]
    if source[0] == "\\":
        return end, [Piece(_escaped(source, in_quotes), True)]
    if source[0] == "'":
        return end, [Piece(known(source[1:-1]), True)]
    if source[0] == '"' or source.startswith('$"'):
        inner = source[source.index('"') + 1 : -1] if len(source) > 1 else ""
        return end, [Piece(EMPTY, True), *pieces(inner, state, in_quotes=True)]
    if raw.startswith('$"', at) and not in_quotes:
        return at + 1, []
    if source.startswith("$'"):
        return end, [Piece(known(ANSI.sub(_ansi, source[2:-1])), True)]
    if source.startswith("${"):
        return end, parameter(source[2:-1], source, WordExpander(state, _listed), in_quotes)
    if inner_sum := _sum_in(source):
        return end, [Piece(_computed(inner_sum, source, state), in_quotes)]
    if len(source) == 1:  # a dollar that stands for itself
        return end, [Piece(known(source), in_quotes)]
    return end, [Piece(unknown(" ".join(source.split())), in_quotes)]


def _escaped(source: str, in_quotes: bool) -> Text:
    if source[1:] == "\n":
        return EMPTY
    return known(source if in_quotes and source[1:] not in ("$", "`", '"', "\\") else source[1:])


def _ansi(at: re.Match[str]) -> str:
    code = at[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return chr(ord(code[1]) & 0x1F) if code[0] == "c" and len(code) == 2 else SIGNS.get(code, code)


def _sum_in(source: str) -> str:
    """What stands in ``$((…))`` or ``$[…]``."""
    if source.startswith("$["):
        return source[2:-1] or " "
    if not (source.startswith("$((") and source.endswith("))")):
        return ""
    depth = 0
    for number, char in enumerate(source[2:-1]):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if not depth:
            return source[3:-2] or " " if number == len(source) - 4 else ""
    return ""


def _computed(inner: str, source: str, state: State) -> Text:
    sum_ = as_text(pieces(inner, state, in_quotes=True))
    try:
        if sum_.known:
            return known(str(state.number(sum_.shown)))
    except UnknowableError:
        pass
    return unknown(" ".join(source.split()))
