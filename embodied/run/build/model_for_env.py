"""Settles what of the model follows from the env: which model (``model=auto``), and sizes that are null.

    configuration ─▶ env, asked ─┬─▶ ChoosesModel: the command is composed anew with another ``model=``
                                 └─▶ for_env of the model: sizes, and what of the observations it does not read

Afterwards the configuration has plain values, so that a checkpoint and a run's ``config.yaml`` need no env.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodied import schema
from embodied.errors import ConfigError, broken, refuse
from embodied.protocols import ChoosesModel, FitsEnv
from embodied.run.build.given import ConfiguredEnv
from embodied.schema.compose.binding import with_derived
from embodied.schema.compose.compose import Composed, with_model
from embodied.schema.compose.origin_trace import trace
from embodied.schema.compose.origins import Origin, Origins
from embodied.schema.keys.paths import with_changes

MODEL = "actor.model"
FOR_ENV = "for_env"
"""Name of the function beside a model's ``_target_`` (:class:`embodied.protocols.FitsEnv`)."""


def needs_env(composed: Composed) -> bool:
    """Returns whether the model of a configuration follows from the env in some value."""
    model = composed.config.actor.model
    if isinstance(schema.load_target(model.target, f"{MODEL}._target_"), ChoosesModel):
        return True
    own = model.model_extra or {}
    return any(own.get(name, "") is None for name in _keys(_beside(model.target)))


def settled(composed: Composed, side: ConfiguredEnv) -> Composed:
    """Returns the configuration with what of its model follows from the env of ``side``.

    Raises:
        ConfigError: no model fits the env, or a key is not one of the model that was chosen.
        CheckpointError: the model's checkpoint cannot be read.
    """
    return _with_sizes(_with_choice(composed, side), side)


def _with_choice(composed: Composed, side: ConfiguredEnv) -> Composed:
    """Composes the command anew with the model that is chosen. All but ``actor.model`` stays."""
    model = composed.config.actor.model
    kind = schema.load_target(model.target, f"{MODEL}._target_")
    if not isinstance(kind, ChoosesModel) or composed.trail is None:
        return composed
    name = kind(**schema.target_kwargs(model, MODEL)).model_for(side.spec)  # type: ignore[operator]
    again = with_model(composed, name)
    schema.check_target_keys(again.resolved)
    found = _changed(composed, {MODEL: again.resolved["actor"]["model"]})
    refuse(broken(schema.rules(found.config)))
    assert again.trail is not None
    chosen = {f"{MODEL}._target_": Origin("derived", f"model={name}", (f"env.{side.name}._target_",))}
    again.trail.note(chosen)
    if composed.origins is not None:
        known = {key: origin for key, origin in composed.origins.of.items() if not key.startswith(f"{MODEL}.")}
        traced = trace(found.resolved, again.trail).of.items()
        found = replace(found, origins=Origins({**dict(traced), **known}, composed.origins.left_out))
    return replace(found, trail=again.trail, head=(*composed.head, ("model=auto", name)))


def _with_sizes(composed: Composed, side: ConfiguredEnv) -> Composed:
    """Fills in the values that follow from the env, and notes what of its observations is not read."""
    model, brought = composed.config.actor.model, composed.brought
    if (fits := _beside(model.target)) is None:
        return composed
    own, typed = model.model_extra or {}, _typed(composed)
    recorded = brought is not None and brought.model is not None
    given = [name for name in own if own[name] is not None and (not recorded or name in typed)]
    values, unread = fits(side.spec, given, **{name: own[name] for name in _keys(fits) if name in own})
    source = f"{MODEL}.model_path" if own.get("model_path") is not None else f"env.{side.name}._target_"
    origins = {f"{MODEL}.{name}": Origin("derived", "", (source,)) for name in values}
    found = _changed(composed, {f"{MODEL}.{name}": value for name, value in values.items()})
    if found.trail is not None:
        found.trail.note(origins)
    if found.origins is not None:
        found = replace(found, origins=Origins({**found.origins.of, **origins}, found.origins.left_out))
    return replace(found, head=(*found.head, *([("not read", "; ".join(unread))] if unread else ())))


def _changed(composed: Composed, changes: Mapping[str, Any]) -> Composed:
    config = with_derived(composed.config, composed.resolved, changes)
    return replace(composed, config=config, resolved=with_changes(composed.resolved, changes))


def _typed(composed: Composed) -> list[str]:
    """Names of the keys of the model that stand on the command line."""
    words = [] if composed.trail is None else composed.trail.overrides
    keys = (one.lstrip("+~").partition("=")[0] for one in words)
    return [key.removeprefix(f"{MODEL}.") for key in keys if key.startswith(f"{MODEL}.")]


def _beside(target: str) -> FitsEnv | None:
    """The function ``for_env`` beside a model's ``_target_``; None if there is none."""
    try:
        found: FitsEnv = schema.load_target(f"{target.rpartition('.')[0]}.{FOR_ENV}", MODEL)
    except ConfigError:
        return None
    return found


def _keys(fits: FitsEnv | None) -> list[str]:
    """Names of the keys of a model that the function is given."""
    return [] if fits is None else [name for name in inspect.signature(fits).parameters if name not in ("env", "given")]
