"""What commands of the shell itself do to its names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from embodied.migrate.shell.state import Array, State
from embodied.migrate.shell.texts.scan import tokens
from embodied.migrate.shell.texts.sums import UnknowableError
from embodied.migrate.shell.texts.text import EMPTY, Text, known, unknown
from embodied.migrate.shell.words import text, words

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)


def assign(written: str, state: State, options: str = "") -> None:
    """Executes a shell assignment on ``state``: ``NAME=value``, ``NAME+=value``, ``NAME=(…)``, ``NAME[index]=value``.

    Args:
        options: letters of the options of ``declare``.
    """
    found = ASSIGNMENT.fullmatch(written)
    if not found:
        return
    name, bracket, more, value = found.groups()
    if value.startswith("(") and value.endswith(")") and not bracket:
        new: Text | Array = _array(value[1:-1], "A" in options or name in state.keyed, state)
    else:
        new = text(value, state)
    try:
        if "i" in options and isinstance(new, Text) and new.known:
            new = known(str(state.number(new.shown)))
        if bracket:
            _item(name, text(bracket[1:-1], state), new, bool(more), state)
        elif more:
            state.append(name, new)
        else:
            state.set(name, new)
    except UnknowableError:
        state.values[name] = Array({"0": unknown(written)}, whole=False) if bracket else unknown(f"${name}")


def _item(name: str, index: Text, new: Text | Array, more: bool, state: State) -> None:
    if not index.known or not isinstance(new, Text):
        raise UnknowableError(name)
    before = state.text(name, index.shown) if more else None
    state.set(name, (before or EMPTY) + new, index.shown)


def _array(inner: str, keyed: bool, state: State) -> Array:
    items: dict[str, Text] = {}
    whole, at = True, 0
    for written in tokens(_without_comments(inner)):
        key, sign, value = written.partition("]=")
        if written.startswith("[") and sign:
            index = text(key[1:], state)
            whole = whole and index.known
            items[index.shown] = text(value, state)
            at = int(index.shown) + 1 if index.shown.isdigit() else at
            continue
        for word in words(written, state):
            whole = whole and (word.known or word.is_nonempty or '"' in written)
            items[str(at)] = word
            at += 1
    return Array(items, keyed, whole)


def _without_comments(inner: str) -> str:
    """Lines of an array without what stands behind a ``#`` that begins a word."""
    from embodied.migrate.shell.texts.scan import skip

    found, at = "", 0
    while at < len(inner):
        if inner[at] == "#" and (not at or inner[at - 1] in " \t\n"):
            end = inner.find("\n", at)
            at = end if end >= 0 else len(inner)
            continue
        end = skip(inner, at)
        found, at = found + inner[at:end], end
    return found


def declare(written: Sequence[str], state: State) -> None:
    """Executes a shell declaration on ``state``: ``export``, ``declare``, ``local``, ``readonly``, ``typeset``."""
    options = "".join(word for word in written[1:] if word[0] in "-+")
    is_own = bool(state.saved) and written[0] in ("local", "declare", "typeset") and "g" not in options
    for word in written[1:]:
        name = (ASSIGNMENT.fullmatch(word) or [word, word])[1]
        if word[0] in "-+" or not name.isidentifier():
            continue
        if "A" in options and written[0] != "export":
            state.keyed = state.keyed | {name}
        if is_own:
            _keep_outside(name, state)
        assign(word, state, options)
    state.status = True


def _keep_outside(name: str, state: State) -> None:
    outside = state.saved[-1]
    if name not in outside:
        state.saved = (*state.saved[:-1], {**outside, name: state.values.get(name, KeyError)})
    state.values[name] = None


def _unset(given: Sequence[Text], state: State) -> None:
    for word in given[1:]:
        name, bracket, _ = word.shown.partition("[")
        if name.isidentifier():
            state.values[name] = unknown(f"${name}") if bracket else None
    state.status = True


def _change_folder(given: Sequence[Text], state: State) -> None:
    folder = given[1] if len(given) > 1 else state.values.get("HOME")
    absolute = isinstance(folder, Text) and folder.known and folder.shown.startswith("/")
    state.values["PWD"] = folder if absolute else unknown("$PWD")
    state.status = None


def _leave(given: Sequence[Text], state: State) -> None:
    state.ended = given[0].shown
    state.status = {(): True, ("0",): True}.get(tuple(one.shown for one in given[1:]), False)


def _shift(given: Sequence[Text], state: State) -> None:
    if state.arguments is not None:
        count = given[1].shown if len(given) > 1 else "1"
        state.arguments = state.arguments[int(count) if count.isdigit() else 1 :]
    state.status = None if state.arguments is None else True


def _set(given: Sequence[Text], state: State) -> None:
    shown = [one.shown for one in given]
    if "--" in shown:
        state.arguments = tuple(given[shown.index("--") + 1 :])
    state.status = True


def _read(given: Sequence[Text], state: State) -> None:
    for word in given[1:]:
        if word.shown.isidentifier():
            state.values[word.shown] = unknown(f"${word.shown}")
    state.status = None


def _printf(given: Sequence[Text], state: State) -> None:
    if len(given) > 2 and given[1].shown == "-v":
        state.values[given[2].shown] = unknown(f"${given[2].shown}")
    state.status = True


def _let(given: Sequence[Text], state: State) -> None:
    for word in given[1:]:
        try:
            if not word.known:
                raise UnknowableError(word.shown)
            state.status = bool(state.number(word.shown))
        except UnknowableError:
            name = word.shown.partition("=")[0].rstrip("-+*/%&|^<> ")
            state.values[name] = unknown(f"${name}")
            state.status = None


def _source(given: Sequence[Text], state: State) -> None:
    state.sources = (*state.sources, *(one.shown for one in given[1:2]))
    state.status = None


def _well(given: Sequence[Text], state: State) -> None:
    state.status = True


def _badly(given: Sequence[Text], state: State) -> None:
    state.status = False


BUILTINS: Mapping[str, Callable[[Sequence[Text], State], None]] = {
    "cd": _change_folder, "pushd": _change_folder, "popd": _change_folder, "exit": _leave, "return": _leave,
    "break": _leave, "continue": _leave, "shift": _shift, "set": _set, "read": _read, "mapfile": _read,
    "readarray": _read, "getopts": _read, "printf": _printf, "let": _let, "source": _source, ".": _source,
    "unset": _unset, "false": _badly, **dict.fromkeys((":", "true", "echo", "trap", "shopt", "wait"), _well),
}  # fmt: skip
DECLARING = ("export", "declare", "local", "readonly", "typeset")
