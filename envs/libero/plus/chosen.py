"""Chooses tasks of LIBERO-Plus: by kind, by what is installed, and a stratified part of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embodied.errors import AssetsMissingError, ConfigError
from embodied.protocols import TaskKinds

from ...shared.arguments import check_list, check_name, check_range
from ..files import LiberoTask
from .files import CLASSIFICATION, PlusPaths, count_by_kind, locate_plus, put_assets, read_plus_tasks
from .names import KINDS
from .scenes import scene

CHOOSING = ("task_ids", "kinds", "sample", "sample_seed", "skip_missing")
"""Arguments of the env that choose tasks: a task is the same whichever others are chosen with it."""


@dataclass(frozen=True)
class Choice:
    """Which tasks of a suite are used: arguments of :class:`embodied.envs.libero.LiberoEnv`."""

    kinds: Sequence[str] | None = None
    sample: int | None = None
    sample_seed: int = 0
    skip_missing: bool = False
    plain_instructions: bool = False

    def check(self, plus: bool) -> None:
        """Checks the arguments. Raises :class:`ConfigError`, or ``UnknownNameError`` for a kind.

        Args:
            plus: the suite is one of LIBERO-Plus's; others have no such arguments, but for ``skip_missing``: they lack
                nothing, so that protocol=libero_plus may set it for a training in another suite.
        """
        given = [name for name, value in vars(self).items() if value != getattr(Choice(), name)]
        given = [name for name in given if name != "skip_missing"]
        if given and not plus:
            raise ConfigError(
                f"{given[0]} chooses tasks of LIBERO-Plus, and the suite is another one",
                f"choose env=libero_plus_spatial, _object, _goal or _10, or remove {given[0]}",
            )
        if self.kinds is not None:
            check_list("kinds", self.kinds, "env.train.kinds", f"[{','.join(KINDS)}], or null for all")
        for kind in self.kinds or ():
            check_name("kind", kind, KINDS, "env.train.kinds")
        for name, value in (("skip_missing", self.skip_missing), ("plain_instructions", self.plain_instructions)):
            if not isinstance(value, bool):
                raise ConfigError(f"{name} is {value!r}, expected true or false", f"set {name}=true or {name}=false")
        if self.sample is not None:
            check_range("sample", self.sample, 1, 10_030)
        check_range("sample_seed", self.sample_seed, 0, 2**32 - 1)


@dataclass(frozen=True)
class Chosen:
    """Tasks that are used, and how many of each kind are left out because their assets are not installed."""

    tasks: list[LiberoTask]
    left_out: Mapping[str, int]


def choose(suite: str, choice: Choice) -> Chosen:
    """Chooses tasks of a suite, those of one scene next to each other.

    Raises:
        AssetsMissingError: the package is not installed, or files that a task needs are not there.
    """
    paths = locate_plus()
    tasks = read_plus_tasks(paths, suite, choice.plain_instructions)
    if choice.kinds is not None:
        tasks = [task for task in tasks if _of(task)[0] in choice.kinds]
    left = _buildable(paths, tasks, choice.skip_missing)
    left_out = Counter(_of(task)[0] for task in tasks) - Counter(_of(task)[0] for task in left)
    sampled = left if choice.sample is None else stratified(left, choice.sample, choice.sample_seed)
    return Chosen(by_scene(sampled), left_out)


def kinds_of(tasks: Sequence[LiberoTask], left_out: Mapping[str, int]) -> TaskKinds:
    """Lists the kinds and strengths of tasks."""
    names, found = tuple(task.name for task in tasks), [_of(task) for task in tasks]
    file, known = locate_plus().classification, any(strength for _, strength in found)
    note = "" if known else f"strengths are not known: {file} is missing or has none; it is {CLASSIFICATION}"
    kinds, strengths = (tuple(part) for part in zip(*((kind, str(s or "")) for kind, s in found), strict=True))
    return TaskKinds(names, kinds, strengths, left_out, note, CHOOSING)


def _of(task: LiberoTask) -> tuple[str, int]:
    """Kind and strength of a task; 0 if its strength is not known."""
    assert task.variation is not None
    return task.variation.kind, task.variation.strength or 0


def _buildable(paths: PlusPaths, tasks: list[LiberoTask], skip: bool) -> list[LiberoTask]:
    """Checks that the files of all tasks are there, or leaves out those whose assets are not."""
    lacking, left = list[LiberoTask](), list[LiberoTask]()
    for task in tasks:
        (lacking if _lacks(paths, task) else left).append(task)
    if not lacking:
        return tasks
    if skip and left:
        return left
    raise AssetsMissingError(
        f"{len(lacking):,} of {len(tasks):,} tasks need assets of LIBERO-Plus that are not there "
        f"({count_by_kind(lacking)}), the first: {lacking[0].name}",
        put_assets(paths)
        + (
            f"; or leave them out: env.train.skip_missing=true env.eval.skip_missing=true, "
            f"for the other {len(left):,} tasks"
            if left
            else ""
        ),
    )


def _lacks(paths: PlusPaths, task: LiberoTask) -> bool:
    """Whether assets of a task are not there. Scenes of the other kinds are LIBERO's own."""
    assert task.variation is not None
    if task.variation.kind not in ("light", "background", "layout"):
        return False
    return bool(scene(paths, task.bddl_file).missing)


def stratified(tasks: Sequence[LiberoTask], count: int, seed: int) -> list[LiberoTask]:
    """Draws ``count`` tasks so that each kind and strength has its share of them. A larger draw has all tasks of a
    smaller one."""
    if count >= len(tasks):
        return list(tasks)
    strata: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        strata[_of(task)].append(number)
    places: list[tuple[float, int]] = []
    for members in strata.values():
        key = [seed, *_of(tasks[members[0]])[0].encode(), _of(tasks[members[0]])[1]]
        draws = np.random.default_rng(key)
        order, begin = draws.permutation(len(members)), draws.random()
        places += [((rank + begin) / len(members), members[at]) for rank, at in enumerate(order)]
    return [tasks[number] for number in sorted(number for _, number in sorted(places)[:count])]


def by_scene(tasks: Sequence[LiberoTask]) -> list[LiberoTask]:
    """Orders tasks: scenes that most tasks share come first, so that each is built once and then kept."""
    counts: dict[object, int] = defaultdict(int)
    first: dict[object, int] = {}
    for number, task in enumerate(tasks):
        counts[task.bddl_file] += 1
        first.setdefault(task.bddl_file, number)
    return sorted(tasks, key=lambda task: (-counts[task.bddl_file], first[task.bddl_file]))
