"""What a configuration learns from, looked at whole: ``data=PATH``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied import schema
from embodied.data.demonstrations import FieldSelection
from embodied.doctor.checks import demonstrations, texts
from embodied.doctor.checks.demonstrations import NO_INSTRUCTION, Fit
from embodied.doctor.findings import Finding
from embodied.errors import EmbodiedError
from embodied.rows.custom import is_custom
from embodied.rows.formats import KINDS
from embodied.run.build.demonstrations import wanted_of
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.sides import make_side

ENV = ("env=", "experiment=")  # beginnings of overrides that choose an env


def only_data(overrides: Sequence[str]) -> bool:
    """Whether the overrides name data and nothing else, so that a machine and a configuration do not matter.

    >>> only_data(["data=demos/marks"]), only_data(["data=demos/marks", "env=marks"]), only_data([])
    (True, False, False)
    """
    return bool(overrides) and all(word.startswith(("data=", "data.")) for word in overrides)


def are_demonstrations(config: schema.Config, overrides: Sequence[str]) -> bool:
    """Whether the data are episodes of robots: by what the env takes if one is given, else by their names."""
    side = _side(config, overrides)
    if side is not None:
        return not side.kind.from_rows
    return any(map(_is_robots, config.data.train_data_paths))


def look(
    config: schema.Config, overrides: Sequence[str], every: int, progress: Callable[[str, int], Any]
) -> Iterator[Finding]:
    """Checks each path of ``data``, every ``every``-th episode; yields findings.

    Args:
        overrides: as they were typed; without an env among them, the data are held against none.
        every: of so many steps of an episode the pictures of one are decoded.
        progress: opens a phase of so many parts.
    """
    if not config.runner.task.supervised:
        return
    side = _side(config, overrides)
    for path in [*config.data.train_data_paths, *config.data.val_data_paths]:
        if side.kind.from_rows if side is not None else not _is_robots(path):
            yield from texts.look(config.data, path)
        else:
            fit = None if side is None else Fit(side.spec, side.kwargs)
            yield from demonstrations.look(Path(path), _wanted(config.data, fit), fit, every, progress)


def _is_robots(path: str) -> bool:
    return not is_custom(path) and Path(path).suffix not in KINDS


def _side(config: schema.Config, overrides: Sequence[str]) -> ConfiguredEnv | None:
    """The env of training; None if none is given, or it cannot be asked, which the check of the configuration says."""
    if not any(word.startswith(ENV) for word in overrides):
        return None
    try:
        return make_side("train", config.env.train)
    except EmbodiedError:
        return None


def _wanted(data: schema.DataConfig, fit: Fit | None) -> FieldSelection:
    if fit is None:
        told = data.instruction or NO_INSTRUCTION
        return FieldSelection(None, data.camera_keys, data.state_keys, told, data.action_key, data.rotate_images)
    wanted = wanted_of(data, fit.spec)
    return wanted if wanted.instruction is not None else replace(wanted, instruction=NO_INSTRUCTION)
