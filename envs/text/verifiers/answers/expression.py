r"""Parses tokens of a formula to one spelling: ``x^2``, ``x^{2}``; ``\frac12``, ``1/2``; numbers are worked out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from .nodes import Node, fraction, indexed, mixed, negated, number, power, set_of, times, unwrapped
from .number import decimal, repeating
from .tokens import FUNCTIONS, Token, TokenReader
from .values import NotUnderstood

MAX_DEPTH = 40
"""Groups within each other. Deeper answers are texts."""
RELATIONS = frozenset((
    "=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx", r"\equiv", r"\in", r"\sim", r"\subset", r"\subseteq", r"\to",
    ":", r"\Rightarrow", r"\notin", r"\ll", r"\gg", r"\implies", r"\iff", r"\perp", r"\parallel",
))  # fmt: skip
OPERATORS = frozenset((r"\pm", r"\mp", r"\cup", r"\cap", r"\setminus"))
_ENDS = frozenset((")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil", ",", ";", "&", r"\\", r"\end"))
_CLOSING = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_OPAQUE = frozenset(("|", r"\|", "'"))
_LETTERS = 3
"""A longer run of letters is a word."""


class Parser(TokenReader):
    """Parser of an answer's tokens into an expression.

    Raises:
        NotUnderstood: they are no formula.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self._depth = 0

    def whole(self) -> Node:
        """Parses all tokens as one expression."""
        found = self._sum()
        if self._at < len(self._given):
            raise NotUnderstood
        return found

    # -- sums and products --------------------------------------------------------------------------------------------

    def _sum(self) -> Node:
        first = self._signed()
        if self._peek() not in ("+", "-", *OPERATORS):
            return first
        key = first.key
        while (sign := self._peek()) in ("+", "-", *OPERATORS):
            self._at += 1
            term = self._product()
            key += (sign if len(sign) == 1 else f"{sign} ") + term.factor
        return Node(key, "sum")

    def _signed(self) -> Node:
        negative, doubled = False, 0
        while self._peek() in ("+", "-"):
            negative ^= self._peek() == "-"
            self._at += 1
            doubled += 1
        if doubled > 1:
            raise NotUnderstood
        found = self._product()
        if found.value is not None and found.kind != "product":
            return number(-found.value if negative else found.value)
        return negated(found) if negative else found

    def _product(self) -> Node:
        found = self._factor()
        while (sign := self._peek()) not in ("", "+", "-") and sign not in _ENDS | RELATIONS | OPERATORS:
            if sign == "/":
                self._at += 1
                found = self._quotient(found, self._factor())
            elif sign == "*":
                self._at += 1
                found = times(found, self._factor(), True)
            else:
                found = self._beside(found)
        return found

    def _beside(self, found: Node) -> Node:
        """The product with a factor that follows without a sign; a mixed number."""
        is_fraction, first = self._peek() == r"\frac", self._given[self._at]
        factor = self._factor()
        if first.kind == "number" and found.kind == "symbol" and not found.key.endswith(" "):
            raise NotUnderstood  # x2 is no product
        if found.kind != "number" or factor.kind != "number":
            return times(found, factor, False)
        if not is_fraction and self._peek() == "/" and first.spaced:
            self._at += 1
            factor, is_fraction = self._quotient(factor, self._factor()), True
        return mixed(found, factor, is_fraction)

    def _quotient(self, above: Node, below: Node) -> Node:
        """What a slash means where it can mean one thing alone: ``a/b``, and neither ``1/2x`` nor ``a/b/c``."""
        following = self._peek()
        if following in ("/",):
            raise NotUnderstood
        ends = following in ("", "+", "-", "*") or following in _ENDS | RELATIONS | OPERATORS
        if not ends:
            return Node(f"{above.factor}/{below.factor}", "other")
        if above.kind == "fraction" or below.kind == "power":
            return Node(f"{above.factor}/{below.factor}", "other")
        return fraction(above, unwrapped(below))

    # -- factors ------------------------------------------------------------------------------------------------------

    def _factor(self) -> Node:
        found = self._base()
        while (sign := self._peek()) in ("^", "_", "!", "'"):
            self._at += 1
            if sign in ("!", "'"):
                found = Node(found.factor + sign, "other")
                continue
            index = unwrapped(self._argument(whole_number=True))
            found = power(found, index) if sign == "^" else indexed(found, index)
        return found

    def _base(self) -> Node:
        token = self._take()
        if token.kind == "number":
            return self._number(token.text)
        if token.kind == "command":
            return self._command(token.text)
        if token.kind == "letter":
            return Node(token.text, "symbol")
        if token.kind == "word":
            if token.worded or len(token.text) > _LETTERS:
                raise NotUnderstood
            return Node(token.text, "symbol")
        if token.text == "{":
            return self._group()
        if token.text in _CLOSING:
            return self._bracket(token.text)
        if token.text in _OPAQUE:
            return Node(token.text, "other")
        raise NotUnderstood

    def _number(self, written: str) -> Node:
        if self._peek() in (r"\overline", r"\dot") and "." in written:
            self._at += 1
            value = repeating(written, self._digits())
        else:
            value = decimal(written)
        if value is None:
            raise NotUnderstood
        return number(value)

    def _digits(self) -> str:
        braced = self._peek() == "{"
        self._at += braced
        digits = self._take().text
        if braced and self._take().text != "}":
            raise NotUnderstood
        return digits

    def _command(self, name: str) -> Node:
        if name == r"\frac":
            above = self._argument()
            return fraction(above, self._argument())
        if name == r"\sqrt":
            root = self._root()
            return Node(rf"\sqrt{root}{{{unwrapped(self._argument(whole_number=True)).key}}}", "other")
        if name == r"\begin":
            return self._environment()
        if name in _CLOSING:
            return self._bracket(name)
        if name in RELATIONS | OPERATORS or name == r"\end":
            raise NotUnderstood
        if name[1:] in FUNCTIONS:
            return Node(f"{name} ", "function")
        if name == r"\pmod" and self._peek() != "{":
            return Node(f"{name}{{{self._argument(whole_number=True).key}}}", "other")
        groups = ""
        while self._peek() == "{":
            groups += f"{{{self._argument().key}}}"
        return Node(f"{name}{groups}", "other") if groups else Node(f"{name} ", "symbol")

    def _root(self) -> str:
        if self._peek() != "[":
            return ""
        self._at += 1
        index = self._nested(self._sum)
        self._close("]")
        return "" if index.key == "2" else f"[{index.key}]"

    def _argument(self, whole_number: bool = False) -> Node:
        """What belongs to a command: a group, else a token. Of a number without braces it is the first digit."""
        token = self._take()
        if token.kind == "number" and not whole_number and len(token.text) > 1:
            self._at -= 1
            self._given[self._at] = replace(token, text=token.text[1:], spaced=False)
            if not token.text[0].isdigit():
                raise NotUnderstood
            return number(Fraction(token.text[0]))
        if token.text == "-" and whole_number:  # x^-1
            return negated(self._argument(True))
        if token.text in _CLOSING and not whole_number:
            raise NotUnderstood
        self._at -= 1
        return self._base()

    # -- groups -------------------------------------------------------------------------------------------------------

    def _group(self) -> Node:
        items, separated = self._items()
        self._close("}")
        if separated:
            return set_of(items)
        (only,) = items
        return replace(only, kind="number") if only.kind == "power" else only

    def _bracket(self, opening: str) -> Node:
        closing = _CLOSING[opening]
        if opening == r"\{" and self._peek() == closing:
            self._at += 1
            return Node(r"\emptyset ", "set")
        items, separated = self._items()
        end = self._take().text
        if end != closing and {opening, end} - {"(", "["} - {")", "]"}:
            raise NotUnderstood
        if opening == r"\{":
            return set_of(items)
        keys = ",".join(item.key for item in items)
        if opening == "(" and end == ")" and not separated:
            (only,) = items
            return Node(only.key if only.kind == "number" else f"({keys})", "paren", only.value, items)
        return Node(f"{opening}{keys}{end}", "tuple", items=items)

    def _items(self) -> tuple[tuple[Node, ...], bool]:
        """What stands in a bracket, and whether there are several."""
        found = [self._nested(self._related)]
        while self._peek() in (",", ";"):
            self._at += 1
            found.append(self._nested(self._related))
        return tuple(found), len(found) > 1

    def _related(self) -> Node:
        found = self._sum()
        while (relation := self._peek()) in RELATIONS:
            self._at += 1
            found = Node(f"{found.key}{relation} {self._sum().key}", "other")
        return found

    def _environment(self) -> Node:
        name = self._take().text
        if name == "array" and self._peek() == "{":
            while self._take().text != "}":
                pass
        rows: list[str] = []
        while True:
            cells = [self._nested(self._related).key]
            while self._peek() == "&":
                self._at += 1
                cells.append(self._nested(self._related).key)
            rows.append("&".join(cells))
            if self._peek() != r"\\":
                break
            self._at += 1
            if self._peek() == r"\end":
                break
        self._close(r"\end")
        if self._take().text != name:
            raise NotUnderstood
        name = "pmatrix" if name == "bmatrix" else name
        return Node(rf"\begin{{{name}}}" + r"\\".join(rows) + rf"\end{{{name}}}", "matrix")

    def _nested(self, read: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotUnderstood
        found = read()
        self._depth -= 1
        return found

    def _close(self, sign: str) -> None:
        if self._take().text != sign:
            raise NotUnderstood
