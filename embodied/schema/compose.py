"""Composes overrides into one checked configuration: hydra composes the YAML groups, :mod:`embodied.schema` checks.

``env=NAME`` is short for ``env@env.train=NAME env@env.eval=NAME``, and ``+perturb=NAME`` for
``+perturb@env.eval.perturb=NAME`` (of ``train``: ``env.train``); :data:`SHORT` has more. The schema, not the files,
decides which keys exist: a key that no YAML file mentions needs no ``+``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from embodied import schema
from embodied.errors import ConfigError, UnknownKeyError
from embodied.schema.groups import GROUPS as GROUPS
from embodied.schema.groups import check_names, wrong_choice
from embodied.schema.groups import group_options as group_options
from embodied.schema.hub_cache import with_cached_model
from embodied.schema.links import derived, with_changes, without
from embodied.schema.names import in_known_case
from embodied.schema.neutral import without_neutral
from embodied.schema.nulls import silent
from embodied.schema.of_hydra import OF_HYDRA, SEARCH, Record, begin_in_run_dir, expand_user, record
from embodied.schema.protocol import as_named, asked, named, not_given, without_foreign_name
from embodied.schema.sides import followed, followed_still, followers, keys_of, without_keys
from embodied.schema.userfiles.given import check_chosen
from embodied.schema.userfiles.yaml_text import check_folders


def _first(*values: Any) -> Any:
    """The first of some values that is not null."""
    return next((value for value in values if value is not None), None)


def _subtract(whole: float | None, part: float) -> float | None:
    """What a part leaves of a whole; null of a whole that is null."""
    return None if whole is None else whole - part


def _as_in_training(default: Any, *, _node_: Any, _root_: Any) -> Any:
    """Of a key of ``env.eval`` the value that ``env.train`` has for it, else the default."""
    side, _, key = _node_._get_full_key(None).removeprefix("env.").partition(".")
    found = OmegaConf.select(_root_, f"env.train.{key}") if side == "eval" else None
    return default if found is None else found


for _name, _function in (("first", _first), ("subtract", _subtract), ("as_in_training", _as_in_training)):
    OmegaConf.register_new_resolver(_name, _function, replace=True)  # ${first:${data.seed},0} in YAML files


@dataclass(frozen=True)
class Composed:
    """The configuration that the command line asked for."""

    config: schema.Config
    resolved: dict[str, Any]  # plain mapping with every default; saved, and compared on resume
    record: Record | None = None  # what hydra.output_subdir asks to be written into the run's folder
    command: str = ""  # that composed it, as the user would type it again
    follows: tuple[str, ...] = ()  # keys of env.eval that env.train gave their value on the command line


def compose(overrides: Sequence[str], config_name: str = "train", config_dirs: Sequence[str] = ()) -> Composed:
    """Composes a configuration and checks it.

    Args:
        overrides: hydra overrides, e.g. ``["env=libero_10", "runner.max_epochs=2"]``.
        config_name: ``train``, ``eval``, ``sft`` or ``demos``.
        config_dirs: folders with more group files.

    Raises:
        ConfigError: anything is wrong; it names the fix.
    """
    composed = compose_unchecked(overrides, config_name, config_dirs)
    schema.check(composed.config)
    return composed


def compose_unchecked(
    overrides: Sequence[str], config_name: str = "train", config_dirs: Sequence[str] = ()
) -> Composed:  # fmt: skip
    """Does what :func:`compose` does, but for refusing combinations that cannot work (``schema.rules``)."""
    check_names(config_dirs)
    try:
        return _composed(overrides, config_name, config_dirs)
    except WrongChoice as error:
        raise _with_rest(error, overrides, config_name, config_dirs) from None


def _composed(
    overrides: Sequence[str], config_name: str, config_dirs: Sequence[str], partial: bool = False
) -> Composed:  # fmt: skip
    """Composes, merges with the schema and binds.

    Args:
        partial: some overrides were left out, so a key that is not set means nothing.
    """
    expanded = [_readable(override) for override in _expand(overrides, config_name, config_dirs)]
    raw = _hydra(expanded, config_name, config_dirs)
    hydra = raw.pop("hydra")
    own = [one for one in expanded if one.lstrip("+").startswith("protocol.")]
    if name := named(expanded):  # an experiment's rules are no part of a protocol that the command line names
        raw["protocol"] = _protocol_file(f"protocol={name}", own, config_dirs)
    elif "~protocol" in expanded:
        raw["protocol"] = _protocol_file("~protocol", own, config_dirs)
    choices = hydra["runtime"]["choices"]
    written = record(hydra, raw, overrides)
    _check_sections(raw)
    nothing = silent(raw)
    for one in nothing:
        raw = without(raw, one)
    name = raw["runner"].get("experiment_name") or _default_name(choices, raw["runner"])
    run_id = raw["runner"].get("run_id")
    raw["runner"]["experiment_name"] = name if run_id in (None, "") else f"{name}-{run_id}"
    if raw["runner"].get("dry_run"):
        _count_without_checkpoint(raw["actor"].get("model") or {})
    try:
        merged = OmegaConf.merge(schema.defaults(), raw)
        expand_user(merged)
        begin_in_run_dir(merged, hydra["run"]["dir"])
        mapping = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key, plain = error.full_key, OmegaConf.to_container(merged, resolve=False)
        not_set = ConfigError(f"{key} is not set, and has no default", f"add {key}=… to the command")
        raise _with_unknown([] if partial else [not_set], without_neutral(plain)[0]) from error  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"cannot resolve the configuration: {error}", "correct the ${…} reference that it names"
        ) from error
    mapping, refused = without_neutral(with_cached_model(mapping))  # type: ignore[arg-type]
    if refused:
        raise _with_unknown(refused, mapping)
    files = group_options("protocol", config_dirs)
    mapping["protocol"] = without_foreign_name(mapping["protocol"], overrides, files)
    if (name := mapping["protocol"]["name"]) in files:
        mapping["protocol"] = as_named(mapping["protocol"], _protocol_file(f"protocol={name}", (), config_dirs))
    given = [key for key in (override.lstrip("+~").partition("=")[0] for override in overrides) if key not in nothing]
    found: dict[str, Any] = {}
    if keys := followers(key for key in keys_of(overrides) if key not in nothing):
        rest = without_keys(expanded, keys)
        found = followed(mapping, _hydra(rest, config_name, config_dirs), keys)
        mapping = with_changes(mapping, found)
    mapping = with_changes(mapping, not_given(asked(mapping), given))
    config = schema.bind(mapping)
    if changes := derived(config, [SHORT.get(key, key) for key in given]):
        config = schema.bind(with_changes(mapping, changes))
    resolved = config.model_dump(by_alias=True, mode="json")
    return Composed(config, resolved, written, follows=followed_still(resolved, found))


def _protocol_file(choice: str, own: Sequence[str], config_dirs: Sequence[str]) -> dict[str, Any]:
    """The protocol that a command line chooses, with overrides of its keys alone."""
    return dict(_hydra([choice, "~experiment", *own], "train", config_dirs).get("protocol") or {})


def _check_sections(raw: Mapping[str, Any]) -> None:
    """Refuses a value in place of a section. Raises :class:`ConfigError`."""
    for section, group in SECTIONS.items():
        value: Any = raw
        for part in section.split("."):
            value = value.get(part)
        if value is not None and not isinstance(value, Mapping):
            chosen = f"{group}={value} if that is a file of the group, or " if group else ""
            raise ConfigError(
                f"{section} = {value!r}: expected keys with values", f"write {chosen}keys of it: {section}.KEY=VALUE"
            )


def _with_unknown(errors: list[ConfigError], mapping: Mapping[str, Any]) -> ConfigError:
    """Several errors as one, with all unknown keys: one of these may be meant where one is not set."""
    kind = ConfigError
    try:
        schema.check_known(mapping)
    except UnknownKeyError as unknown:
        errors, kind = [unknown, *errors], UnknownKeyError
    return kind("\n".join(error.message for error in errors), "; ".join(error.remedy for error in errors))


class WrongChoice(ConfigError):
    """A group that is not there, or a file that a group does not have. It does not leave this module: users get a
    ConfigError."""


OF_GROUP = {"env": ("env.",), "model": ("actor.model.",), "experiment": ("env.", "actor.model.")}
"""Group → beginnings of the keys that depend on which of its files is chosen."""


def _with_rest(error: WrongChoice, overrides: Sequence[str], config_name: str, folders: Sequence[str]) -> ConfigError:
    """Adds the unknown keys of what can be looked at without the files that are not there."""
    wrong = [
        one for one in overrides if any(wrong_choice(own, folders) for own in _expand([one], config_name, folders))
    ]
    left_out = tuple(key for one in wrong for key in OF_GROUP.get(one.lstrip("+~").partition("=")[0].split("@")[0], ()))
    rest = [one for one in overrides if one not in wrong and not one.lstrip("+~").startswith(left_out or ("~",))]
    try:
        _composed(rest, config_name, folders, partial=True)
    except UnknownKeyError as unknown:
        return UnknownKeyError(f"{error.message}\n{unknown.message}", f"{error.remedy}; {unknown.remedy}")
    except ConfigError:
        pass  # it may be wrong only because something was left out
    return ConfigError(error.message, error.remedy)


def _count_without_checkpoint(model: dict[str, Any]) -> None:
    """Lets a dry run count a model whose sizes the configuration says (``size``) where no checkpoint is given: with
    random weights, for which there are no statistics of a dataset."""
    if "size" in model and model.get("model_path") == "???":
        model["model_path"] = None
        if "unnorm_key" in model:
            model["unnorm_key"] = None


def _default_name(choices: dict[str, str], runner: Mapping[str, Any]) -> str:
    env, model, algorithm = (choices.get(group) for group in ("env@env.train", "model", "algorithm"))
    by_task = {"demos": (env,), "sft": (env, model, "sft")}
    parts = by_task.get(runner.get("task_type", ""), (env, model, algorithm))
    if runner.get("answers"):
        parts = (env, "answers")
    if not runner.get("only_eval", False):
        return "-".join(filter(None, parts))
    return "-".join(filter(None, (*parts, "eval", choices.get("protocol"))))


SECTIONS = {
    "runner": "", "actor": "", "actor.model": "model", "env": "env", "env.train": "env@env.train",
    "env.eval": "env@env.eval", "algorithm": "algorithm",
}  # fmt: skip
"""Section that every run has → the group that fills it."""
SHORT = {
    "data": "data.train_data_paths", "episodes": "demos.episodes", "noise_std": "demos.noise_std",
    "answers": "runner.answers", "selftest": "runner.selftest",
}  # fmt: skip
"""Short form → key. ``data=PATH`` is a list of one path."""


def _expand(overrides: Sequence[str], config_name: str, folders: Sequence[str] = ()) -> list[str]:
    """Rewrites the short forms into hydra's own. ``+perturb=NAME`` is for what the command does: episodes of training,
    or those of evaluations."""
    expanded: list[str] = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if (group := key.lstrip("+").partition("@")[0]) in GROUPS:
            value = in_known_case(value, group_options(group, folders))
            override = f"{key}{equals}{value}"
        if key.lstrip("+~").startswith("hydra.") and key.lstrip("+~") not in OF_HYDRA:
            raise ConfigError(
                f"{key} is a key of hydra's launcher, which is not used",
                f"leave it out; taken are {', '.join(OF_HYDRA)}",
            )
        if not equals and not key.startswith("~"):
            raise ConfigError(
                f"'{override}' is not of the form KEY=VALUE", "write it as KEY=VALUE, e.g. runner.max_epochs=2"
            )
        if key in SHORT:
            one_path = key == "data" and not value.startswith("[")
            expanded.append(f"++{SHORT[key]}=" + (f"[{_quoted(value)}]" if one_path else value))
        elif key.isidentifier() and key not in GROUPS and not any((Path(one) / key).is_dir() for one in folders):
            expanded.append(f"++{override}")  # no group: the schema says what is wrong, together with all else
        elif value == "null" and "." not in key:
            expanded.append(f"~{key}")  # experiment=null leaves the group out
        elif key in ("perturb", "+perturb"):
            side = "train" if config_name == "train" else "eval"
            expanded.append(f"+perturb@env.{side}.perturb={value}")
        elif key == "env":
            expanded += [f"env@env.train={value}", f"env@env.eval={value}"]
        elif "." in key and "@" not in key and key[0] not in "+~" and not key.startswith("hydra."):
            expanded.append(f"++{override}")
        else:
            expanded.append(override)
    return expanded


def _hydra(overrides: list[str], config_name: str, config_dirs: Sequence[str]) -> dict[str, Any]:
    search: list[str] = []
    if config_dirs:
        own = [o for o in overrides if o.lstrip("+").partition("=")[0] == SEARCH]
        overrides = [o for o in overrides if o not in own]
        told = [o.partition("=")[2].strip().removeprefix("[").removesuffix("]") for o in own]
        search = [f"{SEARCH}=[{','.join([*filter(None, told), *map(_search_path, config_dirs)])}]"]
    check_chosen(overrides, config_dirs)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("embodied.config", version_base="1.3"):
            config = hydra_compose(config_name, overrides + search, return_hydra_config=True)
    except (yaml.YAMLError, RecursionError) as error:  # of a file that another one names
        check_folders(config_dirs)
        raise _composition_error(error, overrides, config_dirs) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _composition_error(error, overrides, config_dirs) from None
    finally:
        GlobalHydra.instance().clear()
    hydra = OmegaConf.to_container(config.hydra, resolve=False)  # only its launcher can resolve all of it
    with open_dict(config):
        del config["hydra"]
    return {**OmegaConf.to_container(config, resolve=False), "hydra": hydra}  # type: ignore[dict-item]


def _search_path(folder: str) -> str:
    """Quotes a folder as a list element in hydra's grammar, whatever characters its name has."""
    return _quoted(f"file://{Path(folder).resolve()}")


