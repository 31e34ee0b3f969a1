"""Tries a translation with the checks of a run, and leaves out what they refuse.

The network is not asked: names of data sets on the hub are tried with one row of a file in their place.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError
from embodied.migrate import texts
from embodied.migrate.processes import launch, start_one
from embodied.migrate.result import Migration
from embodied.parallel.group import Group
from embodied.rows.hub import is_hub_name
from embodied.run.build.preflight import check
from embodied.schema.compose.compose import compose

MOST_TRIES = 60
NOT_SET = re.compile(r"([\w.]+) is not set, and has no default")
"""What an error says of a key that the user has to give; the rest is tried with something in its place."""
UNEQUAL = re.compile(r".*processes of the run cannot share it equally")
"""What an error says of a number that several processes do not divide: it is kept, and one process is started."""
TRAINED = ("algorithm.loss_type", "algorithm.adv_type", "algorithm.loss_agg_func", "runner.task_type")
"""Keys that say what is trained: where a run knows no such value, the key stays open instead of at its default."""
ROBOT = {"env": "libero_10", "env.eval": "libero_10", "model": "openvla_oft_tiny"}
TEXT = {"env": "math", "env.eval": "math", "model": "causal_lm"}
"""Group that is open → what stands for it while the rest is tried."""
UNKNOWN = {"unknown loss type": "algorithm.loss_type", "unknown advantage type": "algorithm.adv_type"}
"""How an error begins that names a value, and not its key → the key."""
NO_VALUE = re.compile(r"unknown (loss|advantage) type|input should be")
"""What an error says of a value that a key cannot have."""
PARTS = ("train_subset", "train_split", "train_revision", "val_subset", "val_split", "val_revision")
VERIFIER = "env.train.verifier"


def attempt(migration: Migration, overrides: Sequence[str], devices: int | None = None) -> None:
    """Composes the migrated configuration again and again, dropping settings that are refused, until a run would begin
    or nothing more can be dropped.

    Args:
        overrides: overrides of ours with which it is tried.
        devices: GPUs of this machine; None = they are counted where several are asked for.
    """
    missing: dict[str, str] = {}  # key → the error
    nodes, here = migration.launch = launch(migration, devices)
    processes = Group(size=nodes * here, local_size=here)
    for _ in range(MOST_TRIES):
        composed = False
        try:
            with tempfile.TemporaryDirectory() as folder:
                config = _composed(migration, folder, [*overrides, *(f"{key}=TO_BE_GIVEN" for key in missing)])
                composed = True
                check(config, processes)
        except EmbodiedError as error:
            unequal = UNEQUAL.search(error.message)
            if unequal and any(key in unequal[0] for key in migration.settings):  # a number of theirs, and not ours
                start_one(migration, unequal[0])
                processes = Group()
            elif not_set := NOT_SET.match(error.message):
                missing[not_set[1]] = str(error)
            elif not _left_out(migration, error):
                migration.remaining, migration.elsewhere = ("", str(error)) if composed else (str(error), "")
                break
        else:
            break
    migration.remaining = "\n".join([*missing.values(), *filter(None, [migration.remaining])])
    if hub := _on_the_hub(migration, overrides):
        names = ", ".join(name for names in hub.values() for name in names)
        word = f"data sets of the hub, which a run loads: {names}; nothing is downloaded to translate a file"
        migration.elsewhere = "\n".join(filter(None, [migration.elsewhere, word]))


def _composed(migration: Migration, folder: str, overrides: Sequence[str]) -> Any:
    (Path(folder) / "experiment").mkdir()
    problems = migration.groups.get("env") == "math" or "data.train_data_paths" in migration.settings
    text = migration.as_yaml(TEXT if problems else ROBOT)
    (Path(folder) / "experiment" / "theirs.yaml").write_text(text, encoding="utf-8")
    if hub := _on_the_hub(migration, overrides):
        file = Path(folder) / "problems.jsonl"
        file.write_text(f"{json.dumps(_row(migration.settings))}\n" * 8, encoding="utf-8")
        overrides = [*overrides, *(f"{key}=[{file}]" for key in hub), *(f"data.{part}=null" for part in PARTS)]
    if any(one.get("name") == "custom" for one in migration.settings.get(VERIFIER) or ()):
        overrides = [*overrides, f"{VERIFIER}=[{{name: zero}}]"]  # its file is not imported to translate another
    return compose(["experiment=theirs", *overrides], "train", [folder])


def _on_the_hub(migration: Migration, overrides: Sequence[str]) -> dict[str, list[str]]:
    """Our key → names of data sets that are on the hub, of keys that ``overrides`` does not give."""
    named: dict[str, list[str]] = {}
    for key in (texts.TRAIN, texts.VALIDATION):
        paths = migration.settings.get(key)
        if isinstance(paths, list) and not any(one.startswith(f"{key}=") for one in overrides):
            named[key] = [str(path) for path in paths if is_hub_name(str(path))]
    return {key: names for key, names in named.items() if names}


def _row(settings: Mapping[str, Any]) -> dict[str, Any]:
    """One problem with the columns that the keys name."""
    row: dict[str, Any] = {}
    columns = {"prompt_key": "1+1=", "answer_key": "2", "data_source_key": "x"}
    for key, value in columns.items():
        default = {"prompt_key": "prompt", "answer_key": "answer"}.get(key)
        *path, name = str(settings.get(f"data.{key}") or default or key).split(".")
        inner = row
        for part in path:
            inner[part] = inner = inner[part] if isinstance(inner.get(part), dict) else {}
        inner[name] = value
    if column := settings.get("data.messages_key"):
        row[str(column)] = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    return row


def _left_out(migration: Migration, error: EmbodiedError) -> bool:
    """Leaves out what an error is about. False: it names none of the settings."""
    for start, key in UNKNOWN.items():
        if error.message.startswith(start) and key in migration.settings:
            _leave_out(migration, key, error.message.splitlines()[0], error.remedy)
            return True
    if each := _lines(migration, error):
        for key, line in each.items():
            _leave_out(migration, key, line, error.remedy)
        return True
    named = [key for key in migration.settings if _names(error, key)]
    named = named or [key for key in migration.settings if key.count(".") > 1 and _names(error, _section(key))]
    named = [key for key in named if f"set {key}=" not in error.remedy] or named
    if not named:
        return False
    lines = error.message.splitlines()
    _leave_out(migration, named[0], next((line for line in lines if named[0] in line), lines[0]), error.remedy)
    return True


def _names(error: EmbodiedError, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", error.message) is not None


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _lines(migration: Migration, error: EmbodiedError) -> dict[str, str]:
    """The lines of an error that are each about one key of the result, where it has several."""
    lines = error.message.splitlines()
    told = {
        key: line
        for line in lines
        for key in migration.settings
        if re.match(rf"(unknown key ')?{re.escape(key)}[ ']", line)
    }
    return told if len(lines) > 1 else {}


def _leave_out(migration: Migration, key: str, why: str, remedy: str) -> None:
    """Takes a key out of the result, or of a list that element which the error is about. A key that says what is
    trained becomes open."""
    value = migration.settings.pop(key)
    rest = (
        [one for one in value if not re.search(rf"\b{re.escape(str(one))}\b", why)] if isinstance(value, list) else []
    )
    if rest := rest if rest != value else []:
        migration.settings[key], why = rest, f"{why}; {remedy}"
    elif key in TRAINED and NO_VALUE.search(why):
        migration.open.setdefault(key, why)
    for number, note in enumerate(migration.notes):
        if key in note.settings:
            kept = {name: one for name, one in note.settings.items() if name != key} | ({key: rest} if rest else {})
            migration.notes[number] = replace(note, how="extra" if rest else "refused", settings=kept, why=why)
