"""Draws a problem, a response and its verdict as a picture, for videos."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np

WIDTH, HEIGHT = 960, 540  # pixels
_SIZE, _LINE, _MARGIN = 16, 20, 12  # pixels
_LINES = (HEIGHT - 2 * _MARGIN) // _LINE
_BACKGROUND, _PROMPT, _RESPONSE = (16, 16, 16), (235, 235, 235), (130, 190, 255)
_RIGHT, _WRONG = (80, 220, 100), (240, 100, 90)
_CHARACTERS = 4000  # looks at so many at either end of a text


def draw(prompt: str, response: str | None, verdict: str | None, success: bool) -> np.ndarray:
    """Draws a picture, uint8 [540, 960, 3]. Of a long prompt it shows the beginning, of a long response the end.

    Args:
        response: None before there is one.
        verdict: one line; None before there is one.
        success: colours the verdict.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=_SIZE)
    columns = int((WIDTH - 2 * _MARGIN) / font.getlength("0"))
    image = Image.new("RGB", (WIDTH, HEIGHT), _BACKGROUND)
    pen = ImageDraw.Draw(image)
    for number, (line, colour) in enumerate(_lines(prompt, response, verdict, success, columns)):
        pen.text((_MARGIN, _MARGIN + number * _LINE), line, font=font, fill=colour)
    return np.asarray(image).copy()


def _lines(
    prompt: str, response: str | None, verdict: str | None, success: bool, columns: int
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    said = _wrap((response or "")[-_CHARACTERS:], columns)
    asked = _wrap(prompt[:_CHARACTERS], columns)
    room = _LINES - 3  # keeps three lines for two empty ones and the verdict
    top = min(len(asked), max(room - len(said), room // 2))
    yield from ((line, _PROMPT) for line in (asked if top == len(asked) else [*asked[: top - 1], "…"]))
    yield "", _PROMPT
    rest = room - top
    yield from ((line, _RESPONSE) for line in (said if len(said) <= rest else ["…", *said[len(said) - rest + 1 :]]))
    yield "", _PROMPT
    if verdict is not None:
        yield verdict, _RIGHT if success else _WRONG


def _wrap(text: str, columns: int) -> list[str]:
    """Lines of at most so many characters; what cannot be printed is shown as a question mark."""
    shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in text.expandtabs(4))
    return [part for line in shown.split("\n") for part in textwrap.wrap(line, columns, drop_whitespace=False) or [""]]
