"""Which KEY=VALUE words a script hands to the program that it starts, and what their values are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from embodied.errors import ConfigError
from embodied.migrate.shell.merging import TooManyWaysError
from embodied.migrate.shell.run import ways
from embodied.migrate.shell.state import Command, State
from embodied.migrate.shell.syntax import prepared
from embodied.migrate.shell.texts.text import Text, known
from embodied.schema.others.translation import Unresolved

KEY = re.compile(r"(\+\+|\+|~|)([A-Za-z_][\w@/:-]*(?:\.[\w.@/:-]*)?)(=)", re.DOTALL)
TAKEN_OUT = re.compile(r"~([A-Za-z_][\w@/:-]*\.[\w.@/:-]*)")
QUIET = ("printf", "git", "sed", "awk", "grep", "cat", "tee", "curl", "wget", "pip", "pip3", "alias", "ls", "mkdir")
"""Commands that start no training, whatever their words look like."""
CONFIGURATION = re.compile(r"--?(?:config[-_]?name|config[-_]?path|config|cn|cp)(?:=(.+))?")
UNSET = "nothing"
MOST_VALUES = 4


@dataclass
class Script:
    """The ``KEY=VALUE`` words that a shell script passes to a training program, as a nested mapping, and remarks for
    the reader.

    Args:
        keys: nested, with values, or :class:`Unresolved` in their place.
        remarks: what a reader should know of how they were found.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def read_script(text: str, name: str) -> Script:
    """Reads the ``KEY=VALUE`` words that a shell script passes to a training program, without running it.

    Args:
        name: what an error calls it.

    Raises:
        ConfigError: it is no shell, or has no KEY=VALUE words.
    """
    text, comments = prepared(text)
    try:
        states = ways(text, name)
    except (TooManyWaysError, RecursionError):
        raise ConfigError(
            f"{name}: it has more branches than can be followed",
            "write its KEY=VALUE words into a .txt file, one a line, with the values that you want",
        ) from None
    lines = text.splitlines()
    remarks = [f"line {at}: a comment in the middle of a command; the words behind it are read too" for at in comments]
    if not (runs := _chosen(states, remarks, lines)):
        raise _no_keys(name, states)
    found = Script(remarks=remarks)
    for key, value in _merged([_keys_of(words) for words in runs]).items():
        _put(found, key, value)
    _say_what_is_open(found, states, runs)
    return found


def _is_key(word: Text) -> re.Match[str] | None:
    return KEY.match(word.parts[0].text) if word.parts and word.parts[0].known else None


def _keyed(words: Sequence[Text]) -> list[Text]:
    """Words that say keys: those with a dot, and behind the name of a Python program those without one too."""
    begin = max((at for at, word in enumerate(words) if word.shown.endswith(".py") and not _is_key(word)), default=0)
    modules = [at + 1 for at, word in enumerate(words) if word.shown == "-m"]
    begin = max([begin, *modules])
    found = []
    for at, word in enumerate(words):
        key = _is_key(word)
        if (key and ("." in key[2] or (begin and at > begin))) or (word.known and TAKEN_OUT.fullmatch(word.shown)):
            found.append(word)
    return found


def _starts(command: Command) -> bool:
    name = command.words[0].shown.rpartition("/")[2]
    return name not in QUIET and any("." in (_is_key(word) or "  ")[2] for word in command.words if _is_key(word))


def _program(command: Command) -> str:
    shown = [word.shown for word in command.words]
    return next((word for word in shown if word.endswith(".py") or re.fullmatch(r"\w+(\.\w+)+", word)), shown[0])


def _chosen(states: Sequence[State], remarks: list[str], lines: Sequence[str]) -> list[Sequence[Text]]:
    """The words of the command with the most keys, for each way that the script may go. A way without it gives those of
    the same program that it starts instead."""
    each = [[one for one in state.commands if _starts(one)] for state in states]
    every = {one.site: one for commands in each for one in commands}
    if not every:
        return []
    size = {site: max(len(_keyed(one.words)) for run in each for one in run if one.site == site) for site in every}
    best = max(every, key=lambda site: (size[site], -site))
    runs, used = list[Sequence[Text]](), set[int]()
    for commands in each:
        mine = [one for one in commands if one.site == best]
        same = [one for one in commands if _program(one) == _program(every[best])]
        mine = mine or sorted(same, key=lambda one: -len(_keyed(one.words)))[:1]
        used |= {one.line for one in mine}
        runs += [one.words for one in mine if one.words not in runs]
    others = sorted({one.line for one in every.values()} - used)
    if others:
        shown = ", ".join(f"line {line} ({lines[line - 1].strip()[:50]} …)" for line in others)
        remarks.append(f"several commands have keys; the one with the most counts: line {min(used)}. Not read: {shown}")
    if len(used) > 1:
        remarks.append(f"the command stands in several branches: lines {', '.join(map(str, sorted(used)))}")
    return runs


