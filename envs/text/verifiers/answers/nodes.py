"""Parts of a formula, and what they give together: each has one spelling, and a number its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .number import MAX_DIGITS, spelled
from .values import NotUnderstood


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a parsed formula. ``kind``: number, symbol, power (of ten), product, sum, paren, tuple, matrix, set,
    function (without its argument yet), other."""

    key: str
    kind: str
    value: Fraction | None = None
    items: tuple[Node, ...] = ()

    @property
    def factor(self) -> str:
        """Key of the node as a factor of a product: a sum gets parentheses."""
        return f"({self.key})" if self.kind == "sum" else self.key


def number(value: Fraction, kind: str = "number") -> Node:
    """Makes the node of a number."""
    return Node(spelled(value), kind, value)


def unwrapped(node: Node) -> Node:
    """Strips the parentheses around a node."""
    return node.items[0] if node.kind == "paren" and len(node.items) == 1 else node


def negated(node: Node) -> Node:
    """Makes the node of −x."""
    if node.value is not None:
        return number(-node.value)
    if node.kind == "sum":
        return Node(f"-({node.key})", "other")
    return Node(node.key[1:] if node.key.startswith("-") else f"-{node.key}", node.kind)


def times(left_factor: Node, right_factor: Node, explicit: bool) -> Node:
    """Makes the node of a product; ``explicit`` if a sign of multiplication is written."""
    if explicit and left_factor.value is not None and right_factor.kind == "power" and right_factor.value is not None:
        return number(left_factor.value * right_factor.value)
    if left_factor.kind in ("number", "power") and right_factor.kind in ("number", "power") and not explicit:
        raise NotUnderstood
    left, right = left_factor.factor, right_factor.factor
    if right.startswith("-"):
        right = f"({right})"
    if left_factor.kind == "function":
        return Node(left + right, "product")
    figures = right[:1].isdigit() or (right.startswith(r"\frac") and left_factor.kind == "number")
    return Node(f"{left}{'*' if figures else ''}{right}", "function" if right_factor.kind == "function" else "product")


def mixed(whole: Node, fraction: Node, written: bool) -> Node:
    r"""Makes the node of a mixed number such as ``5\frac{1}{2}``, or of the product if it is none."""
    if whole.kind == "number" and whole.value is not None and fraction.value is not None:
        fits = whole.value.denominator == 1 and whole.value >= 0 and 0 < fraction.value < 1
        if written and fits:
            return number(whole.value + fraction.value)
        raise NotUnderstood
    return Node(f"{whole.factor}*{fraction.key}", "product")


def fraction(above: Node, below: Node) -> Node:
    """Makes the node of a fraction."""
    above = unwrapped(above)
    if above.value is not None and below.value is not None:
        if below.value == 0:
            return Node(rf"\frac{{{above.key}}}{{0}}", "other")
        return number(above.value / below.value)
    if above.key.startswith("-") and above.kind != "sum":
        return negated(fraction(negated(above), below))
    return Node(rf"\frac{{{above.key}}}{{{unwrapped(below).key}}}", "product")


def power(base: Node, index: Node) -> Node:
    """Makes the node of a power."""
    exponent = index.value
    if base.key == "10" and exponent is not None and exponent.denominator == 1 and abs(exponent) <= MAX_DIGITS:
        return number(Fraction(10) ** int(exponent), "power")
    if base.kind == "function":
        return Node(f"{base.key.strip()}^{{{index.key}}} ", "function")
    if (inner := unwrapped(base)).kind == "symbol" and not inner.key.startswith("-"):
        base = inner
    compound = base.kind == "product" or (base.value is not None and not base.key.isdigit())
    return Node(f"{f'({base.key})' if compound else base.factor}^{{{index.key}}}", "other")


def indexed(base: Node, index: Node) -> Node:
    """Makes the node of a symbol with an index."""
    kind = "function" if base.kind == "function" else "symbol"
    return Node(f"{base.factor.strip()}_{{{index.key}}}{' ' if kind == 'function' else ''}", kind)


def set_of(items: Sequence[Node]) -> Node:
    """Makes the node of a set, sorted and without duplicates."""
    unique = {item.key: item for item in items}
    return Node(r"\{" + ",".join(sorted(unique)) + r"\}", "set", items=tuple(unique[key] for key in sorted(unique)))
