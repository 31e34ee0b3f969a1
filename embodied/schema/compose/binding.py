"""Turns a mapping into the checked configuration, and a section into the arguments of its ``_target_``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from embodied.errors import ConfigError, UnknownKeyError, nearest
from embodied.lib.targets import arguments_of, load_target
from embodied.schema.compose.key_errors import (
    KeyProblem,
    correct_values,
    fix,
    given_to,
    with_other_dots,
    wrong_values,
)
from embodied.schema.keys.base import OpenSection
from embodied.schema.keys.config import Config
from embodied.schema.keys.groups import GROUPS
from embodied.schema.keys.names import choices, in_known_case
from embodied.schema.keys.paths import leaves, with_changes
from embodied.schema.keys.sections.actor import ModelConfig
from embodied.schema.others.key_table import keys
from embodied.schema.others.systems import Others
from embodied.schema.others.tables import joined
from embodied.schema.others.translation import Unknown

TARGETS = ("env.train", "env.eval", "actor.model", "reward.model")
"""Sections with the keyword arguments of a ``_target_``."""
OF_GROUPS = {"model": "actor.model", "tracker": "runner.logger", "perturb": "env.eval.perturb"}
"""Group → the section in which all keys of its files are."""
OF_PARTS = {"env": ("an env", "env.train"), "actor": ("a model", "actor.model")}
"""Section → what has its keys in a section below it, and that section."""


def bind(mapping: Mapping[str, Any]) -> Config:
    """Checks a mapping. Raises :class:`UnknownKeyError` with every unknown key, also those of a ``_target_`` that can
    be imported, and every wrong value, or :class:`ConfigError` with every wrong value. Of a mapping that has neither,
    the keys of a ``_target_`` are looked at later (:func:`check_target_keys`)."""
    try:
        return Config.model_validate(mapping)
    except ValidationError as error:
        raise _refused(error.errors(include_url=False), mapping) from None


def with_derived(config: Config, mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """Returns a bound configuration with ``changes`` by dotted key, as if it had been bound with them. Only the
    sections that have these keys are checked again.

    Args:
        mapping: that was bound.

    Raises:
        ConfigError: a value is wrong.
    """
    try:
        return Config.model_validate(_opened(config, changes)) if changes else config
    except ValidationError as error:
        raise _refused(error.errors(include_url=False), with_changes(mapping, changes)) from None


def _opened(section: BaseModel, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a bound section with changes; sections in it that have none of them stay bound."""
    fields = type(section).model_fields
    values = {fields[name].alias or name: getattr(section, name) for name in fields if name in section.model_fields_set}
    values |= section.model_extra or {}
    for name in dict.fromkeys(key.partition(".")[0] for key in changes):
        inner = {key.partition(".")[2]: value for key, value in changes.items() if key.partition(".")[0] == name}
        if "" in inner:
            values[name] = inner[""]
        elif isinstance(values.get(name), BaseModel):
            values[name] = _opened(values[name], inner)
        else:
            values[name] = with_changes(values.get(name) or {}, inner)
    return values


def _refused(problems: Sequence[Any], mapping: Mapping[str, Any]) -> ConfigError:
    """The error of what pydantic found wrong: unknown keys, and wrong values beside them."""
    wrong = wrong_values([p for p in problems if p["type"] != "extra_forbidden"], Config, mapping)
    if unknown := _unknown(problems, mapping):
        return _of_unknown(unknown, mapping, wrong)
    return ConfigError("\n".join(told.line for told in wrong), fix(wrong, correct_values(wrong)))


def check_known(mapping: Mapping[str, Any]) -> None:
    """Refuses unknown keys as :func:`bind` does, whatever the values are. Raises :class:`UnknownKeyError`."""
    try:
        Config.model_validate(mapping)
    except ValidationError as error:
        if unknown := _unknown(error.errors(include_url=False), mapping):
            raise _of_unknown(unknown, mapping) from None
    else:
        check_target_keys(mapping)


def check_target_keys(mapping: Mapping[str, Any]) -> None:
    """Refuses keys that a ``_target_`` does not take, of all sections at once. Raises :class:`UnknownKeyError`."""
    if unknown := _unknown_of_targets(mapping):
        raise _of_unknown(unknown, mapping)


def _of_unknown(
    unknown: Sequence[KeyProblem], mapping: Mapping[str, Any], wrong: Sequence[KeyProblem] = ()
) -> UnknownKeyError:
    """The error of unknown keys, and of wrong values beside them."""
    vague = [told.key for told in unknown if not told.instead]
    named = "the key, or remove it" if len(vague) == 1 else f"{joined(vague)}, or remove them"
    rest = [f"correct {named}"] if vague else []
    if any("." not in key for key in vague):
        rest.append(f"groups: {', '.join(GROUPS)}")
    if any("." in key and _target_of(key) is None for key in vague):
        rest.append("docs/configuration.md lists every key with its meaning")
    for path in dict.fromkeys(filter(None, map(_target_of, vague))):
        takes = _takes(_section(mapping, path), path) or ()
        rest.append(f"known keys of {path}: {', '.join(sorted({*_own(path), *takes}))}")
    if values := correct_values(wrong):
        rest.append(values)
    found = [*unknown, *wrong]
    return UnknownKeyError("\n".join(told.line for told in found), fix(found, "; ".join(rest)))


