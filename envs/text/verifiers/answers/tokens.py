r"""Cuts LaTeX and plain text into tokens. Spaces, ``\left``, styles and ``\text{…}`` become properties of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .number import WRITTEN, WRITTEN_IN_BRACKETS
from .values import NotUnderstood

MAX_TOKENS = 2000
"""Tokens of an answer that is parsed. Longer ones are texts."""
STYLES = frozenset((
    "text", "textbf", "textrm", "textit", "textsf", "texttt", "textnormal", "textup", "mbox", "hbox", "mathrm",
    "mathbf", "mathit", "mathsf", "mathtt", "mathnormal", "operatorname", "boldsymbol", "bm", "boxed", "fbox",
    "ensuremath", "emph", "underline",
))  # fmt: skip
_WORDED = STYLES - {"mathbf", "mathit", "boldsymbol", "bm", "boxed", "fbox", "ensuremath", "mathnormal", "underline"}
_IGNORED = frozenset((
    "left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "Biggl",
    "Biggr", "bigm", "Bigm", "middle", "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "rm",
    "bf", "it",
))  # fmt: skip
_SPACES = frozenset((
    "quad", "qquad", ",", ";", ":", "space", "enspace", "thinspace", ">", "hspace", "hfill", " ", "\n", "\t",
))  # fmt: skip
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "geq": "ge", "leqslant": "le", "geqslant": "ge",
    "neq": "ne", "varnothing": "emptyset", "infin": "infty", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots",
    "cong": "cong", "rightarrow": "to", "land": "wedge", "lor": "vee", "bar": "overline",
    "dbinom": "binom", "tbinom": "binom", "tg": "tan", "ctg": "cot", "arctg": "arctan",
}  # fmt: skip
_SIGNS = {
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "lt": "<",
    "gt": ">", "colon": ":", "prime": "'", "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]",
    "lparen": "(", "rparen": ")", "$": r"\$", "%": "%", "#": r"\#", "&": r"\&", "_": r"\_", "{": r"\{", "}": r"\}",
    "|": r"\|", "\\": r"\\", "newline": r"\\", "cr": r"\\", "textdollar": r"\$",
}  # fmt: skip
_PLAIN = {
    "<=": r"\le", ">=": r"\ge", "!=": r"\ne", "**": "^", "+-": r"\pm", "...": r"\ldots", "==": "=",
}  # fmt: skip
FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh",
    "gcd", "lcm", "max", "min", "det", "lim",
))  # fmt: skip
_SMALL_GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega",
)  # fmt: skip
GREEK = frozenset(f"\\{name}" for small in _SMALL_GREEK for name in (small, small.capitalize()))
_UPRIGHT = frozenset(("sin", "cos", "log", "ln", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "gcd", "lcm"))
"""Functions that are no words or units, so that they are functions in ``\\text{…}`` too."""
_PLAIN_NAMES = FUNCTIONS | {"sqrt", "pi", "infinity", "infty"}
_ORDINAL = re.compile(
    r"\^\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{\s*)?(st|nd|rd|th)\s*\}(?:\s*\})?|\\(?:text|mathrm)\s*\{\s*(st|nd|rd|th)\s*\})"
)
_COLOR = re.compile(r"\\(?:text)?color\s*\{[a-zA-Z]{1,20}\}")
_ARGUMENT = re.compile(r"\\(mathbb|mathcal|vec|overline|bar|hat)\s*([a-zA-Z])(?![a-zA-Z])")
_DEGREES = re.compile(r"\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])")
_NEXT = re.compile(
    r"(?P<space>\s+|~)|(?P<command>\\(?:[a-zA-Z]+|.))|(?P<word>[^\W\d_]{2,})|(?P<letter>[^\W\d_])"
    r"|(?P<sign><=|>=|!=|\*\*|\+-|\.\.\.|==|.)",
    re.DOTALL,
)
_ROW = re.compile(r"\\\\\s*\[\s*-?[0-9.]+\s*(?:pt|ex|em|cm|mm|in)\s*\]")
_PRIMES = re.compile(r"\^\s*(?:\\prime(?![a-zA-Z])|\{(?:(?:\s*\\prime(?![a-zA-Z]))+)\s*\})")
_BEGIN = re.compile(r"\\(begin|end)\s*\{([a-zA-Z]+\*?)\}")
OPENING, CLOSING = ("(", "[", r"\{", "{"), (")", "]", r"\}", "}")


@dataclass(frozen=True, slots=True)
class Token:
    """One token: a number, letter, word, command (``\\frac``), or sign."""

    kind: str
    text: str
    spaced: bool = False  # white space stands before it
    worded: bool = False  # it stands in ``\\text{…}`` or the like


class TokenReader:
    """Reads tokens one after another."""

    def __init__(self, given: Iterable[Token]) -> None:
        self._given, self._at = list(given), 0

    def _peek(self) -> str:
        return self._given[self._at].text if self._at < len(self._given) else ""

    def _take(self) -> Token:
        if self._at >= len(self._given):
            raise NotUnderstood
        self._at += 1
        return self._given[self._at - 1]


class _Tokeniser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._spaced = text, 0, False
        self._found: list[Token] = []
        self._braces: list[bool | None] = []  # open ones; of a style: whether its content is words, else None
        self._brackets: list[bool] = []  # open ones: whether a comma with a space stands in it

    def run(self) -> list[Token]:
        while self._at < len(self._text):
            if len(self._found) > MAX_TOKENS:
                raise NotUnderstood
            self._step()
        if self._braces:
            raise NotUnderstood
        return self._found

    def _step(self) -> None:
        text, at = self._text, self._at
        pattern = WRITTEN_IN_BRACKETS if self._brackets and not self._brackets[-1] else WRITTEN
        if number := pattern.match(text, at):
            self._add("number", number[0], number.end())
        elif degrees := _DEGREES.match(text, at):
            self._add("word", "degrees", degrees.end())
        elif ordinal := _ORDINAL.match(text, at):
            self._add("word", ordinal[1] or ordinal[2], ordinal.end())
        elif primes := _PRIMES.match(text, at):
            for _ in range(max(1, primes[0].count("prime"))):
                self._add("sign", "'", primes.end())
        elif row := _ROW.match(text, at):
            self._add("sign", r"\\", row.end())
        elif color := _COLOR.match(text, at):
            self._at = color.end()
        elif accent := _ARGUMENT.match(text, at):
            name = _SAME.get(accent[1], accent[1])
            for kind, part in (("command", "\\" + name), ("sign", "{"), ("letter", accent[2]), ("sign", "}")):
                self._add(kind, part, accent.end())
        elif environment := _BEGIN.match(text, at):
            self._add("command", rf"\{environment[1]}", environment.end())
            self._add("environment", environment[2], environment.end())
        else:
            self._other()

    def _other(self) -> None:
        found = _NEXT.match(self._text, self._at)
        assert found is not None
        kind, text, end = str(found.lastgroup), found[0], found.end()
        if kind == "space":
            self._spaced, self._at = True, end
        elif kind == "command":
            self._command(text[1:], end)
        elif kind == "word" and text.casefold() in (_UPRIGHT if self._worded else _PLAIN_NAMES):
            name = text.casefold()
            self._add("command", "\\" + {"infinity": "infty"}.get(name, name), end)
        elif kind == "sign":
            self._sign(_PLAIN.get(text, text), end)
        else:
            self._add(kind, text, end)

    def _command(self, name: str, end: int) -> None:
        if name in STYLES and (brace := re.compile(r"\s*\{").match(self._text, end)):
            self._braces.append(name in _WORDED)
            self._at = brace.end()
        elif name in _SPACES:
            self._spaced, self._at = True, end
        elif name in ("!", "(", ")", "[", "]"):
            self._at = end  # negative space; where a formula begins and ends
        elif name in _IGNORED:
            null = re.compile(r"\s*\.(?![0-9])").match(self._text, end) if name in ("left", "right") else None
            self._at = end if null is None else null.end()
        elif name in _SIGNS:
            self._sign(_SIGNS[name], end)
        else:
            self._add("command", "\\" + _SAME.get(name, name), end)

    def _sign(self, sign: str, end: int) -> None:
        if sign == "$":
            self._at = end  # skips the sign at either end of a formula
            return
        if sign == "}" and self._braces and self._braces[-1] is not None:
            self._braces.pop()
            self._at = end
            return
        if sign == "{":
            self._braces.append(None)
        elif sign == "}":
            if not self._braces:
                raise NotUnderstood
            self._braces.pop()
        if sign in ("(", "[", r"\{"):
            inside = re.compile(r"[^()\[\]{}]*").match(self._text, end)
            self._brackets.append(inside is not None and re.search(r",(?:\s|\\[ ,;])", inside[0]) is not None)
        elif sign in (")", "]", r"\}") and self._brackets:
            self._brackets.pop()
        kind = "command" if sign.startswith("\\") and sign[1:].isalpha() else "word" if sign == "%" else "sign"
        self._add(kind, "percent" if sign == "%" else sign, end)

    @property
    def _worded(self) -> bool:
        return next((worded for worded in reversed(self._braces) if worded is not None), False)

    def _add(self, kind: str, text: str, end: int) -> None:
        self._found.append(Token(kind, text, self._spaced, self._worded))
        self._at, self._spaced = end, False


def tokens(text: str) -> list[Token]:
    """Splits a text of :func:`~.characters.plain` characters into tokens.

    Raises:
        NotUnderstood: its braces are not balanced, or it is too long.
    """
    return _Tokeniser(text).run()
