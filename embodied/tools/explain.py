"""``embodied explain NAME``: says what a key, a metric or an error is, what it is by default, and where it stands.

embodied explain algorithm.clip_ratio_c
embodied explain train/approx_kl
embodied explain WorkerHungError
embodied explain clip                everything with these letters in its name
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc, isclass

from embodied import errors
from embodied.errors import ConfigError, EmbodiedError, did_you_mean
from embodied.observe.metrics import METRICS
from embodied.schema import foreign
from embodied.schema.foreign_hints import hint
from embodied.schema.table import keys

MOST = 40
"""Names that a part of a name finds at most."""


@dataclass(frozen=True)
class Entry:
    """What can be said of a name."""

    name: str
    kind: str
    lines: Sequence[str]


def entries() -> Iterator[Entry]:
    """Yields everything that can be explained."""
    for key in keys():
        lines = [key.meaning, f"type: {_plain(key.type)}", f"default: {_plain(key.default)}"]
        if others := foreign.answered(key.name):
            lines.append(f"answers: {others}")
        yield Entry(key.name, "key", lines)
    for name, meaning in METRICS.items():
        yield Entry(name, "metric", [meaning])
    for name, value in vars(errors).items():
        if isclass(value) and issubclass(value, EmbodiedError):
            text = cleandoc(value.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
            yield Entry(name, "error", [text, "its message ends with the fix; docs/troubleshooting.md says more"])


def _plain(text: str) -> str:
    return text.replace("`", "")


def explain(name: str) -> list[Entry]:
    """Returns the entry of this name, or those that have it in theirs.

    Raises:
        ConfigError: there is none, or there are too many.
    """
    known = {entry.name: entry for entry in entries()}
    wanted = name.partition("=")[0].lstrip("+")
    if wanted not in known and (told := hint(wanted).strip()):
        return [Entry(wanted, "key of another system", [told])]
    if wanted in known:
        return [known[wanted]]
    found = [entry for entry in known.values() if wanted.lower() in entry.name.lower()]
    if not found or not wanted:
        own = _of_target(wanted)
        raise ConfigError(
            f"nothing is called '{wanted}'.{own or did_you_mean(wanted, known)}",
            "give a key (docs/configuration.md), a metric (docs/metrics.md), an error's name, or a part of one",
        )
    if len(found) > MOST:
        raise ConfigError(f"{len(found)} names have '{wanted}' in them", "give more of the name")
    return found


def _of_target(name: str) -> str:
    """Says where the meaning of a key stands that the schema does not have."""
    section = next((one for one in ("env.train.", "env.eval.", "actor.model.") if name.startswith(one)), None)
    if section is None:
        return ""
    return (
        f" Under {section}* there are also the arguments of the class that {section}_target_ names: see its docstring."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for a name that is not known."""
    parser = argparse.ArgumentParser(prog="embodied explain", description="Say what a key, a metric or an error is.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a key, a metric, an error, or a part of its name")
    try:
        for name in parser.parse_args(argv).names:
            for entry in explain(name):
                print(f"{entry.name} ({entry.kind})", *(f"  {line}" for line in entry.lines), sep="\n")
    except EmbodiedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
