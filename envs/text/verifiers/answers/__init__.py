"""Reading and comparing answers: plain text and the LaTeX that answers are written in.

    text ─ characters ─▶ tokens ─▶ reading (expression, units, words) ─▶ Answer of a kind ─ compare ─▶ equal or not

An answer with a part that is not understood is a text, and is compared as one: never as the number in it. Every
function here takes time in proportion to the length of its text.
"""

from .boxes import last_boxed
from .compare import equal, spelling, spelling_beside
from .gold import gold_of, text_of
from .number import MAX_DIGITS, decimal
from .reading import read
from .values import Answer

__all__ = [
    "MAX_DIGITS", "Answer", "canonical", "decimal", "equal", "gold_of", "last_boxed", "read", "same", "spelling",
    "spelling_beside", "text_of",
]  # fmt: skip


def canonical(text: str) -> str:
    r"""Returns one spelling for all answers that are equal: an exact number as a fraction in lowest terms, without its
    unit or sign of money. Empty for a text that says nothing.

    >>> canonical("0.50"), canonical(r"\frac{2}{4}"), canonical("East"), canonical(r"$x$")
    ('1/2', '1/2', 'east', 'x')
    """
    return spelling(read(text))


def same(first: str, second: str) -> bool:
    r"""Whether two answers are equal without algebra: ``0.5`` is ``\frac{1}{2}``, ``0.33`` is not ``1/3``."""
    return equal(read(first), read(second))
