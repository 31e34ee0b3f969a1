"""``embodied explain NAME``: says what a key, a metric or an error is, what it is by default, and where it stands.

embodied explain algorithm.clip_ratio_c
embodied explain env.eval.wait_steps   an argument of the env's class
embodied explain train/approx_kl
embodied explain WorkerHungError       as the last line of an error says it
embodied explain ppo                   a file of config/, which algorithm=ppo chooses
embodied explain clip                  everything with these letters in its name
embodied explain KEY --run runs/NAME   the value that a run has, and where it came from
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import cleandoc, getfile, isclass
from pathlib import Path

from embodied import errors
from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, did_you_mean, printed
from embodied.observe import metrics
from embodied.observe.metrics import METRICS, STAGES
from embodied.schema.compose import of_hydra
from embodied.schema.others import tables
from embodied.schema.others.hints import elsewhere, hint
from embodied.schema.others.key_table import keys
from embodied.tools.library.sources import GROUPS, Argument, arguments, choices_called, relative, settings

SECTIONS = ("env.eval", "actor.model")
"""Sections whose classes have arguments; those of env.train are those of env.eval."""
SHORT = 3
MOST = 40
"""Names that a part of a name finds at most."""


@dataclass(frozen=True)
class Entry:
    """An explanation of a name: a key, metric, error, …"""

    name: str
    kind: str
    lines: Sequence[str]
    source: Sequence[str]  # files and pages that define it
    target: str | None = None  # class whose argument it is

    @property
    def text(self) -> list[str]:
        """The explanation as it is printed. The YAML files that set a key are read for it."""
        lines = [self.name + f" ({self.kind})", *self.lines, f"source: {'; '.join(self.source)}"]
        return [*lines, *(settings(self.name, self.target) if self.kind == "key" or self.target else ())]


def entries() -> Iterator[Entry]:
    """Yields the explanations of all names, but for arguments of classes."""
    for key in keys():
        lines = [key.meaning, f"type: {_plain(key.type)}", f"default: {_plain(key.default)}"]
        if others := tables.answered(key.name):
            lines.append(f"answers: {others}")
        declared = f"{relative(getfile(key.model))} ({key.model.__name__})"
        yield Entry(key.name, "key", lines, [declared, f"docs/configuration.md, section {key.section}"])
    for name, (kind, default, meaning) in of_hydra.OF_HYDRA.items():
        where = [relative(of_hydra.__file__), "docs/configuration.md, section hydra"]
        yield Entry(name, "key", [meaning, f"type: {kind}", f"default: {_plain(default)}"], where)
    for name, meaning in METRICS.items():
        group = name.partition("/")[0]
        where = [relative(metrics.__file__), f"docs/metrics.md, section {group}"]
        yield Entry(name, "metric", [meaning, f"written by {STAGES[group]}"], where)
    for name, value in vars(errors).items():
        if isclass(value) and issubclass(value, EmbodiedError):
            text = cleandoc(value.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
            where = [relative(errors.__file__), f"docs/troubleshooting.md, section {name}"]
            yield Entry(name, "error", [text, "its message ends with the fix"], where)


def _plain(text: str) -> str:
    return text.replace("`", "")


def explain(name: str) -> list[Entry]:
    """Returns the explanation of ``name``, or of the names that contain it.

    Raises:
        ConfigError: there is none, or there are too many.
    """
    known = {entry.name: entry for entry in entries()}
    wanted = name.partition("=")[0].lstrip("+")
    if wanted in known:
        return [known[wanted]]
    section = next((one for one in GROUPS if wanted.startswith(f"{one}.")), None)
    others = [] if section is None else [*arguments(section)]
    own = wanted.removeprefix(f"{section}.").partition(".")[0]
    if found := [_of_argument(f"{section}.{own}", one) for one in others if one.name == own]:
        return found
    if found := _keys_that_end_so(wanted, known):
        return found
    if printed := hint(wanted).strip():
        ours = [key for row in tables.find(wanted) for key in row.ours if key in known]
        return [_of_another_system(wanted, printed), *(known[key] for key in dict.fromkeys(ours))]
    choices = [Entry(one.name, "choice", one.meaning, [one.file]) for one in choices_called(wanted)]
    found = _of_short_name(wanted, known) or [one for one in known.values() if _has(one.name, wanted)]
    if choices:
        return [*choices, *found] if len(found) <= MOST else choices
    if not found and (reason := _why_none(wanted)):
        return [_of_another_system(wanted, reason)]
    if not found or not wanted:
        names = [*known, *(f"{section}.{one.name}" for one in others)]
        raise ConfigError(
            f"nothing is called '{wanted}'.{did_you_mean(wanted, names)}{_of_target(section)}",
            "give a key (docs/configuration.md), a metric (docs/metrics.md), an error's name, or a part of one",
        )
    if len(found) > MOST:
        raise ConfigError(f"{len(found)} names have '{wanted}' in them", "give more of the name")
    return found


def _why_none(name: str) -> str:
    """Says why a key of another system is none here; empty if no system has it."""
    from embodied.migrate.families import reason_of  # with all that a run needs, which takes a second

    return reason_of(name) if name else ""


def _of_another_system(name: str, text: str) -> Entry:
    return Entry(name, "key of another system", [text], ["docs/migrate.md"])


def _keys_that_end_so(wanted: str, known: Mapping[str, Entry]) -> list[Entry]:
    return [one for name, one in known.items() if wanted and name.endswith((f".{wanted}", f"/{wanted}"))]


def _of_short_name(wanted: str, known: Mapping[str, Entry]) -> list[Entry]:
    """Arguments of classes with this last name, else what other systems call so, else keys and arguments that have it
    in theirs."""
    if not wanted.isidentifier():
        return []
    every = [_of_argument(f"{section}.{one.name}", one) for section in SECTIONS for one in arguments(section)]
    if found := [entry for entry in every if entry.name.rpartition(".")[2] == wanted]:
        return found
    if printed := elsewhere(wanted).strip():
        return [_of_another_system(wanted, printed)]
    return [
        *(entry for entry in known.values() if _has(entry.name, wanted)),
        *(entry for entry in every if _has(entry.name.rpartition(".")[2], wanted)),
    ]


def _has(name: str, wanted: str) -> bool:
    """Whether a name has a part of one; up to three letters, as ``tp`` and ``ent``, begin a word of it."""
    place = name.lower().find(wanted.lower())
    if len(wanted) > SHORT or place < 0:
        return place >= 0
    return any(word.startswith(wanted.lower()) for word in re.split(r"[._/]", name.lower()))


def _of_argument(name: str, one: Argument) -> Entry:
    places = [one.file, *(["docs/models.md"] if name.startswith("actor.model.") else [])]
    return Entry(name, f"argument of {one.target}", [one.meaning, f"default: {one.default}"], places, one.target)


def _of_target(section: str | None) -> str:
    """Says where the meaning of a key stands that a class of the user's takes."""
    if section is None:
        return ""
    return (
        f" Under {section} there are also the arguments of the class that {section}._target_ names: see its docstring."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for a name that is not known."""
    parser = argparse.ArgumentParser(prog="embodied explain", description="Say what a key, a metric or an error is.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a key, a metric, an error, or a part of its name")
    parser.add_argument("--run", type=Path, metavar="DIR", help="say what this run has under the keys, and from where")
    given = parser.parse_args(argv)
    try:
        if given.run is not None:
            from embodied.tools.library.run_origins import of_run

            print(*(line for name in given.names for line in of_run(name, given.run)), sep="\n")
            return 0
        for name in given.names:
            for entry in explain(name):
                print(*entry.text, sep="\n  ")
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))
