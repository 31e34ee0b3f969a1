"""Sources: texts that name where a value of a Gymnasium env comes from.

``obs`` is the whole observation, ``obs.agent.pos`` an entry of a nested one, ``info.success`` an entry of ``info``,
``render`` a rendered picture; ``obs[0:4]`` are the first four numbers of what stands before it. ``reward``, ``return``
(the sum of an episode's rewards so far), ``terminated`` and ``truncated`` are of the last step. ``info.success?`` may
be missing, also where an episode ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.errors import ConfigError

TEXT = "text"  # stands in place of a dtype
RENDER = "render"
OF_A_STEP = ("reward", "return", "terminated", "truncated")
_SLICED = re.compile(r"^(.*?)\[(\d*):(\d*)\]$")
_RULE = re.compile(r"^(.+?)\s*(>=|<=|>|<)\s*(-?[0-9.]+(?:e-?[0-9]+)?)$")
_HOLDS = {
    ">=": lambda got, bound: got >= bound,
    "<=": lambda got, bound: got <= bound,
    ">": lambda got, bound: got > bound,
    "<": lambda got, bound: got < bound,
}


@dataclass(frozen=True)
class Source:
    """Names a place in an env's values: entry ``name`` as :func:`entries` names them, ``part`` of it."""

    name: str
    part: slice | None = None
    may_miss: bool = False  # the value may be missing at the end of an episode

    @classmethod
    def of(cls, text: str, key: str) -> Source:
        """Parses a source from the configuration's text. Raises :class:`ConfigError`, naming ``key``."""
        may_miss = text.endswith("?")
        name, part = text.removesuffix("?"), None
        if found := _SLICED.match(name):
            name = found[1]
            first, last = (int(number) if number else None for number in found.groups()[1:])
            part = slice(first, last)
        if name.split(".")[0] not in ("obs", "info", RENDER, *OF_A_STEP):
            raise ConfigError(
                f"{key} is {text!r}, which names no source",
                f"write obs, obs.KEY, obs[0:4], info.KEY, {', '.join(OF_A_STEP)} or render",
            )
        return cls(name, part, may_miss)

    def is_in(self, values: Mapping[str, Any]) -> bool:
        """Returns whether the env's values have this entry."""
        try:
            self.read(values)
        except KeyError:
            return False
        return True

    def read(self, values: Mapping[str, Any]) -> Any:
        """Reads the value from ``{"obs": …, "info": …, "reward": …}``. Raises KeyError if it is not there."""
        root, _, path = self.name.partition(".")
        value = _walk(values[root], path.split(".") if path else [])
        return value if self.part is None else np.asarray(value).reshape(-1)[self.part]


@dataclass(frozen=True)
class Rule:
    """A condition on an env's values: a source that must be true, or compared with a number, such as ``info.success``,
    ``return >= 475``."""

    source: Source
    compare: str | None = None
    bound: float = 0.0

    @classmethod
    def of(cls, text: str, key: str) -> Rule:
        """Parses a condition from the configuration's text. Raises :class:`ConfigError`, naming ``key``."""
        found = _RULE.match(text)
        if found is None:
            return cls(Source.of(text, key))
        return cls(Source.of(found[1], key), found[2], float(found[3]))

    @property
    def at_end(self) -> bool:
        """Whether it says nothing before an episode's end: a return that the first step can meet, since it begins at 0
        or falls from there."""
        return self.source.name == "return" and self.compare is not None and bool(_HOLDS[self.compare](0.0, self.bound))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Evaluates the condition; False where its entry is NaN or missing, as in the ``info`` of some envs' first
        steps."""
        try:
            got = float(np.asarray(self.source.read(values)).reshape(-1)[0])
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        if math.isnan(got):
            return False
        return bool(_HOLDS[self.compare](got, self.bound)) if self.compare else bool(got)


def _walk(value: Any, path: list[str]) -> Any:
    if not path:
        return value
    for length in range(1, len(path) + 1):  # a key may have dots of its own
        key: Any = ".".join(path[:length])
        if isinstance(value, Mapping) and key in value:
            return _walk(value[key], path[length:])
        if isinstance(value, tuple) and key.isdigit() and int(key) < len(value):
            return _walk(value[int(key)], path[length:])
    raise KeyError(".".join(path))


def entries(root: str, value: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Flattens a nested value of an env: entry's name → shape and dtype. Entries that are neither numbers nor text are
    left out.

    >>> entries("obs", {"agent": {"pos": np.zeros(2)}, "mission": "go"})
    {'obs.agent.pos': ((2,), 'float64'), 'obs.mission': ((), 'text')}
    """
    if isinstance(value, Mapping):
        found = (entries(f"{root}.{key}", entry) for key, entry in value.items())
        return {name: kind for some in found for name, kind in some.items()}
    if isinstance(value, tuple):
        return entries(root, {str(index): entry for index, entry in enumerate(value)})
    if isinstance(value, str):
        return {root: ((), TEXT)}
    try:
        array = np.asarray(value)
    except ValueError:
        return {}
    return {root: (array.shape, str(array.dtype))} if array.dtype.kind in "biuf" else {}


def bounds_of(root: str, space: Any) -> dict[str, tuple[float, float]]:
    """Returns the lowest and highest number of each entry of a space, by the names of :func:`entries`."""
    inner = getattr(space, "spaces", None)
    if inner is not None:
        named = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
        found = (bounds_of(f"{root}.{key}", entry) for key, entry in named)
        return {name: kind for some in found for name, kind in some.items()}
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or not np.size(low):
        return {}
    return {root: (float(np.min(low)), float(np.max(high)))}


def tells_success(values: Sequence[Any]) -> bool:
    """Returns whether an entry that had these values tells by itself whether a task is solved: true or
    false, as 0 or 1."""
    numbers = [np.asarray(value) for value in values]
    if any(number.dtype.kind not in "biuf" or number.size != 1 for number in numbers):
        return False
    said = [float(number.reshape(-1)[0]) for number in numbers]
    told = [value for value in said if not math.isnan(value)]  # NaN: not known yet
    return bool(told) and all(value in (0.0, 1.0) for value in told)


def deep_copy(value: Any) -> Any:
    """Copies a value deeply, since the env may write into its arrays again."""
    if isinstance(value, Mapping):
        return {key: deep_copy(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(map(deep_copy, value))
    return np.copy(value) if hasattr(value, "shape") else value


def difference(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> str:
    """Describes how two episodes differ in observations and rewards; "" if they do not."""
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        if not _equal(np.asarray(a["reward"]), np.asarray(b["reward"])):
            return f"the reward of step {number} is {a['reward']} and then {b['reward']}"
        for name in entries("obs", a["obs"]):
            left, right = (np.asarray(Source(name).read(step)) for step in (a, b))
            if not _equal(left, right):
                return f"{name} differs after {number} steps"
    return ""


def _equal(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays have the same shape and values; a NaN equals a NaN."""
    return np.array_equal(left, right, equal_nan=left.dtype.kind == right.dtype.kind == "f")


def listed(shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """Formats entries for a message: ``obs.image uint8 (64, 64, 3), info.success bool ()``."""
    return ", ".join(f"{name} {dtype} {tuple(shape)}" for name, (shape, dtype) in shapes.items()) or "nothing"
