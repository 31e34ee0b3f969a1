"""Composes overrides into one checked configuration.

command line ─▶ short forms ─▶ YAML files and their ${…} ─▶ other systems' names and values ─▶ derived values ─▶ Config
short_forms.py    hydra_files.py       others.normalise             protocol, sides, derived keys
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from embodied.errors import ConfigError, UnknownKeyError
from embodied.lib.weights_folder import Named, split
from embodied.schema.compose.binding import bind, check_known, with_derived
from embodied.schema.compose.brought.merging import Bringing
from embodied.schema.compose.brought.pictures import own_pictures
from embodied.schema.compose.brought.reading import Brought
from embodied.schema.compose.hydra_files import WrongChoice, compose_files, search_folders
from embodied.schema.compose.of_hydra import RUN_DIR, Record, begin_in_run_dir, expand_user, record
from embodied.schema.compose.origins import Origin, Origins, Trail
from embodied.schema.compose.short_forms import SHORT as SHORT
from embodied.schema.compose.short_forms import expand, readable
from embodied.schema.keys.config import Config, defaults
from embodied.schema.keys.groups import GROUPS as GROUPS
from embodied.schema.keys.groups import check_names, wrong_choice
from embodied.schema.keys.groups import group_options as group_options
from embodied.schema.keys.paths import with_changes
from embodied.schema.others.systems import Others
from embodied.schema.rules.checks import check
from embodied.schema.rules.derived_keys import derived
from embodied.schema.rules.protocols import (
    HELD_OUT,
    as_named,
    named,
    protocol_values,
    without_foreign_name,
    without_overridden,
)
from embodied.schema.rules.sides import followed, followed_still, followers, keys_of, without_keys


@dataclass(frozen=True)
class Composed:
    """A checked configuration with what it was composed from."""

    config: Config
    resolved: dict[str, Any]  # plain mapping with every default; saved, and compared on resume
    record: Record | None = None  # files in the run's folder that hydra.output_subdir asks for
    command: str = ""  # command line as the user would type it again
    follows: tuple[str, ...] = ()  # keys of env.eval that env.train gave their value on the command line
    trail: Trail | None = field(default=None, compare=False, repr=False)  # how it was made
    origins: Origins | None = field(default=None, compare=False, repr=False)  # origins of values, for the run's folder
    brought: Brought | None = field(default=None, compare=False, repr=False)  # what the checkpoint of the command says
    head: tuple[tuple[str, str], ...] = ()  # rows of the run's head that say what follows from the env


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
    check(composed.config)
    return composed


def compose_unchecked(
    overrides: Sequence[str], config_name: str = "train", config_dirs: Sequence[str] = ()
) -> Composed:  # fmt: skip
    """Composes a configuration, and does not refuse combinations that cannot work (``schema.rules``)."""
    config_dirs = [*search_folders(overrides), *config_dirs]
    check_names(config_dirs)
    overrides, named_folder = split(overrides)
    try:
        return _composed(overrides, config_name, config_dirs, checkpoint=named_folder)
    except WrongChoice as error:
        raise _with_rest(error, overrides, config_name, config_dirs) from None


def with_model(composed: Composed, name: str) -> Composed:
    """Composes a command anew with the file ``name`` of the group ``model``.

    Args:
        composed: with its trail.
    """
    trail = composed.trail
    assert trail is not None
    rest = [one for one in trail.overrides if one.lstrip("+").partition("=")[0] != "model"]
    return _composed([*rest, f"model={name}"], trail.config_name, trail.config_dirs, checkpoint=trail.checkpoint)


def _composed(
    overrides: Sequence[str], config_name: str, config_dirs: Sequence[str], partial: bool = False,
    checkpoint: Named | None = None,
) -> Composed:  # fmt: skip
    """Makes a configuration: short forms, YAML files, other systems' values, values that follow from others.

    Args:
        partial: some overrides were left out, so a key that is not set means nothing.
        checkpoint: brings its model, its env and its protocol.
    """
    folder = None if checkpoint is None else checkpoint.folder
    brings = Bringing(folder, overrides, config_name, checkpoint.trusted) if checkpoint and folder else None
    trail = Trail(config_name, tuple(config_dirs), tuple(overrides), checkpoint)
    trail.expanded = [readable(override) for override in expand(overrides, config_name, config_dirs)]
    raw = compose_files(trail.expanded, config_name, config_dirs)
    hydra = raw.pop("hydra")
    trail.choices, trail.sources = hydra["runtime"]["choices"], hydra["runtime"]["config_sources"]
    _take_protocol(raw, trail)
    written = record(hydra, raw, overrides)
    _check_sections(raw)
    if brings:
        brings.begin(raw, trail)
    _name_run(raw["runner"], trail, brings)
    if raw["runner"].get("dry_run"):
        _count_without_checkpoint(raw["actor"].get("model") or {}, trail)
    normal = Others().normalise(raw, lambda rest: _resolved(rest, hydra["run"]["dir"], trail, partial))
    trail.note_normalised(normal)
    if normal.refused:
        raise _with_unknown(normal.refused, normal.mapping)
    given = [key for key in (override.lstrip("+~").partition("=")[0] for override in overrides)
             if key not in normal.silent]  # fmt: skip
    mapping = brings.over(normal.mapping, trail) if brings else normal.mapping
    mapping = _with_protocol_rules(mapping, trail, brings)
    mapping, following = _with_followers(mapping, normal.silent, trail, brings)
    mapping = _with_changes_of_protocol(mapping, [*given, *(brings.fixed() if brings else ())], trail)
    config = bind(mapping)
    derivation = derived(config, [SHORT.get(key, key) for key in given])
    bound = with_derived(config, mapping, derivation.values)
    trail.note_derived(derivation, config, bound)
    resolved = bound.model_dump(by_alias=True, mode="json")
    brought = brings.brought if brings else None
    return Composed(bound, resolved, written, "", followed_still(resolved, following), trail, brought=brought)


def _take_protocol(raw: dict[str, Any], trail: Trail) -> None:
    """Gives the protocol that the command line names the place of an experiment's, which has rules of its own."""
    own = [one for one in trail.expanded if one.lstrip("+").startswith("protocol.")]
    name = named(trail.expanded)
    choice = f"protocol={name}" if name else "~protocol"
    if name or choice in trail.expanded:
        trail.protocol = _overrides_of_protocol(choice, *own)
        raw["protocol"] = _protocol_file(trail.protocol, trail.config_dirs)


