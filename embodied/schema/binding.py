"""Turns a mapping into the checked configuration, and a section into the arguments of its ``_target_``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from embodied.errors import ConfigError, UnknownKeyError, did_you_mean
from embodied.schema.actor import ModelConfig
from embodied.schema.base import OpenSection
from embodied.schema.config import Config
from embodied.schema.foreign import find, leaves
from embodied.schema.foreign_hints import elsewhere, hint
from embodied.schema.foreign_values import other_name
from embodied.schema.names import choices, in_known_case
from embodied.targets import load_target

TARGETS = ("env.train", "env.eval", "actor.model", "reward.model")
"""Sections with the keyword arguments of a ``_target_``."""
_CORRECT = "correct the key, or remove it; docs/configuration.md lists every key with its meaning"
OURS = "embodied."
"""What the place of a class of this project begins with."""


def bind(mapping: Mapping[str, Any]) -> Config:
    """Check a mapping. Raises :class:`UnknownKeyError` with every unknown key, or :class:`ConfigError` with every wrong
    value. Keys of a ``_target_`` are looked at later (:func:`target_kwargs`), because it has to be imported for that;
    those that another system has in its place are told together with other unknown keys."""
    try:
        return Config.model_validate(mapping)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    unknown = [
        line for p in problems if p["type"] == "extra_forbidden" for line in _unknown_lines(p["loc"], p["input"])
    ]
    if unknown:
        told = [line for path in TARGETS for line in _of_others(mapping, path)]
        raise UnknownKeyError("\n".join([*unknown, *told]), _CORRECT)
    raise ConfigError(
        "\n".join(map(_wrong_value, problems)),
        "set the key to a value of that kind; docs/configuration.md says what it means",
    )


def _wrong_value(problem: Any) -> str:
    key, got, message = _dotted(problem["loc"]), problem["input"], problem["msg"]
    if problem["type"] == "missing":
        return f"{key} is missing"
    if problem["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        message += "." + (other_name(key, got) or did_you_mean(str(got), known))
    return f"{key} = {got!r}: {message[:1].lower()}{message[1:]}"


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _unknown_lines(location: tuple[int | str, ...], value: Any) -> list[str]:
    """One line for a key; one for each in a section of another system."""
    section: Any = Config
    for part in location[:-1]:
        section = _inner(section, str(part))
    known = [f.alias or name for name, f in section.model_fields.items()]
    key = _dotted(location)
    told = [(leaf, hint(leaf, inner)) for leaf, inner in leaves(key, value)]
    if any(said for _, said in told):
        return [f"unknown key '{leaf}'.{said}" for leaf, said in told]
    return [unknown_key(key, known, value).message]


def _of_others(mapping: Mapping[str, Any], path: str) -> list[str]:
    """A line for each key of a section that other systems have, and that is another one here. The section's class is
    one of this project, none of which takes such a key."""
    section = _section(mapping, path)
    if not isinstance(section, Mapping) or not str(section.get("_target_", "")).startswith(OURS):
        return []
    found = []
    for name, value in section.items():
        key = f"{path}.{name}"
        if (rows := find(key)) and all(key not in row.ours for row in rows):
            found.append(f"unknown key '{key}'.{hint(key, value)}")
    return found


def _section(mapping: Any, path: str) -> Any:
    for part in path.split("."):
        mapping = mapping.get(part) if isinstance(mapping, Mapping) else None
    return mapping


def _inner(section: Any, name: str) -> Any:
    """What stands under a name: in a section its field, in a table the entry of that name. Null aside."""
    within = section.model_fields[name].annotation if hasattr(section, "model_fields") else get_args(section)[1]
    parts = [part for part in get_args(within) if part is not type(None)]
    return parts[0] if len(parts) == 1 else within


def unknown_key(key: str, known: list[str], value: Any = None) -> UnknownKeyError:
    """Error for ``a.b.key = value``; ``known`` are the keys of ``a.b``. Says what the key of another system is here."""
    section, _, name = key.rpartition(".")
    message = f"unknown key '{key}'.{hint(key, value) or did_you_mean(name, known) or elsewhere(key, value)}"
    return UnknownKeyError(message, f"known keys of {section or 'the top'}: {', '.join(sorted(known))}")


def target_kwargs(section: OpenSection, path: str) -> dict[str, Any]:
    """Keyword arguments for the section's ``_target_``, checked against its signature.

    Raises:
        UnknownKeyError: the target does not take a key.
        ConfigError: the target cannot be imported, a required argument is missing, or a value is of another type.
    """
    if isinstance(section, ModelConfig):
        _import_first(section)
    signature = inspect.signature(load_target(section.target, f"{path}._target_"))
    given = dict(section.model_extra or {})
    own = [f.alias or name for name, f in type(section).model_fields.items()]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if isinstance(section, ModelConfig) and (takes_any or "freeze_pattern" in signature.parameters):
        # The target may choose number formats by what is frozen.
        given |= {"freeze_pattern": section.freeze_pattern} if section.freeze_pattern is not None else {}
    unknown = [name for name in given if name not in signature.parameters and not takes_any]
    if unknown:
        told = [unknown_key(f"{path}.{name}", [*own, *signature.parameters], given[name]) for name in unknown]
        raise UnknownKeyError("\n".join(one.message for one in told), told[0].remedy)
    for name, parameter in signature.parameters.items():
        if parameter.default is parameter.empty and name not in given and parameter.kind is not parameter.VAR_KEYWORD:
            raise ConfigError(f"{path}.{name} is missing", f"set {path}.{name}; {section.target} needs it")
    names = importlib.import_module(section.target.rpartition(".")[0]).__dict__
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return {name: _of_type(annotations.get(name, Any), names, value, f"{path}.{name}") for name, value in given.items()}


def _import_first(model: ModelConfig) -> None:
    """Imports what ``external_lib`` names. Raises :class:`ConfigError` if that fails."""
    given = model.external_lib
    for name in [given] if isinstance(given, str) else given or []:
        try:
            importlib.import_module(name)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"actor.model.external_lib: cannot import '{name}': {error}",
                "install the package that has it, or correct the name",
            ) from error


def _of_type(annotation: Any, names: dict[str, Any], value: Any, key: str) -> Any:
    """``value`` converted to the target's annotation, or unchanged if that cannot be checked."""
    try:
        hints = get_type_hints(SimpleNamespace(__annotations__={"value": annotation}), names)
        adapter = TypeAdapter(hints["value"])
    except (NameError, PydanticSchemaGenerationError):
        return value
    kinds = (hints["value"], *get_args(hints["value"]))
    if str not in kinds:  # else any text will do
        value = in_known_case(value, choices(hints["value"]))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ConfigError(
            _wrong_value({**problem, "loc": (key, *problem["loc"])}), "set the key to a value of that kind"
        ) from None
