"""Characters outside ASCII in the spelling that the tokeniser reads: other digits, signs, Greek letters, fractions."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_SIGNS = {
    "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{NON-BREAKING HYPHEN}": "-", "\N{HYPHEN}": "-",
    "\N{SMALL HYPHEN-MINUS}": "-", "\N{FIGURE DASH}": "-",
    "\N{MULTIPLICATION SIGN}": "*", "\N{MIDDLE DOT}": "*", "\N{DOT OPERATOR}": "*", "\N{ASTERISK OPERATOR}": "*",
    "\N{DIVISION SIGN}": "/", "\N{DIVISION SLASH}": "/", "\N{FRACTION SLASH}": "/",
    "\N{PLUS-MINUS SIGN}": r"\pm ", "\N{MINUS-OR-PLUS SIGN}": r"\mp ",
    "\N{LESS-THAN OR EQUAL TO}": r"\le ", "\N{GREATER-THAN OR EQUAL TO}": r"\ge ", "\N{NOT EQUAL TO}": r"\ne ",
    "\N{LESS-THAN OR SLANTED EQUAL TO}": r"\le ", "\N{GREATER-THAN OR SLANTED EQUAL TO}": r"\ge ",
    "\N{ALMOST EQUAL TO}": r"\approx ", "\N{IDENTICAL TO}": r"\equiv ", "\N{ELEMENT OF}": r"\in ",
    "\N{UNION}": r"\cup ", "\N{INTERSECTION}": r"\cap ", "\N{EMPTY SET}": r"\emptyset ",
    "\N{INFINITY}": r"\infty ", "\N{SQUARE ROOT}": r"\sqrt ", "\N{DEGREE SIGN}": r"\degree ",
    "\N{MASCULINE ORDINAL INDICATOR}": r"\degree ", "\N{RING ABOVE}": r"\degree ", "\N{DOUBLE PRIME}": "''",
    "\N{DEGREE CELSIUS}": r"\degree C", "\N{DEGREE FAHRENHEIT}": r"\degree F", "\N{RATIO}": ":",
    "\N{PRIME}": "'", "\N{RIGHT SINGLE QUOTATION MARK}": "'", "\N{HORIZONTAL ELLIPSIS}": r"\ldots ",
    "\N{MICRO SIGN}": r"\mu ", "\N{OHM SIGN}": r"\Omega ", "\N{ANGLE}": r"\angle ", "\N{TRIANGULAR BULLET}": "",
    "\N{IDEOGRAPHIC COMMA}": ", ", "\N{FULLWIDTH COMMA}": ", ", "\N{FULLWIDTH SEMICOLON}": "; ",
    "\N{IDEOGRAPHIC FULL STOP}": ".", "\N{FULLWIDTH DOLLAR SIGN}": r"\$", "\N{FULLWIDTH PERCENT SIGN}": r"\%",
    "\N{LEFT BLACK LENTICULAR BRACKET}": "[", "\N{RIGHT BLACK LENTICULAR BRACKET}": "]",
    "\N{THIN SPACE}": r"\,", "\N{NARROW NO-BREAK SPACE}": r"\,", "\N{NO-BREAK SPACE}": r"\,",
    "\N{ZERO WIDTH SPACE}": "",
    "\N{ZERO WIDTH NO-BREAK SPACE}": "", "\N{WORD JOINER}": "", "\N{INVISIBLE TIMES}": "",
    "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}", "\N{DOUBLE-STRUCK CAPITAL Z}": r"\mathbb{Z}",
    "\N{DOUBLE-STRUCK CAPITAL N}": r"\mathbb{N}", "\N{DOUBLE-STRUCK CAPITAL Q}": r"\mathbb{Q}",
    "\N{DOUBLE-STRUCK CAPITAL C}": r"\mathbb{C}",
}  # fmt: skip
_GREEK = {"GREEK SMALL LETTER ": str.lower, "GREEK CAPITAL LETTER ": str.capitalize}


def plain(text: str) -> str:
    r"""Rewrites a text in ASCII and LaTeX, as far as its characters have such a spelling: ``３½π`` is
    ``3\frac{1}{2}\pi``."""
    return text if text.isascii() else "".join(map(_spelled, text))


def digits(text: str) -> str:
    """Rewrites digits and signs of a text in ASCII, all else as it was: for searching numbers in prose."""
    if text.isascii():
        return text
    return "".join(new if (new := _spelled(old)).isascii() and len(new) == 1 else old for old in text)


@lru_cache(maxsize=4096)
def _spelled(character: str) -> str:
    if character.isascii():
        return character
    if character in _SIGNS:
        return _SIGNS[character]
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    kind, _, form = unicodedata.decomposition(character).partition(" ")
    if kind in ("<super>", "<sub>") and form:
        mark = "^" if kind == "<super>" else "_"
        return f"{mark}{{{_spelled(chr(int(form.split()[0], 16)))}}}"
    if kind == "<fraction>":
        above, _, below = unicodedata.normalize("NFKC", character).partition("\N{FRACTION SLASH}")
        return rf"\frac{{{above}}}{{{below}}}" if below else character
    if kind in ("<font>", "<wide>", "<compat>", "<noBreak>") or not kind:
        inner = unicodedata.normalize("NFKC", character)
        if inner != character and len(inner) == 1:
            return _spelled(inner)
    return _greek(character)


def _greek(character: str) -> str:
    name = unicodedata.name(character, "")
    for beginning, case in _GREEK.items():
        if name.startswith(beginning) and name.removeprefix(beginning).isalpha():
            spelled = case(name.removeprefix(beginning))
            return "\\" + {"lamda": "lambda", "Lamda": "Lambda"}.get(spelled, spelled) + " "
    return character
