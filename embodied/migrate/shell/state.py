"""What a shell knows at one place of a script: its names, and the commands that it has run so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embodied.migrate.shell.texts.sums import Arithmetic, UnknowableError
from embodied.migrate.shell.texts.text import BLANKS, EMPTY, Text, Words, known


@dataclass(frozen=True)
class Array:
    """A shell array, indexed or associative.

    Args:
        items: index or key → text, in order.
        keyed: its keys are texts (``declare -A``).
        whole: each of its texts is surely one word, so that its length is known.
    """

    items: Mapping[str, Text] = field(default_factory=dict)
    keyed: bool = False
    whole: bool = True


Value = Text | Array | None
"""What a name stands for; null if the script has taken it away."""


@dataclass(frozen=True)
class Command:
    """A command that a script runs, with expanded words; ``site`` and ``line`` say where it stands.

    Args:
        words: the first is its name.
        site: where it stands; two runs of the same words of a script have one.
        line: the same, as a reader counts.
    """

    words: tuple[Text, ...]
    site: int
    line: int


@dataclass
class State:
    """State of the interpreted shell on one way through the script: variables, functions, commands so far, exit status.

    Args:
        arguments: ``$1`` and so on; null if they are those of the script itself, which nobody knows.
        status: whether the last command went well; null if nobody knows.
        ended: ``exit``, ``return``, ``break`` or ``continue`` that waits for where it ends.
        saved: for each function that is running, the values that its own names have outside.
    """

    values: dict[str, Value] = field(default_factory=dict)
    arguments: tuple[Text, ...] | None = None
    functions: dict[str, Any] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    sources: tuple[str, ...] = ()
    status: bool | None = True
    ended: str = ""
    saved: tuple[Mapping[str, Any], ...] = ()
    keyed: frozenset[str] = frozenset()

    def copy(self) -> State:
        """Copies the state, so that both can go on apart."""
        return replace(self, values=dict(self.values), functions=dict(self.functions))

    def same_as(self, other: State) -> bool:
        """Returns whether the rest of the script would do the same from both states."""
        mine, theirs = (
            (one.values, one.arguments, one.commands, one.ended, one.sources, one.functions) for one in (self, other)
        )
        return mine == theirs

    def knows(self, name: str) -> bool:
        """Returns whether the script determines a variable's value, also that it is unset."""
        return name in self.values or (self.arguments is not None and name.isdigit())

    def text(self, name: str, index: str = "") -> Text | None:
        """Returns a variable's text (of an array, the item at ``index``); None if it is not set.

        Args:
            index: of an array.
        """
        if name == "#" and self.arguments is not None:
            return known(str(len(self.arguments)))
        if name.isdigit() and self.arguments is not None:
            number = int(name) - 1
            return self.arguments[number] if 0 <= number < len(self.arguments) else None
        value = self.values.get(name)
        if isinstance(value, Array):
            return self._item(value, index)
        return value if index in ("", "0") else None

    def _item(self, array: Array, index: str) -> Text | None:
        if not array.whole:
            raise UnknowableError(index)
        if array.keyed:
            return array.items.get(index or "0")
        number = self.number(index or "0")
        return array.items.get(str(number if number >= 0 else number + 1 + max(map(int, array.items), default=-1)))

    def learn(self, value: Text, literal: str) -> None:
        """Replaces an unknown text by ``literal`` in this state, after a test has shown that they are equal."""
        for name, own in self.values.items():
            if own == value:
                self.values[name] = known(literal)
        (part,) = value.parts if len(value.parts) == 1 else (None,)
        name = part.text.strip("${}") if part else ""
        if name.isidentifier() and not self.knows(name):
            self.values[name] = known(literal)

    def array(self, name: str) -> Array | None:
        """Returns a variable's value as an array; None if it is not set."""
        if name in ("@", "*"):
            texts = self.arguments
            return None if texts is None else Array({str(number): text for number, text in enumerate(texts)})
        value = self.values.get(name)
        return Array({"0": value}) if isinstance(value, Text) else value

    @property
    def blanks(self) -> str:
        """Field separators at which unquoted words are split (``IFS``)."""
        value = self.values.get("IFS", known(BLANKS))
        return value.shown if isinstance(value, Text) and value.known else BLANKS

    def words(self, name: str) -> Words | None:
        """Returns all items of a variable as words; None if it is not set."""
        array = self.array(name)
        return None if array is None else Words(tuple(array.items.values()))

    def number(self, text: str) -> int:
        """Evaluates a shell arithmetic expression (``$((…))``). Raises UnknowableError.

        Raises:
            UnknowableError: nobody knows what it gives.
        """
        return Arithmetic(text, self._known, lambda name, new: self.set(name, known(new))).value()

    def _known(self, name: str) -> str:
        name, _, index = name.partition("[")
        text = self.text(name, index.removesuffix("]"))
        if text is None and not self.knows(name):
            raise UnknowableError(name)
        if text is not None and not text.known:
            raise UnknowableError(name)
        return (text or EMPTY).shown

    def set(self, name: str, value: Value, index: str | None = None) -> None:
        """Sets a variable, or the item ``index`` of an array."""
        name, bracket, inner = name.partition("[")
        index = inner.removesuffix("]") if bracket else index
        if index is None:
            old = self.values.get(name)
            if isinstance(old, Array) and isinstance(value, Text):
                value = Array({**old.items, "0": value}, old.keyed, old.whole)
            self.values[name] = value
            return
        array = self.array(name) or Array(keyed=name in self.keyed)
        text = value if isinstance(value, Text) else EMPTY
        key = index if array.keyed else str(self.number(index))
        self.values[name] = Array({**array.items, key: text}, array.keyed, array.whole)

    def append(self, name: str, value: Text | Array) -> None:
        """Appends to a variable, as ``NAME+=value`` does."""
        old = self.values.get(name)
        if isinstance(value, Array):
            array = self.array(name) or Array(keyed=value.keyed)
            if value.keyed:
                self.values[name] = Array({**array.items, **value.items}, True, array.whole and value.whole)
                return
            first = 1 + max((int(key) for key in array.items), default=-1)
            more = {str(first + number): text for number, text in enumerate(value.items.values())}
            self.values[name] = Array({**array.items, **more}, False, array.whole and value.whole)
        elif isinstance(old, Array):
            self.values[name] = Array({**old.items, "0": old.items.get("0", EMPTY) + value}, old.keyed, old.whole)
        else:
            self.values[name] = (old or EMPTY) + value


def first_state() -> State:
    """Returns the shell state at the first line of a script."""
    return State({"HOME": known(str(Path.home())), "PWD": known(str(Path.cwd())), "IFS": known(" \t\n")})
