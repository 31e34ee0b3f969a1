"""What is printed of a translation: what became of each key, what is still to do, and the command of a run."""

from __future__ import annotations

import shlex

from embodied.migrate.families import can_change_a_number
from embodied.migrate.processes import GPUS
from embodied.migrate.result import GROUPS, HOWS, Migration, Note
from embodied.migrate.trial import TRAINED
from embodied.schema.compose.compose import group_options
from embodied.schema.others.values import as_overrides

WEIGHTY = ("unknown", "refused")
"""What may have become of a key that the user should look at, if it can change a number."""


def lines_of(migration: Migration, system: str) -> list[str]:
    """Formats a migration as lines of text: what became of each key, those that need a look last, then what is left to
    do."""
    lines = []
    for how, title in HOWS.items():
        notes = [note for note in migration.notes if note.how == how]
        if notes:
            lines += [f"{title}: {len(notes)}", *map(_line, notes)]
    return lines + [f"still to do before a run begins: {one}" for one in to_do(migration, system)]


def _line(note: Note) -> str:
    said = as_overrides(note.settings)
    parts = [
        f"  {note.key} = {note.value}", *([f"→ {said}"] if said else []), *([f"({note.why})"] if note.why else []),
    ]  # fmt: skip
    return " ".join(parts)


def to_do(migration: Migration, system: str) -> list[str]:
    """Lists what the user has to do after a migration: decide open keys, give missing ones, look at dropped ones that
    can change a number."""
    decide = [f"{why}\n  fix: {_choice(key)}" for key, why in migration.open.items()]
    left = [note for note in migration.notes if note.how in WEIGHTY and can_change_a_number(system, note.key)]
    left = [note for note in left if note.why not in migration.open.values()]
    told = [f"  {note.key} = {_short(note.value)} ({_short(note.why)})" for note in left]
    look = (
        ["\n".join([f"{len(left)} keys are left out that can change a number; look at each:", *told])] if left else []
    )
    return [*decide, *filter(None, [migration.remaining, migration.elsewhere]), *look]


def _choice(key: str) -> str:
    """What to do about a key that is open; the file says ``???`` there."""
    if key not in GROUPS:
        return f"set {key} in the file{', if something here does what is meant' if key in TRAINED else ''}"
    names = ", ".join(group_options(key.partition(".")[0]))
    return f"name another one in the file, if that is meant; there are: {names}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else f"{text[:159]}…"


def command(migration: Migration, folder: str, name: str) -> str:
    """Returns the lines that say how a migrated experiment is run: with as many processes as the foreign file asks
    for, and in one where this machine has fewer GPUs."""
    nodes, here = migration.launch
    rest = f"-m embodied.train --config-dir {shlex.quote(folder)} experiment={name}"
    if nodes == here == 1:
        return f"run it: python {rest}"
    several = f"--nnodes={nodes} --nproc-per-node={here} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500"
    start = f"torchrun {f'--standalone --nproc-per-node={here}' if nodes == 1 else several} {rest}"
    if nodes > 1:
        start = f"run it on each of {nodes} machines with {here} GPUs (HOST = the name of one of them): {start}"
    elif GPUS in migration.settings:
        return f"run it: {start}"
    else:
        start = f"run it on a machine with {here} GPUs: {start}"
    alone = "" if GPUS in migration.settings else f"\nor in one process, the same sizes and slower: python {rest}"
    return start + alone
