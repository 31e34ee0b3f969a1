"""An env's spec as JSON, so that a checkpoint can carry it: a policy is then built and served without the simulator.

    {"version": 1,
     "obs": [{"name": "images", "shape": [1, 224, 224, 3], "dtype": "uint8"}, …],
     "cameras": ["front"],
     "action": {"kind": "continuous", "low": [-1.0, …], "high": [1.0, …]},
               or {"kind": "discrete", "num_actions": 6}, or {"kind": "text", "max_bytes": 4096}
     "tasks": ["push the cube"], "num_init_states": [10], "max_episode_steps": 50, "control_hz": 20.0,
     "restorable": true, "repeatable": true, "retry_safe": true, "info": ["answer"]}
                                                                        and "interventions": true, if there may be any

What is read back equals what was written, field by field. ``obs`` is a list because the order of its fields is part of
the spec. JSON has no infinite number, so a bound that is infinite is the text "inf" or "-inf".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from embodied.errors import SpecMismatchError
from embodied.types import ActionSpec, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, TextAction

VERSION = 1
T = TypeVar("T")


def to_json(spec: EnvSpec) -> dict[str, Any]:
    """Converts an env's spec to values that ``json.dumps`` takes."""
    return {
        "version": VERSION,
        "obs": [
            {"name": name, "shape": [int(n) for n in field.shape], "dtype": field.dtype}
            for name, field in spec.obs.items()
        ],
        "cameras": list(spec.cameras),
        "action": _action_to_json(spec.action),
        "tasks": list(spec.tasks),
        "num_init_states": [int(n) for n in spec.num_init_states],
        "max_episode_steps": int(spec.max_episode_steps),
        "control_hz": _finite(spec.control_hz),
        "restorable": spec.restorable,
        "repeatable": spec.repeatable,
        "retry_safe": spec.retry_safe,
        "info": list(spec.info),
        **({"interventions": True} if spec.interventions else {}),
    }


def from_json(data: Any) -> EnvSpec:
    """Makes an env's spec from what :func:`to_json` returned.

    Raises:
        SpecMismatchError: another version, a field that is missing, unknown or of another type, an unknown kind of
            action.
    """
    version = data.get("version") if isinstance(data, Mapping) else None
    if version != VERSION:
        raise SpecMismatchError(
            f"an env's spec has version {version!r}, expected {VERSION}",
            "read it with the version of embodied that wrote it, or a newer one",
        )
    later: dict[str, Any] = {"info": [], "interventions": False}  # specs of earlier versions lack these
    got = _fields("an env's spec", {**later, **data}, {"version", *(field.name for field in fields(EnvSpec))})
    return EnvSpec(
        obs=dict(_list("obs", got["obs"], _obs_field)),
        cameras=_list("cameras", got["cameras"], _text),
        action=_action(got["action"]),
        tasks=_list("tasks", got["tasks"], _text),
        num_init_states=_list("num_init_states", got["num_init_states"], _count),
        max_episode_steps=_count("max_episode_steps", got["max_episode_steps"]),
        control_hz=_rate("control_hz", got["control_hz"]),
        restorable=_flag("restorable", got["restorable"]),
        repeatable=_flag("repeatable", got["repeatable"]),
        retry_safe=_flag("retry_safe", got["retry_safe"]),
        info=_list("info", got["info"], _text),
        interventions=_flag("interventions", got["interventions"]),
    )


def _action_to_json(action: ActionSpec) -> dict[str, Any]:
    if isinstance(action, DiscreteAction):
        return {"kind": "discrete", "num_actions": int(action.num_actions)}
    if isinstance(action, TextAction):
        return {"kind": "text", "max_bytes": int(action.max_bytes)}
    low, high = ([_finite(bound) for bound in bounds] for bounds in (action.low, action.high))
    return {"kind": "continuous", "low": low, "high": high}


def _action(data: Any) -> ActionSpec:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind == "continuous":
        got = _fields("action", data, {"kind", "low", "high"})
        low, high = _list("low", got["low"], _number), _list("high", got["high"], _number)
        if len(low) != len(high) or not all(one <= other for one, other in zip(low, high, strict=True)):  # NaN is none
            raise _unreadable("action", data, "as many high as low, each no less than its low")
        return ContinuousAction(low, high)
    if kind == "discrete":
        got = _fields("action", data, {"kind", "num_actions"})
        return DiscreteAction(_count("num_actions", got["num_actions"]))
    if kind == "text":
        got = _fields("action", data, {"kind", "max_bytes"})
        return TextAction(_count("max_bytes", got["max_bytes"]))
    raise _unreadable("action", data, "one of kind continuous, discrete or text")


def _obs_field(name: str, data: Any) -> tuple[str, ArraySpec]:
    got = _fields(name, data, {"name", "shape", "dtype"})
    shape, dtype = _list("shape", got["shape"], _count), _text("dtype", got["dtype"])
    try:
        np.dtype(dtype)
    except TypeError:
        raise _unreadable("dtype", dtype, "a type of numpy such as uint8") from None
    return _text("name", got["name"]), ArraySpec(shape, dtype)


def _finite(value: float) -> float | str:
    if not isinstance(value, int):  # a whole number stays an int
        value = float(value)
    return value if math.isfinite(value) else str(value)


# -- one value each: its name, and what stands there -----------------------------------------------------------------


def _number(name: str, value: Any) -> float:
    if value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unreadable(name, value, "a number")
    return value


def _rate(name: str, value: Any) -> float:
    if not 0 <= (found := _number(name, value)) < math.inf:
        raise _unreadable(name, value, "a finite number of 0 or more")
    return found


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _unreadable(name, value, "a whole number of 0 or more")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _unreadable(name, value, "a text")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unreadable(name, value, "true or false")
    return value


def _list(name: str, values: Any, one: Callable[[str, Any], T]) -> tuple[T, ...]:
    if not isinstance(values, list | tuple):
        raise _unreadable(name, values, "a list")
    return tuple(one(name, value) for value in values)


def _fields(name: str, data: Any, expected: set[str]) -> Mapping[str, Any]:
    """The mapping, if it has these keys and no others."""
    if not isinstance(data, Mapping):
        raise _unreadable(name, data, f"a mapping with {', '.join(sorted(expected))}")
    for what, keys in (("lacks", expected - data.keys()), ("has the unknown fields", data.keys() - expected)):
        if keys:
            raise SpecMismatchError(
                f"{name} {what} {', '.join(sorted(map(str, keys)))}",
                "read it with the version of embodied that wrote it, or a newer one",
            )
    return data


def _unreadable(name: str, value: Any, expected: str) -> SpecMismatchError:
    return SpecMismatchError(
        f"{name} of an env's spec: got {value!r}, expected {expected}",
        "the file is damaged or was edited; restore it from where it came from",
    )