def _target_of(key: str) -> str | None:
    """The section with a ``_target_`` that a key stands in."""
    return next((path for path in TARGETS if key.rpartition(".")[0] == path), None)


def _unknown(problems: Iterable[Any], mapping: Mapping[str, Any]) -> list[KeyProblem]:
    """Every unknown key: of the schema, and of what a ``_target_`` takes."""
    others = _others_of(mapping)
    extra = [p for p in problems if p["type"] == "extra_forbidden"]
    found = [told for p in extra for told in _told_in(p["loc"], p["input"], others)]
    return [*found, *_unknown_of_targets(mapping)]


def _others_of(mapping: Mapping[str, Any]) -> Others:
    """Other systems, with what hints may know: answers to a prompt, by the key of verl if it is there."""
    for key in ("actor_rollout_ref.rollout.n", "algorithm.group_size"):
        if isinstance(size := _section(mapping, key), int):
            return Others(Unknown(size))
    return Others()


def _told_in(location: Sequence[int | str], value: Any, others: Others) -> list[KeyProblem]:
    """Returns the problem of an unknown key; one for each key in a section of another system."""
    section: Any = Config
    for part in location[:-1]:
        section = _inner(section, str(part))
    known = [f.alias or name for name, f in section.model_fields.items()]
    key = ".".join(map(str, location))
    inside = [(leaf, inner, others.hint(leaf, inner)) for leaf, inner in leaves(key, value)]
    if any(said for *_, said in inside):
        return [
            KeyProblem(f"unknown key '{leaf}'.{said}", leaf, others.instead(leaf, inner))
            for leaf, inner, said in inside
        ]
    if key in GROUPS and isinstance(value, Mapping):
        return [_told_in_group(leaf, inner) for leaf, inner, _ in inside]
    if len(location) == 1:
        return [_told_of(key, [*GROUPS, *known], value, others, "group or section")]
    return [_told_of(key, known, value, others)]


def _told_in_group(key: str, value: Any) -> KeyProblem:
    """Returns the problem of ``model.key = value``: a group is no section."""
    group, _, name = key.partition(".")
    chooses = f"unknown key '{key}'. {group}=NAME chooses a file"
    if (section := OF_GROUPS.get(group)) is None:
        return KeyProblem(f"{chooses}, and its keys stand in several sections.", key)
    return KeyProblem(f"{chooses}, and its keys are {section}.….", key, {f"{section}.{name}": value})


def _told_of(key: str, known: Iterable[str], value: Any, others: Others, what: str = "key") -> KeyProblem:
    """Returns the problem of ``a.b.key = value``, where ``known`` are the keys of ``a.b``. Translates a key of another
    system."""
    section, _, name = key.rpartition(".")
    if said := others.hint(key, value):
        return KeyProblem(f"unknown {what} '{key}'.{said}", key, others.instead(key, value))
    if dotted := with_other_dots(key):
        return KeyProblem(f"unknown {what} '{key}'. Did you mean '{dotted}'?", key, given_to(dotted, value))
    meant = nearest(name, known)
    if meant and not name.startswith(f"{meant}_"):  # model_path is a key of a model
        return KeyProblem(
            f"unknown {what} '{key}'. Did you mean '{meant}'?", key, given_to(f"{section}.{meant}".lstrip("."), value)
        )
    said = others.elsewhere(key, value)
    if not said and (same := _same_name(section, name)):
        return KeyProblem(f"unknown {what} '{key}'. There is {joined(same, 'or')}.", key)  # another section, or none
    if not said and section in OF_PARTS:
        said = f" Keys of {OF_PARTS[section][0]} are written {OF_PARTS[section][1]}.{name}."
    return KeyProblem(f"unknown {what} '{key}'.{said}", key, others.instead(key, value) if said else {})


def _same_name(section: str, name: str) -> list[str]:
    """Keys of this name: those below the same section if there are any, else those of others, if they are few."""
    same = [one.name for one in keys() if one.name.endswith(f".{name}")]
    near = [one for one in same if section and one.startswith(f"{section}.")]
    return near or (same if not section or len(same) < 3 else [])


