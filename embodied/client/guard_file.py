"""Reads what a guard is to keep, from YAML (docs/deploy.md has an example with every key)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.client.limits import Limits
from embodied.errors import ConfigError, UnknownKeyError, did_you_mean

KINDS = ("delta", "absolute")
MODES = ("clip", "stop")
TOP = ("enabled", "mode", "control_hz", "action", "position", "workspace", "gripper", "observation", "log")
LEAST_PASSING = 0.5
"""Share of actions, spread evenly over the bounds, that limits of velocity let pass without a warning."""

ACTION = ("kind", "low", "high", "scale", "velocity", "acceleration")


@dataclass(frozen=True)
class Position:
    """Where an observation holds the position of some action dimensions: field and indices, with their scale."""

    field: str
    indices: np.ndarray  # int [n], of the field, which is one row of numbers
    dims: np.ndarray  # int [n], of the action
    scale: np.ndarray  # float64 [n], unit of the field for one unit of the action


@dataclass(frozen=True)
class Keeps:
    """Settings of a guard: limits, mode, oldest observation, where the position stands, log file."""

    limits: Limits
    mode: str  # clip: the nearest action within the limits; stop: the first action outside stops the robot
    enabled: bool
    max_age_s: float  # age of an observation; infinite: not watched
    position: Position | None
    log: Path | None


def read_file(path: Path) -> Keeps:
    """Reads the settings of a guard from a YAML file. Raises :class:`embodied.errors.ConfigError`."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            f"a guard's file needs the package PyYAML: {error}", "pip install pyyaml (or 'embodied-rl[client]')"
        ) from error
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"the guard's file {path} cannot be read: {error}", "see docs/deploy.md for one") from error
    try:
        return read(found)
    except ConfigError as error:
        raise type(error)(f"{path}: {error.message}", error.remedy) from error


def read(found: Any) -> Keeps:
    """Reads the settings of a guard from a mapping. Warns of velocity limits that most actions within the bounds break.

    Raises:
        ConfigError: it asks for what cannot be.
    """
    top = _section({"guard": found}, "guard", TOP)
    action = _section(top, "action", ACTION)
    low, high = _row(action, "action.low"), _row(action, "action.high")
    count = len(low)
    _expect(len(high) == count, "action.high", f"{len(high)} numbers", f"{count}, as many as action.low")
    hertz = _number(top, "control_hz")
    absolute = np.full(count, _choice(action, "action.kind", KINDS) == "absolute")
    scale = _numbers(action, "action.scale", count, 1.0)
    dims = _gripper(top, absolute, low, high)
    limited = np.array([number not in dims for number in range(count)])
    velocity = _numbers(action, "action.velocity", count, np.inf) / (hertz * scale)
    acceleration = _numbers(action, "action.acceleration", count, np.inf) / (hertz**2 * scale)
    position = _position(top, count, scale)
    box_low, box_high = _workspace(top, position, count)
    limits = Limits(
        absolute, low, high, np.where(limited, velocity, np.inf), np.where(limited, acceleration, np.inf),
        box_low, box_high,
    )  # fmt: skip
    limits.velocity[dims] = _gripper_step(top)
    _check(limits, position, dims)
    watched = _section(top, "observation", ("max_age_s",)) if "observation" in top else {}
    max_age_s = _number(watched, "max_age_s", "observation", np.inf)
    log = Path(str(top["log"])) if top.get("log") else None
    if _flag(top, "enabled") and (text := too_slow(limits, hertz * scale)):
        warnings.warn(text, stacklevel=2)
    return Keeps(limits, _choice(top, "mode", MODES), _flag(top, "enabled"), max_age_s, position, log)