def _overrides_of_protocol(choice: str, *own: str) -> list[str]:
    return [choice, "~experiment", *own]


def _protocol_file(overrides: list[str], config_dirs: Sequence[str]) -> dict[str, Any]:
    """The protocol that a command line chooses, with overrides of its keys alone."""
    return dict(compose_files(overrides, "train", config_dirs).get("protocol") or {})


def _name_run(runner: dict[str, Any], trail: Trail, brings: Bringing | None) -> None:
    """Names a run that has no name after its choices, and puts the run's id behind the name."""
    named_so = runner.get("experiment_name")
    name = named_so or _default_name(trail.choices, runner, brings)
    run_id = runner.get("run_id")
    runner["experiment_name"] = name if run_id in (None, "") else f"{name}-{run_id}"
    parts = ["runner.ckpt_path"] if brings else ["env", "model", "algorithm"]
    sources = ["runner.experiment_name"] if named_so else parts
    sources += [] if run_id in (None, "") else ["runner.run_id"]
    if runner["experiment_name"] != named_so:
        trail.note({"runner.experiment_name": Origin("derived", "", tuple(sources))})


def _resolved(raw: dict[str, Any], run_dir: str | None, trail: Trail, partial: bool) -> dict[str, Any]:
    """Merges what hydra composed with the defaults, and resolves its references."""
    try:
        merged = OmegaConf.merge(_defaults(), raw)
        expand_user(merged)
        begun = begin_in_run_dir(merged, run_dir)
        trail.note({name: Origin("derived", "", (name, RUN_DIR)) for name in begun})
        return OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except MissingMandatoryValue as error:
        key, plain = error.full_key, OmegaConf.to_container(merged, resolve=False)
        not_set = ConfigError(f"{key} is not set, and has no default", f"add {key}=… to the command")
        known = Others().without_no_ops(plain)  # type: ignore[arg-type]
        raise _with_unknown([] if partial else [not_set], known) from error
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"cannot resolve the configuration: {error}", "correct the ${…} reference that it names"
        ) from error


@cache
def _defaults() -> DictConfig:
    """The defaults as OmegaConf merges into them, which copies them first: to make this takes longer than all else."""
    return OmegaConf.create(defaults())


def _with_protocol_rules(mapping: dict[str, Any], trail: Trail, brings: Bringing | None) -> dict[str, Any]:
    """The configuration with a protocol that may carry its name. That of a checkpoint's run loses the name if the file
    has changed since."""
    files = group_options("protocol", trail.config_dirs)
    protocol = without_foreign_name(mapping["protocol"], trail.overrides, files)
    if protocol["name"] != mapping["protocol"]["name"]:
        trail.note({"protocol.name": Origin("derived", "", ("env",))})
    if (name := protocol["name"]) in files:
        try:
            protocol = as_named(protocol, _protocol_file(_overrides_of_protocol(f"protocol={name}"), trail.config_dirs))
        except ConfigError:
            if brings is None or not brings.keeps_protocol:
                raise
            return {**mapping, "protocol": {**protocol, "name": None}}
        if HELD_OUT not in mapping["protocol"]["sets"]:
            trail.note({f"protocol.sets.{HELD_OUT}": Origin("protocol", name)})
    return {**mapping, "protocol": protocol}


