"""Turns a configuration of RLinf, verl, ROLL or Cosmos-RL into one of ours, and says what became of each key.

their keys and values ─▶ foreign: rows ─▶ foreign_rules: what each says ─▶ settings ─▶ the checks of a run
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from embodied.errors import EmbodiedError
from embodied.parallel.group import Group
from embodied.run import migration_texts as texts
from embodied.run.preflight import check
from embodied.schema.actor import ActorConfig
from embodied.schema.compose import compose, group_options
from embodied.schema.foreign import find
from embodied.schema.foreign_counts import ROBOTS
from embodied.schema.foreign_rules import said_of
from embodied.schema.foreign_said import Lookup, Unresolved, UnresolvedError
from embodied.schema.foreign_usual import left_out
from embodied.schema.table import keys

SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "rlinf": ("rlinf", "rlinf-old"), "verl": ("verl", "simplevla-rl"), "roll": ("roll",), "cosmos-rl": ("cosmos-rl",),
}  # fmt: skip
"""What a user calls a system → its names in the tables."""

GROUPS = {"env": ("/env@env.train", "/env@env.eval"), "model": ("/model",)}
"""Group → where its file is put."""

HOWS = {
    "same": "taken over", "renamed": "renamed", "derived": "derived", "extra": "needs something more",
    "nothing": "said by something else, or asks for nothing", "refused": "refused", "unknown": "not known",
}  # fmt: skip
"""What became of a key → how the report says it, in its order."""

MOST_TRIES = 60
BATCH, PASS, VALUES = "actor.global_batch_size", "actor.micro_batch_size", "actor.model.value_head"
ENGINE = "rollout.backend"
NOT_SET = re.compile(r"([\w.]+) is not set, and has no default")
"""What an error says of a key that the user has to give; the rest is tried with something in its place."""
UNRESOLVED = re.compile(r"\$(\{[^}]*\}|\w+)")
"""A reference, or a name of the shell that their script does not set."""


@dataclass(frozen=True)
class Note:
    """What became of a key of theirs."""

    key: str
    value: Any
    how: str  # of HOWS
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass
class Migration:
    """A configuration of theirs as one of ours.

    Args:
        groups: ``env`` and ``model``, where their file says them.
        settings: our dotted keys and their values.
        remaining: what is still wrong with it, as the error of a run says; empty if it is a whole configuration.
        elsewhere: what a run would then find wrong with files, or with this machine.
    """

    groups: dict[str, str]
    settings: dict[str, Any]
    notes: list[Note]
    remaining: str = ""
    elsewhere: str = ""

    def as_yaml(self) -> str:
        """Returns the file of an experiment."""
        nested: dict[str, Any] = {}
        for key, value in self.settings.items():
            *path, name = key.split(".")
            inner = nested
            for part in path:
                inner = inner.setdefault(part, {})
            inner[name] = value
        lines = ["# @package _global_"]
        if self.groups:
            places = [{f"override {place}": name} for group, name in self.groups.items() for place in GROUPS[group]]
            lines.append(yaml.safe_dump({"defaults": places}, sort_keys=False).strip())
        text = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True).strip() if nested else ""
        return "\n".join([*lines, *([text] if text else []), ""])


def migrate(mapping: Mapping[str, Any], system: str, given: Sequence[str] = ()) -> Migration:
    """Translates a configuration.

    Args:
        mapping: theirs, nested; references in it are resolved where they can be.
        system: of :data:`SYSTEMS`.
        given: overrides of ours, e.g. ``model=openvla_oft_tiny``, with which it is tried.
    """
    flat = dict(_leaves("", {name: inner for name, inner in mapping.items() if name != "defaults"}, SYSTEMS[system]))
    groups, notes = _groups_of(mapping.get("defaults"))
    settings: dict[str, Any] = {}
    own = {key.name for key in keys()}
    usual = left_out(system, flat)
    for key, value in {**flat, **usual}.items():
        note = _note(key, value, system, {**flat, **usual}, own)
        note = replace(note, key=f"{key} (their default)") if key in usual else note
        clash = [name for name, one in note.settings.items() if settings.get(name, one) != one]
        if clash:
            note = replace(note, how="refused", settings={}, why=f"{clash[0]} is {settings[clash[0]]!r} already")
        for name, one in note.settings.items():
            if name in GROUPS:
                groups.setdefault(name, str(one))
            else:
                settings[name] = one
        notes.append(note)
    found = Migration(groups, settings, notes)
    _fit_passes(found)
    _fit_data(found, system, flat, given)
    _give_values(found, system)
    _check_groups(found)
    if "env" not in groups and any(_names_problems(key, SYSTEMS[system]) for key in flat):
        groups["env"] = "math"
    if groups.get("env") == "math":
        groups.setdefault("model", "causal_lm")
    _try(found, given)
    return found


def _leaves(path: str, value: Any, systems: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The keys in a mapping, with their values; a mapping that is one setting of theirs stays whole."""
    if not isinstance(value, Mapping) or not value or (path and find(path, systems)):
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{path}.{name}".lstrip("."), inner, systems)