def _gripper(top: Mapping[str, Any], absolute: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[int]:
    """Returns the gripper's dimensions. Writes their limits: what a gripper is told is a position, whatever the arm's
    is."""
    if "gripper" not in top:
        return []
    gripper = _section(top, "gripper", ("dims", "low", "high", "step"))
    dims = _indices(gripper, "gripper.dims", len(low))
    absolute[dims] = True
    low[dims] = np.maximum(low[dims], _numbers(gripper, "gripper.low", len(dims), -np.inf, above=None))
    high[dims] = np.minimum(high[dims], _numbers(gripper, "gripper.high", len(dims), np.inf, above=None))
    return dims


def _gripper_step(top: Mapping[str, Any]) -> float:
    return _number(top.get("gripper", {}), "step", "gripper", np.inf)


def _position(top: Mapping[str, Any], count: int, scale: np.ndarray) -> Position | None:
    if "position" not in top:
        return None
    section = _section(top, "position", ("field", "indices", "dims"))
    _expect(isinstance(section.get("field"), str), "position.field", section.get("field"), "the name of a field")
    indices, dims = _indices(section, "position.indices", None), _indices(section, "position.dims", count)
    _expect(len(indices) == len(dims), "position.indices", f"{len(indices)} numbers", f"{len(dims)}, one a dimension")
    return Position(section["field"], np.array(indices, int), np.array(dims, int), scale[dims])


def _workspace(top: Mapping[str, Any], position: Position | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the box of positions in the unit of an action: [A] each."""
    low, high = np.full(count, -np.inf), np.full(count, np.inf)
    if "workspace" not in top:
        return low, high
    section = _section(top, "workspace", ("low", "high"))
    if position is None:
        raise ConfigError(
            "workspace is given without position", "say which numbers of the observation are the position: position"
        )
    size = len(position.dims)
    low[position.dims] = _numbers(section, "workspace.low", size, -np.inf, above=None) / position.scale
    high[position.dims] = _numbers(section, "workspace.high", size, np.inf, above=None) / position.scale
    return low, high


def _check(limits: Limits, position: Position | None, gripper: Sequence[int]) -> None:
    """Raises :class:`ConfigError` where no action could meet the limits, or a limit lacks its position."""
    empty = np.flatnonzero((limits.low > limits.high) | (limits.box_low > limits.box_high))
    _expect(not len(empty), "low", f"more than high in dimensions {empty.tolist()}", "low ≤ high")
    stuck = np.flatnonzero(~limits.absolute & ((limits.low > 0) | (limits.high < 0)))
    _expect(not len(stuck), "action.low", f"bounds without 0 in dimensions {stuck.tolist()}", "bounds within which the "
            "robot can stand still")  # fmt: skip
    known = set(gripper) | set(() if position is None else position.dims.tolist())
    blind = sorted(set(np.flatnonzero(limits.needs_position).tolist()) - known)
    _expect(not blind, "position", f"nothing for dimensions {blind}, which have limits of velocity or acceleration",
            "the position of each such dimension: the first absolute action is compared with it")  # fmt: skip


def too_slow(limits: Limits, per_action: np.ndarray) -> str:
    """Returns a warning where the limits of velocity let less than half of the actions pass that are spread evenly
    over the bounds; else nothing.

    Args:
        per_action: velocity of an action of 1, float64 [A].
    """
    reach = np.maximum(-limits.low, limits.high)
    slow = ~limits.absolute & (limits.velocity < reach)
    lows, highs = np.maximum(limits.low, -limits.velocity), np.minimum(limits.high, limits.velocity)
    passing = float(np.prod(((highs - lows) / (limits.high - limits.low))[slow]))
    if passing >= LEAST_PASSING:
        return ""
    needed = ", ".join(f"{reach[number] * per_action[number]:g}" for number in np.flatnonzero(slow))
    return (
        f"action.velocity is below what most actions within the bounds ask for: of actions spread evenly over "
        f"action.low to action.high {1 - passing:.0%} break it, in dimensions {np.flatnonzero(slow).tolist()}. "
        f"{needed} (scale × control_hz × bound) would let all pass; if the limit is meant, narrower bounds say so"
    )


# -- values ----------------------------------------------------------------------------------------------------------


def _expect(holds: bool, key: str, got: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {got}, expected {expected}", f"correct {key} (docs/deploy.md has an example)")


def _section(parent: Mapping[str, Any], key: str, known: Sequence[str]) -> Mapping[str, Any]:
    section = parent.get(key)
    _expect(isinstance(section, Mapping), key, section, f"a map with {', '.join(known)}")
    assert isinstance(section, Mapping)
    for name in section:
        if name not in known:
            raise UnknownKeyError(
                f"unknown key '{name}' in {key}.{did_you_mean(str(name), known)}", f"known are: {', '.join(known)}"
            )
    return section


def _choice(section: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    value = section.get(key.rpartition(".")[2], known[0])
    _expect(value in known, key, value, f"one of {', '.join(known)}")
    return str(value)


def _flag(section: Mapping[str, Any], key: str) -> bool:
    value = section.get(key, True)
    _expect(isinstance(value, bool), key, value, "true or false")
    return bool(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _number(section: Mapping[str, Any], name: str, within: str = "", default: float | None = None) -> float:
    """Returns a number above 0."""
    value, key = section.get(name), f"{within}.{name}" if within else name
    if value is None and default is not None:
        return default
    _expect(_is_number(value) and value > 0, key, value, "a number above 0")  # type: ignore[operator]
    return float(value)  # type: ignore[arg-type]


def _row(section: Mapping[str, Any], key: str) -> np.ndarray:
    """Returns a list of numbers, float64 [n]."""
    value = section.get(key.rpartition(".")[2])
    _expect(isinstance(value, list) and bool(value) and all(map(_is_number, value)), key, value, "a list of numbers")
    return np.array(value, np.float64)


def _numbers(
    section: Mapping[str, Any], key: str, count: int, default: float, above: float | None = 0.0
) -> np.ndarray:  # fmt: skip
    """Returns ``count`` numbers, of one that holds for all or a list; null is ``default``: float64 [count]."""
    value = section.get(key.rpartition(".")[2])
    values = value if isinstance(value, list) else [value] * count
    _expect(len(values) == count, key, f"{len(values)} numbers", f"{count}, or one for all")
    for one in values:
        fits = one is None or (_is_number(one) and (above is None or one > above))
        _expect(fits, key, one, "a number" if above is None else f"a number above {above:g}, or null for no limit")
    return np.array([default if one is None else one for one in values], np.float64)


def _indices(section: Mapping[str, Any], key: str, count: int | None) -> list[int]:
    """Returns a list of different numbers from 0 to ``count`` − 1."""
    value = section.get(key.rpartition(".")[2])
    found = value if isinstance(value, list) else []
    fits = bool(found) and len(set(map(str, found))) == len(found)
    fits = fits and all(type(one) is int and one >= 0 and (count is None or one < count) for one in found)
    below = "" if count is None else f" below {count}"
    _expect(fits, key, value, f"a list of different whole numbers from 0{below}")
    return list(found)
