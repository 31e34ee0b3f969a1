"""What ``$NAME`` and ``${NAME…}`` stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from embodied.migrate.shell.state import Array, State
from embodied.migrate.shell.texts import patterns
from embodied.migrate.shell.texts.scan import skip
from embodied.migrate.shell.texts.sums import UnknowableError
from embodied.migrate.shell.texts.text import EMPTY, Piece, Text, Words, as_text, joined, known, unknown

HEAD = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?$!_-])")
DEFAULTS = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
CUTS = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
NEW = re.compile(r"/([/#%]?)(.*)", re.DOTALL)
CASES = re.compile(r"(\^\^?|,,?)(.*)", re.DOTALL)
ALL = ("@", "*")


class WordExpander(NamedTuple):
    """Expands the words within a ``${…}``: the shell state, and the function that does it.

    Args:
        expand: a word, what the shell knows, and whether it is in quotes → what its parts stand for.
    """

    state: State
    expand: Callable[[str, State, bool], list[Piece]]


def parameter(inner: str, source: str, reader: WordExpander, in_quotes: bool) -> list[Piece]:
    """Expands a shell parameter ``$NAME`` or ``${…}``; unknown text where only a run could tell.

    Args:
        inner: what stands in its braces.
        source: how the script writes it.
    """
    try:
        return _parameter(inner, reader, in_quotes)
    except UnknowableError:
        return [Piece(unknown(source), in_quotes)]


def _parameter(inner: str, reader: WordExpander, in_quotes: bool) -> list[Piece]:
    mark = inner[0] if inner[:1] in ("#", "!") and len(inner) > 1 and HEAD.match(inner, 1) else ""
    head = HEAD.match(inner, len(mark))
    if not head:
        raise UnknowableError(inner)
    name, rest = head[1], inner[head.end() :]
    index, rest = _index(rest, reader)
    if mark == "!":
        return _through(name, index, rest, reader, in_quotes)
    every = name in ALL or index in ALL
    if mark == "#":
        return [Piece(_length(name, index, every, reader, rest), in_quotes)]
    if every:
        return _all(name, index if index in ALL else name, rest, reader, in_quotes)
    return _one(name, index, rest, reader, in_quotes)


def _index(rest: str, reader: WordExpander) -> tuple[str, str]:
    """The text in brackets behind a name, and what follows."""
    if not rest.startswith("["):
        return "", rest
    at = 1
    while at < len(rest) and rest[at] != "]":
        at = skip(rest, at)
    inner = as_text(reader.expand(rest[1:at], reader.state, False))
    if not inner.known:
        raise UnknowableError(rest)
    return inner.shown, rest[at + 1 :]


def _pattern(raw: str, reader: WordExpander) -> str:
    return _sure(patterns.of_pieces(reader.expand(raw, reader.state, False)))


def _sure(text: Text) -> str:
    if not text.known:
        raise UnknowableError(text.shown)
    return text.shown


def _through(name: str, index: str, rest: str, reader: WordExpander, in_quotes: bool) -> list[Piece]:
    """``${!NAME}``: what the name that NAME says stands for; ``${!ARRAY[@]}``: its keys."""
    if index in ALL:
        array = reader.state.array(name)
        if array is None or not array.whole:
            raise UnknowableError(name)
        return [Piece(Words(tuple(map(known, array.items))), in_quotes)]
    other = _sure(_set(reader.state.text(name, index), name, reader))
    if rest.startswith(ALL) or not HEAD.match(other):
        raise UnknowableError(rest)
    return _parameter(f"{other}{rest}", reader, in_quotes)


def _set(text: Text | None, name: str, reader: WordExpander) -> Text:
    if text is None and not reader.state.knows(name):
        raise UnknowableError(name)
    return text or EMPTY


def _length(name: str, index: str, every: bool, reader: WordExpander, rest: str) -> Text:
    if rest:
        raise UnknowableError(rest)
    if not every:
        return known(str(len(_sure(_set(reader.state.text(name, index), name, reader)))))
    array = reader.state.array(name)
    if (array is None and not reader.state.knows(name)) or (array is not None and not array.whole):
        raise UnknowableError(name)
    return known(str(len(array.items) if array else 0))


def _all(name: str, star: str, rest: str, reader: WordExpander, in_quotes: bool) -> list[Piece]:
    """All words of an array, or of the arguments."""
    array = reader.state.array(name)
    if default := DEFAULTS.fullmatch(rest):
        empty = array is None or not array.items
        some = array is not None and any(text.is_nonempty for text in array.items.values())
        if not empty and not some and not (array is not None and array.whole):
            raise UnknowableError(name)
        if default[2] == "+":
            return [] if empty else reader.expand(default[3], reader.state, in_quotes)
        if empty:
            return reader.expand(default[3], reader.state, in_quotes)
        rest = ""
    if array is None:
        if not reader.state.knows(name):
            raise UnknowableError(name)
        return []
    words = tuple(array.items.values())
    if rest.startswith(":"):
        words = _sliced(words, rest, array, name in ALL, reader)
    elif rest:
        words = tuple(known(_changed(_sure(word), rest, reader)) for word in words)
    if star == "*" and in_quotes:
        return [Piece(joined(words, reader.state.blanks[:1]), True)]
    return [Piece(Words(words), True)] if in_quotes else _apart(words, reader.state.blanks[:1])


def _apart(words: tuple[Text, ...], blank: str) -> list[Piece]:
    """Words that are not quoted: each is split again."""
    found = []
    for number, word in enumerate(words):
        found += [*([Piece(known(blank))] if number else []), Piece(word)]
    return found


def _sliced(
    words: tuple[Text, ...], rest: str, array: Array, arguments: bool, reader: WordExpander
) -> tuple[Text, ...]:
    if not array.whole or array.keyed:
        raise UnknowableError(rest)
    begin, length = _bounds(rest, reader)
    if arguments:
        if begin == 0:
            raise UnknowableError("$0")
        begin -= begin > 0
    begin = begin if begin >= 0 else max(len(words) + begin, 0)
    return words[begin:] if length is None else words[begin : begin + length]


def _bounds(rest: str, reader: WordExpander) -> tuple[int, int | None]:
    """The numbers of ``:begin:length``."""
    begin, colon, length = rest[1:].partition(":")
    numbers = [_number(part, reader) for part in ([begin, length] if colon else [begin])]
    return numbers[0], numbers[1] if colon else None


def _number(raw: str, reader: WordExpander) -> int:
    return reader.state.number(_sure(as_text(reader.expand(raw, reader.state, True))))


def _one(name: str, index: str, rest: str, reader: WordExpander, in_quotes: bool) -> list[Piece]:
    text = reader.state.text(name, index)
    if default := DEFAULTS.fullmatch(rest):
        return _default(name, index, text, default, reader, in_quotes)
    if text is None and not reader.state.knows(name):
        raise UnknowableError(name)
    if not rest:
        return [Piece(text or EMPTY, in_quotes)]
    return [Piece(known(_changed(_sure(text or EMPTY), rest, reader)), in_quotes)]


def _default(
    name: str, index: str, text: Text | None, default: re.Match[str], reader: WordExpander, in_quotes: bool
) -> list[Piece]:
    """``${NAME:-other}``, and with ``=``, ``+`` and ``?``; without the colon an empty text is one."""
    colon, sign, raw = default.groups()
    if text is not None and not text.known and colon and not text.is_nonempty:
        raise UnknowableError(name)
    there = text is not None and (bool(text.shown) or not colon)
    if sign == "+":
        return reader.expand(raw, reader.state, in_quotes) if there else [Piece(EMPTY, in_quotes)]
    if there:
        return [Piece(text or EMPTY, in_quotes)]
    if sign == "?":
        raise UnknowableError(name)
    found = reader.expand(raw, reader.state, in_quotes)
    if sign == "=":
        new = as_text(found)
        reader.state.set(name, new, index or None)
        return [Piece(new, in_quotes)]
    return found


def _changed(text: str, rest: str, reader: WordExpander) -> str:
    """A text after ``#``, ``%``, ``/``, ``^``, ``,`` or ``:begin:length``."""
    if rest.startswith(":"):
        begin, length = _bounds(rest, reader)
        begin = begin if begin >= 0 else len(text) + begin
        if begin < 0:
            return ""
        end = len(text) if length is None else begin + length if length >= 0 else len(text) + length
        return text[begin:end]
    if cut := CUTS.fullmatch(rest):
        change = patterns.without_start if cut[1][0] == "#" else patterns.without_end
        return change(text, _pattern(cut[2], reader), len(cut[1]) == 2)
    if new := NEW.fullmatch(rest):
        old, by = _halves(new[2])
        new_text = _sure(as_text(reader.expand(by, reader.state, False)))
        return patterns.replaced(text, _pattern(old, reader), new_text, new[1])
    if case := CASES.fullmatch(rest):
        return _cased(text, case[1], _pattern(case[2], reader) or "?")
    raise UnknowableError(rest)


def _halves(raw: str) -> tuple[str, str]:
    at = 0
    while at < len(raw) and raw[at] != "/":
        at = skip(raw, at)
    return raw[:at], raw[at + 1 :]


def _cased(text: str, sign: str, pattern: str) -> str:
    change: Callable[[str], str] = str.upper if sign[0] == "^" else str.lower
    letters = [change(one) if patterns.matches(one, pattern) else one for one in text]
    return "".join(letters) if len(sign) == 2 else "".join([*letters[:1], text[1:]])
