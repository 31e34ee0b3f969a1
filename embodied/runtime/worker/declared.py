"""Compares the env that a worker has made with the launcher's.

Each makes the env itself, from packages and files of its own machine. Where these differ, a task's number means another
task. The launcher sends a digest; a worker whose env has another one sends all that its env declares, and ends.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from embodied.errors import EnvsDifferError
from embodied.lib.spec_json import to_json
from embodied.protocols import Batched, Env, KnowsFiles

OF_THE_DEVICE = ("restorable", "repeatable")  # a GPU simulates otherwise than a CPU; workers do not act on these
SHOWN = 3  # tasks or files that an error names
SHOWN_CHARACTERS = 120  # of a value


@dataclass(frozen=True)
class Declared:
    """What an env declares, as JSON by name.

    Args:
        host: name of the machine on which the env was made.
    """

    host: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, env: Env) -> Declared:
        """Asks an env."""
        values = {name: value for name, value in to_json(env.spec).items() if name not in OF_THE_DEVICE}
        values["batched"] = isinstance(env, Batched)
        values["files"] = dict(env.file_digests()) if isinstance(env, KnowsFiles) else {}
        return cls(platform.node(), values)

    @cached_property
    def digest(self) -> str:
        """Equal for envs that declare the same."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()

    def differs(self, worker: str, env_target: str, there: Declared) -> EnvsDifferError:
        """Makes the error for a worker whose env declares something else.

        Args:
            worker: in words.
            there: what its env declares.
        """
        lines = "\n".join(f"  {line}" for line in differences(self.values, there.values))
        return EnvsDifferError(
            f"{worker} on {there.host} has another {env_target} than the launcher on {self.host}:\n{lines}",
            "install the same versions and files of what it simulates for both (python -m embodied.tools.doctor, where "
            "each runs, says which it has), and give arguments that each machine decides for itself (auto) a value",
        )


class OtherEnv(Exception):
    """A worker's env declares something else than the launcher's."""

    def __init__(self, declared: Declared) -> None:
        super().__init__(declared)
        self.declared = declared


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], who: tuple[str, str] = ("the launcher", "the worker")
) -> Iterator[str]:  # fmt: skip
    """Says what differs between two declarations, a line for each name.

    Args:
        who: whose they are.
    """
    here, there = who
    for name in dict.fromkeys((*ours, *theirs)):
        own: Any = ours.get(name)
        other: Any = theirs.get(name)
        if own == other:
            continue
        if name in ("tasks", "num_init_states") and len(own) == len(other):
            yield _by_task(name, own, other, who)
        elif name in ("tasks", "num_init_states"):
            yield f"{name}: {len(own):,} for {here}, {len(other):,} for {there}"
        elif name == "files":
            yield _of_files(own, other)
        else:
            yield f"{name}: {_short(own)} for {here}, {_short(other)} for {there}"


def _by_task(name: str, ours: Sequence[Any], theirs: Sequence[Any], who: tuple[str, str]) -> str:
    others = [number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    said = "; ".join(
        f"task {n} has {_short(ours[n])} for {who[0]}, {_short(theirs[n])} for {who[1]}" for n in others[:SHOWN]
    )
    return f"{name}: {len(others):,} of {len(ours):,} differ: {said}{'; …' if others[SHOWN:] else ''}"


def _of_files(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    others = [name for name in dict.fromkeys((*ours, *theirs)) if ours.get(name) != theirs.get(name)]
    said = ", ".join(others[:SHOWN])
    return f"files: {len(others):,} of {len({*ours, *theirs}):,} differ: {said}{', …' if others[SHOWN:] else ''}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