def _unknown_of_targets(mapping: Mapping[str, Any]) -> list[KeyProblem]:
    """Keys of all sections that their ``_target_`` does not take; a class that cannot be imported here is not asked."""
    found, others = list[KeyProblem](), _others_of(mapping)
    for path in TARGETS:
        section, own = _section(mapping, path), _own(path)
        given = [name for name in section if name not in own] if isinstance(section, Mapping) else []
        if not given or (takes := _takes(section, path)) is None:
            continue
        known = [*own, *takes]
        found += [_told_of(f"{path}.{name}", known, section[name], others) for name in given if name not in takes]
    return found


def _takes(section: Mapping[str, Any], path: str) -> Collection[str] | None:
    """Names of the keyword arguments of a section's ``_target_``; None = it takes any, or cannot be asked."""
    target = section.get("_target_")
    try:
        _import_first(section.get("external_lib"))
        takes = arguments_of(str(target), f"{path}._target_")
    except ConfigError:
        return None
    return None if takes.others else tuple(takes.named)


def _own(path: str) -> list[str]:
    """Keys of a section that the schema knows, whatever its ``_target_`` is."""
    section: Any = Config
    for part in path.split("."):
        section = _inner(section, part)
    return [f.alias or name for name, f in section.model_fields.items()]


def _section(mapping: Any, path: str) -> Any:
    for part in path.split("."):
        mapping = mapping.get(part) if isinstance(mapping, Mapping) else None
    return mapping


def _inner(section: Any, name: str) -> Any:
    """Returns the type of a section's field, or of an entry of a table or a list, without null."""
    within = section.model_fields[name].annotation if hasattr(section, "model_fields") else get_args(section)[-1]
    parts = [part for part in get_args(within) if part is not type(None)]
    return parts[0] if len(parts) == 1 else within


def target_kwargs(section: OpenSection, path: str) -> dict[str, Any]:
    """Keyword arguments for the section's ``_target_``, checked against its signature.

    Raises:
        UnknownKeyError: the target does not take a key.
        ConfigError: the target cannot be imported, a required argument is missing, or a value is of another type.
    """
    if isinstance(section, ModelConfig):
        _import_first(section.external_lib)
    takes = arguments_of(section.target, f"{path}._target_")
    given = dict(section.model_extra or {})
    own = [f.alias or name for name, f in type(section).model_fields.items()]
    if isinstance(section, ModelConfig) and "freeze_pattern" in takes:
        # The target may choose number formats by what is frozen.
        given |= {"freeze_pattern": section.freeze_pattern} if section.freeze_pattern is not None else {}
    unknown = [name for name in given if name not in takes]
    if unknown:
        known = [*own, *takes.named]
        told = [_told_of(f"{path}.{name}", known, given[name], Others()) for name in unknown]
        rest = f"correct the key, or remove it; known keys of {path}: {', '.join(sorted(known))}"
        raise UnknownKeyError("\n".join(one.line for one in told), fix(told, rest))
    for name, parameter in takes.named.items():
        if parameter.default is parameter.empty and name not in given:
            raise ConfigError(f"{path}.{name} is missing", f"set {path}.{name}; {section.target} needs it")
    names = importlib.import_module(section.target.rpartition(".")[0]).__dict__
    made_in = vars(module) if (module := inspect.getmodule(load_target(section.target, f"{path}._target_"))) else {}
    annotations = {name: parameter.annotation for name, parameter in takes.named.items()}
    return {
        name: _of_type(annotations.get(name, Any), names, made_in, value, f"{path}.{name}")
        for name, value in given.items()
    }


def _import_first(given: str | Sequence[str] | None) -> None:
    """Imports what ``external_lib`` names. Raises :class:`ConfigError` if that fails."""
    for name in [given] if isinstance(given, str) else given or []:
        try:
            importlib.import_module(name)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"actor.model.external_lib: cannot import '{name}': {error}",
                "install the package that has it, or correct the name",
            ) from error


def _of_type(annotation: Any, names: dict[str, Any], made_in: dict[str, Any], value: Any, key: str) -> Any:
    """``value`` converted to the target's annotation, or unchanged if that cannot be checked.

    Args:
        names: of the module that offers the target.
        made_in: of the module that has made it. What these alone explain is checked, and not converted.
    """
    try:
        return _converted(annotation, names, value, key)
    except NameError:
        with suppress(NameError):
            _converted(annotation, {**names, **made_in}, value, key)
        return value


def _converted(annotation: Any, names: dict[str, Any], value: Any, key: str) -> Any:
    """``value`` converted to an annotation. Raises NameError if ``names`` do not explain it."""
    hints = get_type_hints(SimpleNamespace(__annotations__={"value": annotation}), names)
    try:
        adapter = TypeAdapter(hints["value"])
    except PydanticSchemaGenerationError:
        return value
    kinds = (hints["value"], *get_args(hints["value"]))
    if str not in kinds:  # else any text will do
        value = in_known_case(value, choices(hints["value"]))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        (told, *_) = wrong_values(error.errors(include_url=False), hints["value"], value, key)
        raise ConfigError(told.line, fix([told], "set the key to a value of that kind")) from None