def _open(value: Any) -> bool:
    """Whether a value of theirs cannot be known here."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return (
        isinstance(value, Unresolved)
        or (isinstance(value, str) and bool(UNRESOLVED.search(value)))
        or any(map(_open, inner))
    )


def _asked(flat: Mapping[str, Any]) -> Lookup:
    """Their values for rules that compute with them; one that cannot be known is no value. Whether a key of a robot is
    there can be asked all the same."""

    def get(key: str) -> Any:
        value = flat.get(key)
        if _open(value) and key not in ROBOTS:
            raise UnresolvedError(key)
        return value

    return get


def _note(key: str, value: Any, system: str, flat: Mapping[str, Any], own: set[str]) -> Note:
    if _open(value):
        return Note(key, value, "refused", why="the reference cannot be resolved here: write its value")
    rows = find(key, SYSTEMS[system])
    if rows:
        try:
            said = said_of(rows[0], value, _asked(flat))
        except UnresolvedError as error:
            return Note(key, value, "refused", why=f"it needs {error.key}, which cannot be resolved here")
        return Note(key, value, said.how, said.settings, said.why)
    if key in own:
        return Note(key, value, "same", {key: value})
    return Note(key, value, "unknown", why="no document of theirs explains it")


def _names_problems(key: str, systems: Sequence[str]) -> bool:
    """Whether a key names files of problems; also where its value could not be taken over."""
    return any("data.train_data_paths" in row.ours for row in find(key, systems))


def _groups_of(defaults: Any) -> tuple[dict[str, str], list[Note]]:
    """Reads RLinf's list of group files: ``env/libero_10@env.train``."""
    groups, notes = dict[str, str](), list[Note]()
    for entry in defaults if isinstance(defaults, list) else []:
        for text in entry if isinstance(entry, Mapping) else [entry]:
            value = entry[text] if isinstance(entry, Mapping) else None
            name = str(text).removeprefix("override ").lstrip("/").partition("@")[0]
            group, _, file = name.partition("/")
            file = str(value) if value else file
            if group in GROUPS and file:
                groups.setdefault(group, file)
                notes.append(Note("defaults", text, "renamed", {group: file}))
            elif name != "_self_":
                notes.append(Note("defaults", text, "nothing", why="groups of theirs that ours do not need"))
    return groups, notes


def _fit_passes(found: Migration) -> None:
    """Makes a pass no larger than the optimizer batch, which others allow: there a batch may be one pass."""
    batch, usual = found.settings.get(BATCH), ActorConfig.model_fields["micro_batch_size"].default
    records = found.settings.get(PASS, usual)
    if not isinstance(batch, int) or not isinstance(records, int) or records <= batch:
        return
    found.settings[PASS] = batch
    for number, note in enumerate(found.notes):
        if BATCH in note.settings:
            why = f"{note.why}; " if note.why else ""
            note = replace(note, settings={**note.settings, PASS: batch}, why=f"{why}a pass has no more records")
        found.notes[number] = note


def _fit_data(found: Migration, system: str, flat: Mapping[str, Any], given: Sequence[str]) -> None:
    """Adds what follows from the problems themselves: those of ``given`` if it names some."""
    if texts.TRAIN not in found.settings:
        return
    mine = dict(one.split("=", 1) for one in given if one.startswith((f"{texts.TRAIN}=", f"{texts.VALIDATION}=")))
    known = {**found.settings, **{key: yaml.safe_load(value) for key, value in mine.items()}}
    for number, note in enumerate(found.notes):
        if note.key.partition(" ")[0] in texts.PASSES and texts.ITERATIONS in note.settings:
            del found.settings[texts.ITERATIONS]
            said, how, why = texts.iterations(note.settings[texts.ITERATIONS], known)
            found.settings |= said
            found.notes[number] = replace(note, how=how, settings=said, why=why)
    if system == "verl" and "model.partial_pretrain" not in flat:
        for key, value, how, more, why in texts.of_data(known):
            found.settings |= more
            found.notes.append(Note(key, value, how, more, why))


