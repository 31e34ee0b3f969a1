r"""Reads an answer: one value, or several with commas, "and", "or" and ``\pm`` between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from .characters import plain
from .expression import RELATIONS, Node, Parser
from .number import MULTIPLES, in_words, spelled
from .spellings import replaced
from .tokens import CLOSING, GREEK, OPENING, Token, tokens
from .units import KNOWN, is_unit, money, unit_of
from .values import Answer, NotUnderstood, Unit
from .words import as_text, of_fixed_form

MAX_CHARACTERS = 4000
"""A longer answer is a text."""
_BETWEEN = frozenset((",", ";", "and", "or", r"\&"))
_FUNCTIONS = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan)(?![a-z])")
_DOLLAR = re.compile(r"(-?)\$(-?)(?=[0-9.])")
_NAMES = frozenset("fghpqrFGHPQVTC")
"""Letters that are names of functions: f(x)=5 says what f(x) is, x(x+1)=6 is an equation."""
_ENDINGS = frozenset((".", ",", ";", ":", r"\\", "\\"))
_WRAPPED = re.compile(r"(\*\*|`|\"|__)(.*)\1", re.DOTALL)
_PHRASE = frozenset(("the", "final", "correct", "answer", "is"))
_MIRRORED = {">": "<", r"\ge": r"\le", r"\gg": r"\ll"}
_MIRROR = _MIRRORED | {less: more for more, less in _MIRRORED.items()}
_LONGEST_TEXT = 3  # words of a name in a list


def read(text: str) -> Answer:
    """Parses an answer's text; what is not understood stays a text. It takes no time to speak of."""
    if len(text) > MAX_CHARACTERS:
        return Answer("text", " ".join(text.split()))
    return _read(text)


@lru_cache(maxsize=512)
def _read(text: str) -> Answer:
    text = plain(text.strip())
    if wrapped := _WRAPPED.fullmatch(text):
        text = wrapped[2].strip()
    text = replaced(text)
    if text.replace(r"\$", "").count("$") % 2:
        text = _DOLLAR.sub(r"\1\\$\2", text, count=1)
    try:
        given = _trimmed(tokens(text))
    except NotUnderstood:
        return Answer("text", " ".join(text.split()))
    if not given:
        return Answer("text", "")
    if fixed := of_fixed_form(given):
        return fixed
    given = _without_phrase(given)
    try:
        return _several(given)
    except (NotUnderstood, RecursionError):
        return as_text(given)


def _trimmed(given: list[Token]) -> list[Token]:
    """Tokens without the punctuation that ends a sentence, and without the group that holds them all."""
    while given and given[-1].kind == "sign" and given[-1].text in _ENDINGS:
        given = given[:-1]
    return given


def _without_phrase(given: list[Token]) -> list[Token]:
    """Tokens without "the answer is" or "Answer:" before them."""
    at = next((at for at, token in enumerate(given) if token.text.casefold() not in _PHRASE), 0)
    if not any(token.text.casefold() == "answer" for token in given[:at]) or given[at].text in RELATIONS - {":"}:
        return given
    return given[at + 1 :] if given[at].text == ":" and at + 1 < len(given) else given[at:]


def _several(given: Sequence[Token]) -> Answer:
    if (joined := _joined(given)) is not None:
        return joined
    parts = [part for part in _split(given, _BETWEEN) if part]
    if not parts:
        raise NotUnderstood
    items = [item for part in parts for item in _expanded(part, len(parts) > 1)]
    if len(items) == 1:
        return items[0]
    if items[0].label is not None and items[0].kind != "letter" and all(item.label is None for item in items[1:]):
        items = [replace(item, label=items[0].label) for item in items]  # x = 2 or 5
    return of_items("list", items)


def _joined(given: Sequence[Token]) -> Answer | None:
    """What is measured in several units: ``1 hour and 30 minutes``."""
    rest = [token for token in given if token.text != "and"]
    if len(rest) == len(given) or sum(token.kind == "number" for token in rest) < 2:
        return None
    try:
        return _compound(rest)
    except NotUnderstood:
        return None


def of_items(kind: str, items: Sequence[Answer]) -> Answer:
    """Makes a list or set of answers, in one order."""
    ordered = sorted(items, key=lambda item: (item.key, item.whole))
    if kind == "set":
        ordered = list({item.key: item for item in ordered}.values())
    return Answer(kind, ",".join(item.key for item in ordered), items=tuple(ordered))


def _split(given: Sequence[Token], signs: frozenset[str]) -> Iterator[list[Token]]:
    """The parts between signs that stand in no bracket."""
    part: list[Token] = []
    for token, depth in zip(given, _depths(given), strict=True):
        if depth == 0 and token.text in signs:
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _depths(given: Sequence[Token]) -> Iterator[int]:
    depth = 0
    for token in given:
        closes = token.text in CLOSING or token.text in (r"\end", r"\rangle", r"\rfloor", r"\rceil")
        depth -= closes
        yield depth
        depth += token.text in OPENING or token.text in (r"\begin", r"\langle", r"\lfloor", r"\lceil")


