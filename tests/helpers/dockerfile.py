"""Reads a Dockerfile, and carries out the steps of a target that need no container."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OF_THE_SYSTEM = ("apt-get", "useradd")


@dataclass
class Stage:
    name: str
    base: str  # a stage or an image
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, arguments


def read(text: str) -> dict[str, Stage]:
    """Returns the stages by name. Comments go; a step that spans lines is one."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    stages: dict[str, Stage] = {}
    stage = None
    for line in filter(None, map(str.strip, lines.replace("\\\n", " ").splitlines())):
        instruction, arguments = line.split(maxsplit=1)
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif stage:
            stage.steps.append((instruction, arguments))
    return stages


def order(stages: Mapping[str, Stage], target: str) -> list[Stage]:
    """Returns the stages that a target needs, each after those that it needs itself."""
    stage = stages[target]
    sources = [re.findall(r"--from=(\S+)", arguments) for _, arguments in stage.steps]
    needed = [stage.base, *(name for names in sources for name in names)]
    found: list[Stage] = []
    for name in needed:
        found += [one for one in order(stages, name) if one not in found] if name in stages else []
    return [*found, stage]


def carry_out(stages: Mapping[str, Stage], target: str, context: Path, folder: Path, environ: Mapping[str, str]) -> str:
    """Runs the RUN steps of a target in ``folder``, but those of the system, and copies what COPY takes.

    Args:
        environ: the environment; ENV and ARG add to it what it does not have.

    Returns:
        The commands that were run.
    """
    values: dict[str, dict[str, str]] = {}
    commands = []
    for stage in order(stages, target):
        known = values[stage.name] = dict(values.get(stage.base, {}))
        place = folder
        for instruction, arguments in stage.steps:
            if instruction == "WORKDIR":
                place = folder / arguments.strip("/")
                place.mkdir(exist_ok=True)
            elif instruction in ("ENV", "ARG"):
                known.update(re.findall(r"(\w+)=(\S+)", arguments))
            elif instruction == "COPY" and "--from" not in arguments:
                copy(context, place, arguments)
            elif instruction == "RUN" and not any(word in arguments for word in OF_THE_SYSTEM):
                command = ["bash", "-o", "pipefail", "-c", arguments]
                done = subprocess.run(
                    command,
                    cwd=place,
                    env={**known, **environ},
                    capture_output=True,
                    text=True,
                    check=False,
                    encoding="utf-8",
                )
                assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
                commands.append(arguments)
    return "\n".join(commands)


def copy(context: Path, place: Path, arguments: str) -> None:
    *sources, target = arguments.split()
    for source in sources:
        if (context / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(context / source, place / target, ignore=ignored)
        else:
            shutil.copy(context / source, place / target)