def _give_values(found: Migration, system: str) -> None:
    """Gives the policy a value head where advantages need one: others have a critic beside the policy. An engine gives
    no values. verl's are of tokens, and it always normalises what follows from them."""
    if found.settings.get("algorithm.adv_type") != "gae":
        return
    texts_of_verl = system == "verl" and texts.TRAIN in found.settings
    of_tokens = {"algorithm.reward_type": "token_level", "algorithm.normalize_advantages": True}
    more = {VALUES: True, **(of_tokens if texts_of_verl else {})}
    found.settings |= more
    for number, note in enumerate(found.notes):
        if note.settings.get("algorithm.adv_type") == "gae":
            why = "the policy gives the values, in the place of a critic"
            found.notes[number] = replace(note, how="derived", settings={**note.settings, **more}, why=why)
        if note.settings.get(ENGINE) == "vllm":
            found.settings[ENGINE] = "native"
            why = "vLLM gives no values, and algorithm.adv_type gae needs them"
            found.notes[number] = replace(note, how="derived", settings={ENGINE: "native"}, why=why)


def _check_groups(found: Migration) -> None:
    """Leaves out groups that are not here, with what there is."""
    for group, name in list(found.groups.items()):
        options = group_options(group)
        if name not in options:
            same = [one for one in options if name.lower() in one or one in name.lower()]
            near = f"; perhaps {', '.join(same[:5])}" if same else ""
            del found.groups[group]
            found.notes.append(Note(group, name, "refused", why=f"there is no {group}={name} here{near}"))


def _try(found: Migration, given: Sequence[str]) -> None:
    """Checks the result as a run does, and leaves out what the error names, until a run would begin or nothing more can
    be left out: then something is wrong with files or with this machine."""
    missing: dict[str, str] = {}  # key → the error
    for _ in range(MOST_TRIES):
        composed = False
        try:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "experiment").mkdir()
                (Path(folder) / "experiment" / "theirs.yaml").write_text(found.as_yaml(), encoding="utf-8")
                config = compose(
                    ["experiment=theirs", *given, *(f"{key}=TO_BE_GIVEN" for key in missing)], "train", [folder]
                )
            composed = True
            check(config, Group())
        except EmbodiedError as error:
            if not_set := NOT_SET.match(error.message):
                missing[not_set[1]] = str(error)
                continue
            if each := _lines(found, error):
                for key, line in each.items():
                    _leave_out(found, key, line, error)
                continue
            named = [key for key in found.settings if _names(error, key)]
            named = named or [key for key in found.settings if key.count(".") > 1 and _names(error, _section(key))]
            named = [key for key in named if f"set {key}=" not in error.remedy] or named
            if not named:
                found.remaining, found.elsewhere = ("", str(error)) if composed else (str(error), "")
                break
            lines = error.message.splitlines()
            _leave_out(found, named[0], next((line for line in lines if named[0] in line), lines[0]), error)
        else:
            break
    found.remaining = "\n".join([*missing.values(), *filter(None, [found.remaining])])


def _names(error: EmbodiedError, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", error.message) is not None


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _lines(found: Migration, error: EmbodiedError) -> dict[str, str]:
    """The lines of an error that are each about one key of the result, where it has several."""
    lines = error.message.splitlines()
    told = {
        key: line
        for line in lines
        for key in found.settings
        if re.match(rf"(unknown key ')?{re.escape(key)}[ ']", line)
    }
    return told if len(lines) > 1 else {}


def _leave_out(found: Migration, key: str, why: str, error: EmbodiedError) -> None:
    """Takes a key out of the result, or of a list that element which the error is about."""
    value = found.settings.pop(key)
    rest = (
        [one for one in value if not re.search(rf"\b{re.escape(str(one))}\b", why)] if isinstance(value, list) else []
    )
    if rest := rest if rest != value else []:
        found.settings[key], why = rest, f"{why}; {error.remedy}"
    for number, note in enumerate(found.notes):
        if key in note.settings:
            kept = {name: one for name, one in note.settings.items() if name != key} | ({key: rest} if rest else {})
            found.notes[number] = replace(note, how="extra" if rest else "refused", settings=kept, why=why)