def _expanded(part: Sequence[Token], among_others: bool) -> list[Answer]:
    r"""A part of an answer; with ``\pm`` two."""
    if not any(token.text in (r"\pm", r"\mp") for token in part):
        return [_part(part, among_others)]
    found = []
    for plus, minus in (("+", "-"), ("-", "+")):
        signs = {r"\pm": plus, r"\mp": minus}
        found.append(_part([replace(t, kind="sign", text=signs.get(t.text, t.text)) if t.text in signs else t
                            for t in part], among_others))  # fmt: skip
    return found


def _part(part: Sequence[Token], among_others: bool = False) -> Answer:
    if fixed := of_fixed_form(part):
        return fixed
    if all(token.kind == "word" for token in part):
        return _in_words(part, among_others)
    sides = list(_split(part, RELATIONS))
    if len(sides) == 1:
        return _ratio(part) or quantity(part)
    depths = _depths(part)
    relations = [t.text for t, depth in zip(part, depths, strict=True) if depth == 0 and t.text in RELATIONS]
    if not all(sides):
        raise NotUnderstood
    return _related(sides, relations)


def _in_words(part: Sequence[Token], among_others: bool) -> Answer:
    """A number of things, ``two apples``; else a text."""
    if len(part) > 1 and in_words(part[0].text.casefold()) is not None:
        with suppress(NotUnderstood):
            return quantity(part)
    if among_others and len(part) > _LONGEST_TEXT:
        raise NotUnderstood
    return as_text(part)


def _ratio(part: Sequence[Token]) -> Answer | None:
    """A ratio in words: ``3 to 4``."""
    sides = list(_split(part, frozenset(("to",))))
    if len(sides) < 2 or not all(len(side) == 1 and side[0].kind == "number" for side in sides):
        return None
    return Answer("relation", ":".join(quantity(side).key for side in sides))


def _related(sides: Sequence[Sequence[Token]], relations: Sequence[str]) -> Answer:
    """An equation, inequality or ratio; the value of what is named before ``=``."""
    if set(relations) == {":"}:
        return Answer("relation", ":".join(quantity(side).whole for side in sides))
    if len(relations) == 1 and relations[0] in ("=", r"\in"):
        name, value = sides
        if relations[0] == "=" and not _is_name(name) and _is_name(value):
            name, value = value, name
        if _is_name(name):
            return replace(quantity(value), label=_named(name))
    keys = [quantity(side).whole for side in sides]
    if set(relations) == {"="}:
        return Answer("relation", "=".join(sorted(keys)))
    if _is_mirrored(sides, relations):
        keys, relations = keys[::-1], [_MIRROR[relation] for relation in reversed(relations)]
    told = (f"{key}{relation} " for key, relation in zip(keys, relations, strict=False))
    return Answer("relation", "".join(told) + keys[-1])


def _is_mirrored(sides: Sequence[Sequence[Token]], relations: Sequence[str]) -> bool:
    """Whether an inequality is written the other way round: a variable comes first, else what is less."""
    if len(sides) == 2 and relations[0] in _MIRROR:
        first, second = (quantity(side).value is None for side in sides)
        if first != second:
            return second
    return set(relations) <= set(_MIRRORED)


def _is_name(side: Sequence[Token]) -> bool:
    """Whether it names what is asked for: ``x``, ``x_1``, ``f(x)``, ``AB``, ``Area``."""
    first, *others = side
    if first.text == "m" and others and others[0].text == r"\angle":  # the measure of an angle
        first, *others = others
    named = first.kind == "letter" or first.text in GREEK
    if first.kind == "word":
        return not others and (len(first.text) > 3 or first.worded or first.text[0].isupper())
    if first.text == "(" and len(others) > 3 and others[-1].text == ")":
        return all(t.kind == "letter" if at % 2 == 0 else t.text == "," for at, t in enumerate(others[:-1]))
    if first.text in (r"\angle", r"\triangle"):
        return len(others) == 1 and others[0].kind in ("letter", "word")
    if not named or first.text == r"\pi":
        return False
    texts = _without_order([token.text for token in others])
    others = others[len(others) - len(texts) :]
    if first.text == "P" and texts[:1] == ["("] and texts.count("(") == 1 and texts[-1] == ")":
        return True  # a probability, of anything
    if texts[:1] == ["_"]:
        return len(texts) == 2 or (texts[1:2] == ["{"] and texts.index("}") == len(texts) - 1)
    if texts[:1] == ["("] and first.text in _NAMES:
        return len(texts) == 3 and texts[2] == ")" and others[1].kind in ("letter", "number", "word")
    return not texts


