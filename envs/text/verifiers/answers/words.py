"""Answers in words and of fixed form: letters of a choice, times of the day, dates, "no solution", numbers in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from .number import in_words, spelled
from .tokens import Token
from .values import Answer

_MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
    "november", "december",
]  # fmt: skip
_MONTH = "|".join(f"{month}|{month[:3]}" if month != "may" else month for month in _MONTHS) + "|sept"
_DAY = r"([0-9]{1,2})\s?(?:st|nd|rd|th)?"
_CLOCK = re.compile(
    r"([0-9]{1,2})(?:\s?:\s?([0-9]{2}))?(?:\s?:\s?([0-9]{2}))?\s?(a\.?\s?m\.?|p\.?\s?m\.?|o'\s?clock|noon|midnight)?",
    re.IGNORECASE,
)
_DATES = (
    re.compile(rf"(?P<month>{_MONTH})\.?\s{_DAY}(?:\s?,?\s?(?P<year>[0-9]{{4}}))?", re.IGNORECASE),
    re.compile(rf"(?:the\s)?{_DAY}\s(?:of\s)?(?P<month>{_MONTH})\.?(?:\s?,?\s?(?P<year>[0-9]{{4}}))?", re.IGNORECASE),
)
_ISO = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_LETTER = re.compile(r"\(([A-Z])\)|([A-Z])[.):]?")
_NAMED = re.compile(r"(?i:option|choice|answer)\s?:?\s?\(?([A-Za-z])\)?[.:]?")
_WITH_TEXT = re.compile(r"(?:\(([A-J])\)\s?|([A-J])(?:\)\s?|[.:]\s))(?!and\b|or\b)(?=[^\W_]|\\)(.+)", re.DOTALL)
_OPTION = re.compile(r"(?<![a-z])[A-J][).:]", re.IGNORECASE)
_NONE = re.compile(r"(?:there (?:is|are) )?no solutions?(?: exists?)?")
_SAID = {
    "infinity": Answer("expression", r"\infty"), "positive infinity": Answer("expression", r"\infty"),
    "negative infinity": Answer("expression", r"-\infty"),
    "all real numbers": Answer("expression", r"\mathbb{R}"), "all reals": Answer("expression", r"\mathbb{R}"),
    "does not exist": Answer("text", "dne"), "doesn't exist": Answer("text", "dne"),
}  # fmt: skip
_SHORT_WORDS = frozenset((
    "no", "on", "up", "in", "am", "pm", "or", "of", "to", "by", "is", "at", "it",
))  # fmt: skip


def one_line(tokens: Sequence[Token]) -> str:
    """Joins tokens to one line of text; case counts only where it tells letters apart."""
    line = ""
    for token in tokens:
        gap = token.spaced and line and (line[-1].isalnum() or line[-1] in ".,;:)]}%'\"") and token.text not in ",;)"
        line += (" " if gap else "") + _cased(token)
    return line


def _cased(token: Token) -> str:
    if token.kind != "word":
        return token.text
    lower = token.text.casefold()
    counts = len(lower) < 3 and lower not in _SHORT_WORDS and (not token.worded or token.text.isupper())
    return token.text if counts else lower


def of_fixed_form(tokens: Sequence[Token]) -> Answer | None:
    """Parses a letter, time, date, number in words, or that there is no solution; None if it is none of these."""
    line = one_line(tokens)
    if len(line) > 200:
        return None
    if _NONE.fullmatch(line):
        return Answer("expression", r"\emptyset")
    if line in _SAID:
        return _SAID[line]
    if (value := in_words(line)) is not None:
        return Answer("number", spelled(Fraction(value)), Fraction(value))
    return _letter(line) or _clock(line) or _date(line)


def as_text(tokens: Sequence[Token]) -> Answer:
    """Makes an answer that is compared as it is written."""
    return Answer("text", one_line(tokens))


def _letter(line: str) -> Answer | None:
    if found := _LETTER.fullmatch(line):
        return Answer("letter", found[1] or found[2])
    if found := _NAMED.fullmatch(line):
        return Answer("letter", found[1].upper())
    if (found := _WITH_TEXT.fullmatch(line)) and not _OPTION.search(found[3]):
        return Answer("letter", found[1] or found[2], label=found[3].strip())
    return None


def _clock(line: str) -> Answer | None:
    if line in ("noon", "midnight"):
        return Answer("clock", "12:00" if line == "noon" else "0:00", label="pm" if line == "noon" else "am")
    found = _CLOCK.fullmatch(line)
    if found is None or not (found[2] or found[4]) or int(found[1]) > 24 or int(found[2] or 0) > 59:
        return None
    half = (found[4] or "").lower()
    pm, am = half[:1] == "p" or half == "noon", half[:1] == "a" or half == "midnight"
    if (pm or am) and not 1 <= int(found[1]) <= 12:
        return None
    hour = int(found[1]) % 12 + 12 * pm if pm or am else int(found[1])
    seconds = f":{found[3]}" if found[3] else ""
    return Answer("clock", f"{hour}:{found[2] or '00'}{seconds}", label="pm" if pm else "am" if am else None)


def _date(line: str) -> Answer | None:
    if iso := _ISO.fullmatch(line):
        return Answer("date", f"{iso[1]}-{iso[2]}-{iso[3]}")
    for pattern in _DATES:
        if found := pattern.fullmatch(line):
            month = 1 + next(at for at, name in enumerate(_MONTHS) if name.startswith(found["month"].lower()[:3]))
            day = next(group for group in found.groups() if group and group.isdigit())
            return Answer("date", f"{found['year'] or ''}-{month:02}-{int(day):02}")
    return None
