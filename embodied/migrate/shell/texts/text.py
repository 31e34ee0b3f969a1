"""Texts of a shell of which a part may not be known before the script runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A piece of a shell text: known, or as the script writes what cannot be known.

    Args:
        text: what it is, or how the script writes it if that is not known.
        given: it is what a caller may give in the place of the script's own default.
    """

    text: str
    known: bool = True
    given: bool = False


@dataclass(frozen=True)
class Text:
    """A shell text of known and unknown pieces (:class:`Part`)."""

    parts: tuple[Part, ...] = ()

    @property
    def known(self) -> bool:
        """Whether every piece is known."""
        return all(part.known for part in self.parts)

    @property
    def given(self) -> bool:
        """Whether a piece is a default that the script's caller may replace."""
        return any(part.given for part in self.parts)

    @property
    def shown(self) -> str:
        """The text itself if all of it is known, else with the script's words for the rest."""
        return "".join(part.text for part in self.parts)

    @property
    def is_nonempty(self) -> bool:
        """Whether the text cannot be empty."""
        return any(part.text and (part.known or part.given) for part in self.parts)

    def __add__(self, other: Text) -> Text:
        parts = [part for part in (*self.parts, *other.parts) if part.text]
        if len(parts) > 1 and all(part.known for part in parts):
            return known("".join(part.text for part in parts))
        return Text(tuple(parts))


@dataclass(frozen=True)
class Words:
    """Several shell words that one written word expands to, as ``"${ARGS[@]}"`` does."""

    words: tuple[Text, ...]


@dataclass(frozen=True)
class Piece:
    """An expanded piece of a shell word; a quoted one is not split at blanks."""

    value: Text | Words
    quoted: bool = False


def known(text: str) -> Text:
    """Makes a shell text that is known."""
    return Text((Part(text),) if text else ())


def unknown(source: str, given: bool = False) -> Text:
    """Makes a shell text whose value cannot be known without a run.

    Args:
        source: how the script writes it.
    """
    return Text((Part(source, False, given),))


EMPTY = Text()
BLANKS = " \t\n"


def joined(texts: Iterable[Text], between: str = " ") -> Text:
    """Joins shell texts with ``between``."""
    found = EMPTY
    for number, text in enumerate(texts):
        found = found + known(between) + text if number else text
    return found


def as_text(pieces: Iterable[Piece]) -> Text:
    """Joins expanded pieces into one text, as a shell assignment does: nothing is split."""
    found = EMPTY
    for piece in pieces:
        found = found + (joined(piece.value.words) if isinstance(piece.value, Words) else piece.value)
    return found


def as_words(pieces: Iterable[Piece], blanks: str = BLANKS) -> list[Text]:
    """Splits expanded pieces into the words of a command: unquoted text at its blanks, and empty unquoted words vanish.

    Args:
        blanks: what ``IFS`` says is one.
    """
    words: list[Text | None] = [None]
    for piece in pieces:
        for number, text in enumerate(_split(piece, blanks)):
            if number:
                words.append(None)
            if text is not None:
                words[-1] = text if words[-1] is None else words[-1] + text
    return [word for word in words if word is not None]


def _split(piece: Piece, blanks: str) -> Iterator[Text | None]:
    """What is added to a word, and to each further word; null where nothing stands."""
    if isinstance(piece.value, Words):
        yield from piece.value.words or [None]
    elif piece.quoted:
        yield piece.value
    else:
        yield from _at_blanks(piece.value.parts, blanks)


def _at_blanks(parts: Sequence[Part], blanks: str) -> Iterator[Text | None]:
    now: Text | None = None
    for part in parts:
        if not part.known:
            now = (now or EMPTY) + Text((part,))
            continue
        for number, text in enumerate(re.split(f"[{re.escape(blanks)}]", part.text) if blanks else [part.text]):
            if number:
                yield now
                now = None
            if text:
                now = (now or EMPTY) + known(text)
    yield now