def _keys_of(words: Sequence[Text]) -> dict[str, Text]:
    found: dict[str, Text] = {}
    for word in _keyed(words):
        key = _is_key(word)
        if key is None or key[1] == "~":
            name = word.shown.removeprefix("~").partition("=")[0]
            found.pop(name, None)
            found[f"~{name}"] = known("")
            continue
        rest = Text((type(word.parts[0])(word.parts[0].text[key.end() :]), *word.parts[1:]))
        found[key[2]] = rest
        found.pop(f"~{key[2]}", None)
    return found


def _merged(runs: Sequence[Mapping[str, Text]]) -> dict[str, Any]:
    """Each key with its value; where the ways differ, nobody knows it."""
    found = {}
    for key in dict.fromkeys(key for run in runs for key in run):
        values = list(dict.fromkeys(run.get(key) for run in runs))
        sure = [one for one in values if one is None or not one.given]
        values = sure or values
        only = values[0] if len(values) == 1 else None
        if only is not None:
            found[key] = value_of(key, only.shown) if only.known else Unresolved(only.shown)
        elif values != [None]:
            shown = [UNSET if one is None else one.shown or "''" for one in values]
            found[key] = Unresolved(" or ".join(shown[:MOST_VALUES] + ["…"] * (len(shown) > MOST_VALUES)))
    return found


def value_of(key: str, text: str) -> Any:
    """Parses a command-line value as hydra does; 1e-6 stays a text, as in YAML.

    >>> value_of("a.b", "[1,x]"), value_of("a.b", "on"), value_of("a.b", "1e-6"), value_of("a.b", "")
    ([1, 'x'], 'on', '1e-6', None)
    """
    if not text:
        return None
    try:
        override = OverridesParser.create().parse_override(f"a={text}")
        if not override.is_sweep_override():
            value = _plain(override.value())
            return text if isinstance(value, float) and isinstance(yaml.safe_load(text), str) else value
    except HydraException:
        pass
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, list | dict) else text


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float) else str(getattr(value, "text", value))


def _put(found: Script, key: str, value: Any) -> None:
    if key.startswith("~"):
        found.remarks.append(f"{key}: the script takes this key out, so its own default does not hold there")
        return
    *path, name = key.split(".")
    inner = found.keys
    for at, part in enumerate(path):
        if not isinstance(own := inner.setdefault(part, {}), dict):
            found.remarks.append(_has_value_too(part, own) if not at else f"{key}: {part} has a value of its own too")
            inner[part] = {}
        inner = inner[part]
    if not path and isinstance(inner.get(name), dict) and not isinstance(value, dict):
        found.remarks.append(_has_value_too(name, value))
    else:
        inner[name] = value


def _has_value_too(name: str, value: Any) -> str:
    return f"{name}={value} chooses a file of theirs beside keys of {name}; what that file sets is not known here"


def _say_what_is_open(found: Script, states: Iterable[State], runs: Sequence[Sequence[Text]]) -> None:
    """Says what else may give keys: words that nobody knows, files of a shell, files of a configuration."""
    words = [word for run in runs for word in run]
    named = [word.shown for before, word in pairwise(words) if not before.shown.startswith("-") and _may_be_keys(word)]
    if opened := dict.fromkeys(named):
        found.remarks.append(f"what these words add is not known here, give it as overrides: {', '.join(opened)}")
    if files := dict.fromkeys(file for state in states for file in state.sources):
        found.remarks.append(f"what these files set is not known here: {', '.join(files)}")
    if named := _configurations(words):
        found.remarks.append(f"the program reads a configuration too, migrate it as well: {', '.join(named)}")


def _may_be_keys(word: Text) -> bool:
    """Whether a word may stand for words with keys: nothing but a name, of which nobody knows what it is."""
    return len(word.parts) == 1 and not word.parts[0].known and not word.shown.startswith(("$(", "`"))


def _configurations(words: Sequence[Text]) -> list[str]:
    found = []
    for word, after in zip(words, [*words[1:], known("")], strict=False):
        if option := CONFIGURATION.fullmatch(word.shown):
            found.append(word.shown if option[1] else f"{word.shown} {after.shown}")
    return list(dict.fromkeys(found))


def _no_keys(name: str, states: Iterable[State]) -> ConfigError:
    commands = [one for state in states for one in state.commands]
    named = _configurations([word for one in commands for word in one.words])
    if named:
        return ConfigError(
            f"{name} has no KEY=VALUE words; its program reads a configuration: {', '.join(named)}",
            "give that file (.yaml or .toml)",
        )
    return ConfigError(
        f"{name} has no KEY=VALUE words of a command, e.g. data.train_batch_size=64",
        "give the script that starts the training, or the file of its configuration (.yaml or .toml)",
    )