def _without_order(texts: list[str]) -> list[str]:
    """What follows the name of a function, without primes and the sign of an inverse: of ``f'(x)``, ``f^{-1}(x)``."""
    for order in (["^", "{", "-", "1", "}"], ["^", "-", "1"]):
        if texts[: len(order)] == order and texts[len(order) : len(order) + 1] == ["("]:
            return texts[len(order) :]
    return texts[next((at for at, text in enumerate(texts) if text != "'"), len(texts)) :]


def _named(side: Sequence[Token]) -> str:
    return "".join(token.text for token in side if token.text not in "{}").removeprefix("m" if len(side) > 1 else "")


def quantity(tokens: Sequence[Token]) -> Answer:
    """Parses an expression with its unit.

    Raises:
        NotUnderstood: it is none, or what follows it is no unit.
    """
    tokens, currency = _without_money(tokens)
    if len(tokens) > 1 and tokens[0].kind == "word" and (counted := in_words(tokens[0].text.casefold())) is not None:
        tokens = [Token("number", str(counted)), *tokens[1:]]
    depths = _depths(tokens)
    at = next((at for at, (token, depth) in enumerate(zip(tokens, depths, strict=True))
               if at > 0 and depth == 0 and _ends_value(token)), len(tokens))  # fmt: skip
    if currency and at < len(tokens) and tokens[at - 1].text == "/":
        at -= 1
    found, rest = _value(tokens[:at]), tokens[at:]
    while rest and found.value is not None and (multiple := _multiple(rest[0])):
        value = found.value * multiple
        found, rest = Answer("number", spelled(value), value), rest[1:]
    if currency:
        per = bool(rest) and rest[0].text in ("/", "per")
        if rest and not per and unit_of(rest) is not currency:
            raise NotUnderstood
        return replace(found, unit=unit_of([Token("word", currency.name), *rest]) if per else currency)
    if not rest:
        return found
    if any(token.kind == "number" and at and rest[at - 1].text not in ("^", "{", "-") for at, token in enumerate(rest)):
        return _compound(tokens)
    return _measured(found, unit_of(rest))


def _ends_value(token: Token) -> bool:
    return token.kind in ("word", "letter", "sign") and (
        is_unit(token) or token.text == "per" or _multiple(token) is not None
    )


def _multiple(token: Token) -> int | None:
    """What a number is taken times: million, millions."""
    return MULTIPLES.get(token.text.casefold().removesuffix("s")) if token.kind in ("word", "letter") else None


def _measured(found: Answer, unit: Unit) -> Answer:
    if found.kind not in ("number", "expression") or (found.value is None and _FUNCTIONS.search(found.key)):
        raise NotUnderstood
    return replace(found, unit=unit)


def _without_money(given: Sequence[Token]) -> tuple[Sequence[Token], Unit | None]:
    signs = 1 if len(given) > 1 and given[0].text in ("-", "+") else 0
    if signs < len(given) and (unit := money(given[signs])) is not None:
        return [*given[:signs], *given[signs + 1 :]], unit
    return given, None


def _compound(given: Sequence[Token]) -> Answer:
    """``5 feet 3 inches``, in the smallest of its units."""
    runs: list[list[Token]] = []
    for token in given:
        if token.kind == "number" and (not runs or runs[-1][-1].kind in ("word", "letter")):
            runs.append([])
        if not runs:
            raise NotUnderstood
        runs[-1].append(token)
    parts = [quantity(run) for run in runs]
    units = [part.unit for part in parts]
    if len(parts) < 2 or any(part.value is None or part.value < 0 for part in parts):
        raise NotUnderstood
    known = [unit for unit in units if unit is not None and unit.name in KNOWN]
    factors = [unit.factor for unit in known]
    if len(known) < len(parts) or len({unit.dimension for unit in known}) > 1 or factors != sorted(set(factors))[::-1]:
        raise NotUnderstood
    value = sum((part.value or 0) * unit.factor for part, unit in zip(parts, known, strict=True)) / factors[-1]
    return Answer("measure", spelled(value), value, known[-1])


def _value(given: Sequence[Token]) -> Answer:
    united = list(_split(given, frozenset((r"\cup",))))
    if len(united) > 1:
        return Answer("expression", r"\cup ".join(sorted(Parser(part).whole().key for part in united)))
    return _answer(Parser(given).whole())


def _answer(node: Node) -> Answer:
    if node.kind == "paren" and len(node.items) == 1 and node.value is None:
        return _answer(node.items[0])
    if node.kind == "set" and node.items:
        return of_items("set", [_answer(item) for item in node.items])
    if node.value is not None:
        return Answer("number", spelled(node.value), node.value)
    if node.key.replace(" ", "") == r"(-\infty,\infty)":
        return Answer("expression", r"\mathbb{R}")
    return Answer(node.kind if node.kind in ("tuple", "matrix") else "expression", node.key.strip())
