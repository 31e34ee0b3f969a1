"""Simulators: which are installed, whether they can draw, whether their files are there, and under which licences.

An env's class says what its simulator needs (:class:`embodied.protocols.NeedsOfMachine`); simulators are found through
the groups of the configuration, by ``_target_``.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from embodied.doctor.findings import Finding, gib, of_error
from embodied.errors import AssetsMissingError, EmbodiedError
from embodied.protocols import NeedsOfMachine
from embodied.runtime.memory import proportional_memory
from embodied.schema import load_target, target_kwargs
from embodied.schema.compose.compose import compose_unchecked, group_options
from embodied.types import SimulatorNeeds

GROUPS = "groups of envs"


def simulators(folders: Sequence[str] = ()) -> tuple[dict[str, str], list[Finding]]:
    """Returns the class of each simulator that a group file names, with one of the groups (``env=NAME``); and the files
    that cannot be read.

    Args:
        folders: those with more group files.
    """
    import embodied.config

    roots, found, broken = [*embodied.config.__path__, *folders], dict[str, str](), list[Finding]()
    for name in group_options("env", folders):
        for file in (Path(root) / "env" / f"{name}.yaml" for root in roots):
            try:
                target = (
                    (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("_target_") if file.is_file() else None
                )
            except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as error:
                said = " ".join(str(error).split())
                broken.append(Finding(GROUPS, "warn", f"{file} is no group: {said}", f"mend it; env={name} needs it"))
                continue
            if isinstance(target, str) and target not in found and has_needs(target):
                found[target] = name
    return found, broken


def has_needs(target: str) -> bool:
    """Whether an env's class says what its simulator needs. One that cannot be imported is looked at as well: its check
    runs apart and says why."""
    try:
        return isinstance(load_target(target, "env.train._target_"), NeedsOfMachine)
    except Exception:  # noqa: BLE001 (a module may raise anything)
        return True


def elsewhere(target: str, python: str) -> Iterator[Finding]:
    """Reports a simulator that runs in another Python environment: what is installed in this one says nothing of it."""
    yield Finding(target, "skipped", f"env.python is set: its workers run in {python}, which is not looked at")


def simulator(
    target: str, overrides: Sequence[str], folders: Sequence[str], required: bool, command: str = "train"
) -> Iterator[Finding]:
    """Checks one simulator, in a process of its own.

    Args:
        overrides: a configuration with ``env.train`` or ``env.eval`` of this class.
        required: a run was asked for that uses it, so that it must work.
        command: that is to run it.
    """
    needs: SimulatorNeeds = load_target(target, "env.train._target_").needs()
    absent = [module for module in needs.modules if find_spec(module) is None]
    if needs.modules[0] in absent and not required:
        yield Finding(needs.name, "skipped", f"it is not installed ({needs.install})")
        return
    if absent:
        yield Finding(needs.name, "fail", f"packages of it are not installed: {', '.join(absent)}", needs.install)
        return
    with ThreadPoolExecutor(len(needs.renderers) + 1) as pool:
        drawn = {name: pool.submit(_draw, draw) for name, draw in needs.renderers.items()}
        yield from _files(needs, target, overrides, folders, required, command)
        yield from drawings(needs, {name: future.result() for name, future in drawn.items()}, required)


def _draw(draw: Any) -> str | EmbodiedError:
    try:
        return draw()
    except EmbodiedError as error:
        return error


def drawings(needs: SimulatorNeeds, drawn: Mapping[str, str | EmbodiedError], required: bool) -> Iterator[Finding]:
    """Reports which renderers drew a frame, and with what. One that works is enough."""
    works = [name for name, said in drawn.items() if isinstance(said, str)]
    for name, said in drawn.items():
        what = f"renderer {name}"
        if isinstance(said, str):
            yield Finding(what, "ok", f"a frame was drawn by {said}")
        elif works:
            found = f"{said.message}; {needs.name} can draw with {' or '.join(works)}"
            yield Finding(what, "warn", found, said.remedy)
        else:
            yield of_error(what, said)


def _files(
    needs: SimulatorNeeds, target: str, overrides: Sequence[str], folders: Sequence[str], required: bool, command: str
) -> Iterator[Finding]:
    """Constructs the env, which looks for its files, and imports the simulator as a worker does."""
    try:
        sides = compose_unchecked(overrides, command, folders).config.env
        name = "train" if sides.train.target == target else "eval"
        side = getattr(sides, name)
        env = load_target(target, f"env.{name}._target_")(**target_kwargs(side, f"env.{name}"))
    except AssetsMissingError as error:
        yield of_error(f"{needs.name}'s files", error)
        return
    except EmbodiedError as error:
        yield of_error(needs.name, error, "fail" if required else "warn")
        return
    group = next((word for word in overrides if word.startswith("env=")), "the configuration")
    yield Finding(f"{needs.name}'s files", "ok", f"those of env.{name} ({group}) are there")
    parts = [f"{part}: {licence}" for part, licence in (*_licences(needs.modules), *needs.licences.items())]
    if parts:
        yield Finding(f"{needs.name}'s licences", "ok", "; ".join(parts))
    began = time.monotonic()
    try:
        facts = (needs.try_imports or type(env).prepare)(env)
    except EmbodiedError as error:
        yield of_error(needs.name, error)
        return
    took, size = time.monotonic() - began, proportional_memory(os.getpid())
    versions = [f"{name} {text}" for name, text in facts.extra.items()]
    said = f"imported in {took:.1f} s, {gib(size)} before its first scene; {facts.renderer} ({facts.reason})"
    yield Finding(needs.name, "ok", "; ".join([said, *versions]))


def _licences(modules: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the distributions of some packages say of their licence."""
    names = importlib.metadata.packages_distributions()
    for module in modules:
        for distribution in dict.fromkeys(names.get(module, ())):
            told = importlib.metadata.metadata(distribution)
            names_of = [told[key] for key in ("License-Expression", "License") if key in told]
            short = [name for name in names_of if name != "UNKNOWN" and "\n" not in name]
            if short:
                yield distribution, short[0]
