"""What a folder of replayed records says of itself, ``replay.json``, and whether another run may go on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embodied.errors import DamagedCheckpointError, RunFolderError
from embodied.lib.files import check_seal, read_json, sealed
from embodied.lib.whole import write_whole
from embodied.types import ArraySpec

FORMAT = 1
NAME = "replay.json"
ELSEWHERE = "give the run another folder (algorithm.replay.path) or runner.experiment_name"


@dataclass(frozen=True)
class Header:
    """Content of ``replay.json``."""

    format: int
    origin: str  # env and policy whose records these are
    fields: dict[str, list[Any]]  # name → [shape, dtype]
    capacity: int  # records
    per_file: int  # records of a file
    rank: list[int] = field(default_factory=lambda: [0, 1])  # process that appends them, of how many
    saved: list[int] = field(default_factory=list)  # records ever appended at each checkpoint that can be returned to


def shown(fields: Mapping[str, ArraySpec]) -> dict[str, list[Any]]:
    """Fields as values of JSON."""
    return {name: [list(spec.shape), spec.dtype] for name, spec in fields.items()}


def write(folder: Path, header: Header) -> None:
    """Writes ``replay.json``.

    Raises:
        RunFolderError: it cannot be written.
    """
    try:
        write_whole(folder / NAME, json.dumps(sealed(asdict(header)), indent=1))
    except OSError as error:
        raise RunFolderError(
            f"{folder / NAME} cannot be written: {error.strerror}", "free space, or fix the folder's permissions"
        ) from error


def read(folder: Path) -> Header | None:
    """Reads ``replay.json``; None if there is none.

    Raises:
        RunFolderError: it is of another format.
        DamagedCheckpointError: it is damaged, or its records have lost it.
    """
    path = folder / NAME
    if not path.exists():
        if any(folder.glob("*.records")):
            raise DamagedCheckpointError(
                f"{folder} holds replayed records without {NAME}", f"restore it, or {ELSEWHERE}"
            )
        return None
    values = read_json(path)
    if values.get("format") != FORMAT:
        raise RunFolderError(
            f"the replayed records in {folder} have format {values.get('format')}, this version reads {FORMAT}",
            f"use the version of embodied that wrote them, or {ELSEWHERE}",
        )
    try:
        return Header(**check_seal(path, values))
    except TypeError as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}", f"restore it, or {ELSEWHERE}") from error


def check_same(folder: Path, there: Header, here: Header) -> None:
    """Raises :class:`RunFolderError` that names what differs between the records of a folder and a run's."""
    found = []
    if there.origin != here.origin:
        found.append(f"they are of {there.origin}, this run's of {here.origin}")
    for name in sorted({*there.fields, *here.fields}):
        theirs, ours = there.fields.get(name), here.fields.get(name)
        if theirs != ours:
            found.append(f"field {name} is {_told(theirs)} there, {_told(ours)} here")
    if not found and list(there.fields) != list(here.fields):
        found.append("their fields stand in another order")
    if there.rank != here.rank:
        found.append(f"they are of {_process(there.rank)}, this is {_process(here.rank)}")
    if there.capacity != here.capacity:
        found.append(f"they are at most {there.capacity}, this run's {here.capacity}")
    if found:
        fix = ELSEWHERE
        if len(found) == 1 and there.capacity != here.capacity:
            fix = "set algorithm.replay.capacity and algorithm.replay.max_gb as they were, or " + fix
        if len(found) == 1 and there.rank[1:] != here.rank[1:]:
            fix = f"start as many processes as before, {there.rank[-1]}, or {fix}"
        raise RunFolderError(f"{folder} holds replayed records of another run: {'; '.join(found)}", fix)


def _told(spec: list[Any] | None) -> str:
    return "missing" if spec is None else f"{spec[1]} {spec[0]}"


def _process(rank: list[int]) -> str:
    return f"process {' of '.join(str(number) for number in rank)}"