def _readable(override: str) -> str:
    """Quotes the plain value of a key that hydra's grammar does not read, such as a path with ``~``, é or brackets.

    What begins as a list, a mapping or a quoted text, or has a reference, stays as it is, so that hydra says what
    is wrong.

    Raises:
        ConfigError: the value is several, as hydra's launcher takes them for several runs.
    """
    key, _, value = override.partition("=")
    if "." not in key or "@" in key or not value or value[0] in "[{'\"" or any(sign in value for sign in "\\$"):
        return override
    try:
        several = OverridesParser.create().parse_override(override).is_sweep_override()
    except HydraException:
        return f"{key}={_quoted(value)}"
    if several:
        key = key.lstrip("+")
        raise ConfigError(
            f"{key}={value} has several values", f"write a list as '{key}=[{value}]', and a text as '{key}=\"{value}\"'"
        )
    return override


def _quoted(text: str) -> str:
    """Quotes a text in hydra's grammar, whatever characters it has."""
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"


def _composition_error(error: Exception, overrides: list[str], folders: Sequence[str]) -> ConfigError:
    """Turns hydra's error into ours, with the nearest known group or group file for each that is unknown."""
    wrong = [one for one in (wrong_choice(override, folders) for override in overrides) if one is not None]
    if not wrong:
        said = str(error).partition("See https://hydra.cc")[0].removeprefix("LexerNoViableAltException: ")
        plain = " ".join(said.removesuffix("^").split())
        quoted = "a text stands in quotes ('KEY=\"VALUE\"'), a list in brackets (KEY=[A,B])"
        return ConfigError(
            f"cannot compose the configuration: {plain}", f"correct the override it names; {quoted}; see --help"
        )
    told = {one.message: one.remedy for one in wrong}  # env=NAME is of both sides
    return WrongChoice("\n".join(told), "; ".join(told.values()))


def as_yaml(composed: Composed) -> str:
    return yaml.safe_dump(composed.resolved, sort_keys=False, allow_unicode=True)