def _with_followers(
    mapping: dict[str, Any], silent: Collection[str], trail: Trail, brings: Bringing | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration with the values of ``env.eval`` that follow ``env.train``, and these by key."""
    keys = followers(key for key in keys_of(trail.overrides) if key not in silent)
    if not keys:
        return mapping, {}
    rest = without_keys(trail.expanded, keys)
    before = compose_files(rest, trail.config_name, trail.config_dirs)
    values = followed(mapping, brings.over(before) if brings else before, keys)
    trail.note({key: Origin("derived", "", (key.replace("env.eval.", "env.train.", 1),)) for key in values})
    return with_changes(mapping, values), values


def _with_changes_of_protocol(mapping: dict[str, Any], given: Collection[str], trail: Trail) -> dict[str, Any]:
    """The configuration with what its protocol sets, but for keys of the command line."""
    changes = without_overridden(protocol_values(mapping), given)
    trail.note(dict.fromkeys(changes, Origin("protocol", mapping["protocol"]["name"] or "without a name")))
    own = {key: value for key, value in own_pictures(mapping["actor"]["model"]).items() if key in changes}
    trail.note(dict.fromkeys(own, Origin("derived", "", ("actor.model.model_path",))))
    return with_changes(mapping, changes | own)


def _check_sections(raw: Mapping[str, Any]) -> None:
    """Refuses a value in place of a section. Raises :class:`ConfigError`."""
    for section, group in SECTIONS.items():
        value: Any = raw
        for part in section.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and not isinstance(value, Mapping):
            chosen = f"{group}={value} if that is a file of the group, or " if group else ""
            raise ConfigError(
                f"{section} = {value!r}: expected keys with values", f"write {chosen}keys of it: {section}.KEY=VALUE"
            )


def _with_unknown(errors: list[ConfigError], mapping: Mapping[str, Any]) -> ConfigError:
    """Several errors as one, with all unknown keys: one of these may be meant where one is not set."""
    kind = ConfigError
    try:
        check_known(mapping)
    except UnknownKeyError as unknown:
        errors, kind = [unknown, *errors], UnknownKeyError
    return kind("\n".join(error.message for error in errors), "; ".join(error.remedy for error in errors))


OF_GROUP = {"env": ("env.",), "model": ("actor.model.",), "experiment": ("env.", "actor.model.")}
"""Group → beginnings of the keys that depend on which of its files is chosen."""


def _with_rest(error: WrongChoice, overrides: Sequence[str], config_name: str, folders: Sequence[str]) -> ConfigError:
    """Adds the unknown keys of what can be looked at without the files that are not there."""
    wrong = [one for one in overrides if any(wrong_choice(own, folders) for own in expand([one], config_name, folders))]
    left_out = tuple(key for one in wrong for key in OF_GROUP.get(one.lstrip("+~").partition("=")[0].split("@")[0], ()))
    rest = [one for one in overrides if one not in wrong and not one.lstrip("+~").startswith(left_out or ("~",))]
    try:
        _composed(rest, config_name, folders, partial=True)
    except UnknownKeyError as unknown:
        return UnknownKeyError(f"{error.message}\n{unknown.message}", f"{error.remedy}; {unknown.remedy}")
    except ConfigError:
        pass  # it may be wrong only because something was left out
    return ConfigError(error.message, error.remedy)


def _count_without_checkpoint(model: dict[str, Any], trail: Trail) -> None:
    """Lets a dry run count a model whose sizes the configuration says (``size``) where no checkpoint is given: with
    random weights, for which there are no statistics of a dataset."""
    if "size" in model and model.get("model_path") == "???":
        names = [name for name in ("model_path", "unnorm_key") if name in model]
        model.update(dict.fromkeys(names))
        trail.note({f"actor.model.{name}": Origin("derived", "", ("runner.dry_run",)) for name in names})


def _default_name(choices: Mapping[str, str], runner: Mapping[str, Any], brings: Bringing | None) -> str:
    env, model, algorithm = (choices.get(group) for group in ("env@env.train", "model", "algorithm"))
    if brings:
        env, model = (chosen if brings.chosen(group) else None for group, chosen in (("env", env), ("model", model)))
        env = "-".join(filter(None, (brings.name, env)))
        algorithm = None if runner.get("only_eval", False) else algorithm
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


def as_yaml(composed: Composed) -> str:
    return yaml.safe_dump(composed.resolved, sort_keys=False, allow_unicode=True)
