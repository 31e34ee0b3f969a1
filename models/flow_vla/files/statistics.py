"""Reads how a folder normalises states and actions.

LeRobot writes it into ``policy_preprocessor.json``, whose normaliser names a file of tensors ``FEATURE.STATISTIC``.
Where these stand under the names of data sets, one must be named: LeRobot itself would go on without normalising.
openpi writes ``assets/NAME/norm_stats.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch._subclasses.fake_tensor import unset_fake_temporarily

from embodied.errors import CheckpointError, unknown_name
from embodied.lib.files import reading

from ...shared.files import read_json, read_safetensors
from ..inputs.normalization import DEMONSTRATIONS, PAIRS, Scale
from .folder import Folder, state_file

STATE, ACTION = "observation.state", "action"
KEY = re.compile(r"(?:(?P<set>.+?)(?:\.buffer)?[._])??(?P<feature>observation[._]state|action)\.(?P<statistic>\w+)$")
PREPROCESSOR, NORMALIZER = "policy_preprocessor.json", "normalizer_processor"
OPENPI_EPS = 1e-6


class Scales(NamedTuple):
    """How state and actions are normalised, and the name of the data set that says so ("" where there is one)."""

    state: Scale
    action: Scale
    name: str


def read_scales(folder: Folder, key: str | None) -> Scales:
    """Reads the statistics of a folder.

    Args:
        key: name of a data set, or :data:`DEMONSTRATIONS`; null = the only ones.

    Raises:
        CheckpointError: there are none, or those of no data set were named where there are several.
        UnknownNameError: there is no data set of this name.
    """
    return _of_openpi(folder, key) if folder.openpi else _of_lerobot(folder, key)


def _of_lerobot(folder: Folder, key: str | None) -> Scales:
    step = _normalizer(folder)
    with reading(folder.path / PREPROCESSOR, "its normaliser is not as expected"):
        kinds, eps = step["config"]["norm_map"], float(step["config"].get("eps", 1e-8))
        modes = {feature: str(kinds[kind]).lower() for feature, kind in ((STATE, "STATE"), (ACTION, "ACTION"))}
        if unknown := [mode for mode in modes.values() if mode not in PAIRS]:
            raise ValueError(f"normalisation {unknown[0]!r}, known are {', '.join(PAIRS)}")
    if key == DEMONSTRATIONS:
        return Scales(Scale(modes[STATE], eps=eps), Scale(modes[ACTION], eps=eps), "")
    tables = _tables(folder, step)
    name = _choose(sorted(tables), key, str(folder.path / PREPROCESSOR))
    state, action = (
        Scale.of(modes[f], tables[name].get(f, {}), eps, False, f"{folder.path}: {f}") for f in (STATE, ACTION)
    )
    return Scales(state, action, name)


def _normalizer(folder: Folder) -> Mapping[str, Any]:
    file = folder.path / PREPROCESSOR
    if not file.is_file():
        raise CheckpointError(
            f"{folder.path} lacks {PREPROCESSOR}, which says how states and actions are normalised",
            "use a folder with it (LeRobot ≥ 0.4 writes it), or add the one of its fine-tuning",
        )
    with reading(file, "it has no steps"):
        steps = read_json(file)["steps"]
        found = next((step for step in steps if step.get("registry_name") == NORMALIZER), None)
        relative = any(
            s.get("registry_name") == "relative_actions_processor" and s.get("config", {}).get("enabled") for s in steps
        )
    if relative:
        raise CheckpointError(
            f"{file} makes actions relative to the state (relative_actions_processor), which is not done here",
            "use a policy that was trained on the env's own actions",
        )
    if found is None or "state_file" not in found:
        raise CheckpointError(
            f"{file} has no {NORMALIZER} with statistics",
            "use the folder of a policy that was fine-tuned on a data set",
        )
    return found


def _tables(folder: Folder, step: Mapping[str, Any]) -> dict[str, dict[str, dict[str, tuple[float, ...]]]]:
    """Statistics by data set ("": of no name), feature and statistic."""
    found: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {}
    with unset_fake_temporarily():  # a policy that is counted without memory needs the numbers all the same
        tensors = [*read_safetensors(state_file(folder.path, step))]
    for name, tensor in tensors:
        if (match := KEY.match(name)) is not None:
            features = found.setdefault(match["set"] or "", {})
            feature = STATE if "state" in match["feature"] else ACTION
            features.setdefault(feature, {})[match["statistic"]] = tuple(tensor.flatten().tolist())
    return found


def _choose(names: list[str], key: str | None, where: str) -> str:
    if not names:
        raise CheckpointError(
            f"{where} has statistics neither of {ACTION} nor of {STATE}",
            "use the folder of a policy that was fine-tuned on a data set; nothing goes on without normalising",
        )
    if key is not None and key not in names:
        raise unknown_name("data set", key, [name for name in names if name], "actor.model.statistics_key")
    if key is None and "" not in names:
        raise CheckpointError(
            f"{where} has no statistics of {ACTION} and {STATE}: they stand under the names of data sets: "
            f"{', '.join(names)}",
            f"name the one that is like the env: actor.model.statistics_key={names[0]}; or, to clone demonstrations, "
            f"take theirs: actor.model.statistics_key={DEMONSTRATIONS}",
        )
    return key if key is not None else ""


def _of_openpi(folder: Folder, key: str | None) -> Scales:
    kind = "quantiles" if folder.layout == "pi05" else "mean_std"
    if key == DEMONSTRATIONS:
        awaited = Scale(kind, eps=OPENPI_EPS, openpi=True)
        return Scales(awaited, awaited, "")
    files = {file.parent.name: file for file in sorted(folder.path.glob("assets/*/norm_stats.json"))}
    if not files:
        raise CheckpointError(
            f"{folder.path} lacks assets/NAME/norm_stats.json, which says how states and actions are normalised",
            "copy the assets of the checkpoint that it was converted from",
        )
    if key is None and len(files) > 1:
        raise CheckpointError(
            f"{folder.path}/assets has statistics of {', '.join(files)}",
            f"name one: actor.model.statistics_key={next(iter(files))}",
        )
    name = next(iter(files)) if key is None else key
    if name not in files:
        raise unknown_name("data set", name, list(files), "actor.model.statistics_key")
    with reading(files[name], "it has no norm_stats of state and actions"):
        values = read_json(files[name])["norm_stats"]
        tables = [
            {s: tuple(map(float, v)) for s, v in values[f].items() if v is not None} for f in ("state", "actions")
        ]
    state, action = (
        Scale.of(kind, table, OPENPI_EPS, True, f"{files[name]}: {f}")
        for f, table in zip(("state", "actions"), tables, strict=True)
    )
    return Scales(state, action, name)
