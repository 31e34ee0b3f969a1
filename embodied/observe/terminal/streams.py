"""Standard streams that take every text: what they cannot show becomes something near. Imports no package.

A program of ours calls one of the two functions before anything else: :func:`for_person` where a person reads,
:func:`for_log` where a file of ours is written, whose encoding is UTF-8.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata

HANDLER = "embodied.near"
_NEAR = {
    "×": "x", "·": ".", "…": "...", "–": "-", "—": "-", "−": "-", "→": "->", "←": "<-", "▶": ">", "◀": "<", "≥": ">=",
    "≤": "<=", "≈": "~", "±": "+-", "°": "deg", "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "•": "*", "✓": "ok",
    "✗": "x", "█": "#", "▓": "#", "▒": "+", "░": ".", "∞": "inf", "√": "sqrt", "∑": "sum", "Δ": "delta", "α": "alpha",
    "β": "beta", "γ": "gamma", "ε": "eps", "θ": "theta", "λ": "lambda", "μ": "mu", "π": "pi", "σ": "sigma",
}  # fmt: skip
_LINES = {
    "BLOCK": "#",
    "QUADRANT": "#",
    " AND ": "+",
    "VERTICAL": "|",
    "HORIZONTAL": "-",
    "UP": "|",
    "DOWN": "|",
    "LEFT": "-",
    "RIGHT": "-",
}
_FIRST_LINE, _LAST_LINE = "\u2500", "\u259f"  # lines of tables, bars and blocks


def for_person() -> None:
    """Makes standard output and error take every text, in the encoding of the person's terminal.

    One that is closed leads to nowhere: a file that is opened later would otherwise get its number, and the text.
    """
    _open_all()
    codecs.register_error(HANDLER, _near)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def for_log() -> None:
    """Makes standard output and error write UTF-8, whatever a simulator or a package prints."""
    _open_all()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _open_all() -> None:
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (open till the end)


def _near(error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands for text that an encoding does not have (:func:`codecs.register_error`)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    if all("\udc80" <= sign <= "\udcff" for sign in text):  # bytes of a file's name that are no text
        return bytes(ord(sign) - 0xDC00 for sign in text), error.end
    return "".join(map(_sign, text)), error.end


def _sign(sign: str) -> str:
    if sign in _NEAR:
        return _NEAR[sign]
    if _FIRST_LINE <= sign <= _LAST_LINE:
        return next((near for word, near in _LINES.items() if word in unicodedata.name(sign)), "+")
    plain = unicodedata.normalize("NFKD", sign).replace("\u2044", "/").encode("ascii", "ignore").decode("ascii")
    return plain or sign.encode("ascii", "backslashreplace").decode("ascii")
