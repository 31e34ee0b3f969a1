"""Keys of features that do not exist here: values that ask for nothing are dropped, others are refused.

The tables have these keys and their values (columns ``accepted``, ``why`` …). A key under ``actor.model`` or
``reward.model`` stands here for those models that do not take it themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from embodied.errors import ConfigError
from embodied.lib.targets import arguments_of
from embodied.schema.keys.paths import MISSING, at, without
from embodied.schema.others.tables import column


class NoOp(NamedTuple):
    """A key that is accepted for another system's sake and does nothing: values with which it is accepted,
    beside null."""

    values: tuple[Any, ...]
    why: str  # reason why no other value is accepted
    fix: str = ""  # remedy for a refused value, beside leaving the key out
    same_as: tuple[str, ...] = ()  # keys whose values it may have, too


@cache
def no_ops() -> Mapping[str, NoOp]:
    """Returns the keys that are accepted for other systems' sake and do nothing, with the values that are accepted."""
    accepted, whys, fixes, same_as = map(column, ("accepted", "why", "fix", "same_as"))
    places = column("place")
    return {
        key: NoOp(
            tuple(json.loads(accepted[key])), whys[key], fixes.get(key, ""),
            tuple(filter(None, same_as.get(key, "").split(" + "))),
        )
        for key in sorted(places, key=lambda key: int(places[key]))
    }  # fmt: skip


_MODELS = ("actor.model", "reward.model")


def without_neutral(mapping: Mapping[str, Any]) -> tuple[dict[str, Any], list[ConfigError]]:
    """Drops accepted keys that do nothing from a configuration, and returns refusals of those with a value that asks
    for what is not there. The given mapping is not changed."""
    takes = {path: _takes(mapping, path) for path in _MODELS}
    found, refused = dict(mapping), []
    for key, no_op in no_ops().items():
        if (value := at(mapping, key)) is MISSING:
            continue
        section, _, name = key.rpartition(".")
        if section in takes and takes[section](name):
            continue
        values = (*no_op.values, *(at(mapping, other) for other in no_op.same_as))
        if value is not None and not any(_same(value, one) for one in values):
            refused.append(_refused(key, value, no_op, at(mapping, f"{section}._target_")))
        found = without(found, key)
    return found, refused


def _refused(key: str, value: Any, no_op: NoOp, target: Any) -> ConfigError:
    only = " or ".join(map(json.dumps, (None, *no_op.values)))
    whose = "" if target is MISSING else f" of {target}"
    fix = f"leave {key} out" + (f"; {no_op.fix}" if no_op.fix else "")
    return ConfigError(f"{key}{whose} is {json.dumps(value)}, and can only be {only}: {no_op.why}", fix)


def _same(value: Any, one: Any) -> bool:
    """Returns whether two values are the same, with names in any case and true apart from 1."""
    if isinstance(value, str) and isinstance(one, str):
        return value.casefold() == one.casefold()
    return isinstance(value, bool) == isinstance(one, bool) and value == one


def _takes(mapping: Mapping[str, Any], path: str) -> Callable[[str], bool]:
    """Returns a test: does the section's ``_target_`` take an argument? One that cannot be imported takes none."""
    target = at(mapping, f"{path}._target_")
    if not isinstance(target, str):
        return lambda name: False
    try:
        return arguments_of(target, f"{path}._target_").__contains__
    except ConfigError:
        return lambda name: False
