"""Composes the YAML files of groups with hydra, and turns hydra's errors into ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from embodied.errors import ConfigError
from embodied.schema.compose import read_once
from embodied.schema.compose.of_hydra import SEARCH
from embodied.schema.compose.short_forms import parsed, quoted
from embodied.schema.compose.userfiles.given import check_chosen
from embodied.schema.compose.userfiles.yaml_text import check_folders
from embodied.schema.keys.groups import wrong_choice


def _first(*values: Any) -> Any:
    """The first of some values that is not null."""
    return next((value for value in values if value is not None), None)


def _subtract(whole: float | None, part: float) -> float | None:
    """Returns ``whole`` − ``part``; null if ``whole`` is null."""
    return None if whole is None else whole - part


def _as_in_training(default: Any, *, _node_: Any, _root_: Any) -> Any:
    """Returns the value that ``env.train`` has for a key of ``env.eval``, else the default."""
    side, _, key = _node_._get_full_key(None).removeprefix("env.").partition(".")
    found = OmegaConf.select(_root_, f"env.train.{key}") if side == "eval" else None
    return default if found is None else found


for _name, _function in (("first", _first), ("subtract", _subtract), ("as_in_training", _as_in_training)):
    OmegaConf.register_new_resolver(_name, _function, replace=True)  # ${first:${data.seed},0} in YAML files


class WrongChoice(ConfigError):
    """A group that is not there, or a file that a group does not have. It does not leave
    :mod:`embodied.schema.compose.compose`: users get a ConfigError."""


def compose_files(overrides: list[str], config_name: str, config_dirs: Sequence[str]) -> dict[str, Any]:
    """Returns the mapping that hydra composes, with its references and with hydra's own section.

    Raises:
        ConfigError: a file or an override is wrong; :class:`WrongChoice` if a choice of a group is.
    """
    check_chosen(overrides, config_dirs)
    try:
        with _hydra():
            wanted = _with_search_path(overrides, config_dirs)
            config = read_once.compose(config_name, wanted)
            _keep_what_is_referred_to(config, wanted, config_name)
    except (yaml.YAMLError, RecursionError) as error:  # raised for a file that another one names
        check_folders(config_dirs)
        raise _composition_error(error, overrides, config_dirs) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _composition_error(error, overrides, config_dirs) from None
    hydra = OmegaConf.to_container(config.hydra, resolve=False)  # only its launcher can resolve all of it
    with open_dict(config):
        del config["hydra"]
    return {**OmegaConf.to_container(config, resolve=False), "hydra": hydra}  # type: ignore[dict-item]


def files_in_order(
    overrides: list[str], config_name: str, config_dirs: Sequence[str], sources: Sequence[Mapping[str, str]]
) -> Iterator[tuple[Path, str]]:  # fmt: skip
    """Yields the files that :func:`compose_files` merges, in its order, each with the section that its keys go to.

    Args:
        sources: ``runtime.config_sources`` of hydra, where it has looked.
    """
    choices = [override for override in overrides if not _sets_a_value(override)]  # to parse the others takes long
    with _hydra():
        chosen = read_once.files_of(config_name, _with_search_path(choices, config_dirs))
    roots = [root for source in sources if source["provider"] != "hydra" for root in _folders(source)]
    for path, package in chosen:
        files = (root / f"{path}.yaml" for root in roots)
        if (file := next((file for file in files if file.is_file()), None)) is not None:
            yield file, package


def _sets_a_value(override: str) -> bool:
    """Whether an override has the name of a key, on which no choice of a file depends."""
    key = override.lstrip("+~").partition("=")[0]
    return "." in key and "/" not in key and "@" not in key and not key.startswith("hydra.")


def _folders(source: Mapping[str, str]) -> list[Path]:
    if source["schema"] == "pkg":
        return [Path(folder) for folder in import_module(source["path"]).__path__]
    return [Path(source["path"])] if source["schema"] == "file" else []


def search_folders(overrides: Sequence[str]) -> list[str]:
    """Returns the folders in which hydra looks because overrides say so. A value that is wrong, hydra refuses."""
    values: list[Any] = []
    for override in filter(_is_search_path, overrides):
        with suppress(HydraException):
            value = parsed(override).value()
            values += value if isinstance(value, list) else []
    found: list[str] = []
    for path in (value for value in values if isinstance(value, str)):
        schema, _, place = path.partition("://") if "://" in path else ("file", "", path)
        with suppress(ImportError):
            found += map(str, _folders({"schema": schema, "path": place}))
    return found


@contextmanager
def _hydra() -> Iterator[None]:
    """Sets hydra up for the package's files, and clears it."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("embodied.config", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().clear()


def _keep_what_is_referred_to(config: DictConfig, overrides: list[str], config_name: str) -> None:
    """Gives a section that refers to another one (``camera_views: ${env.train.…}``) all of that one's keys again, where
    overrides name some of its keys: hydra puts these alone in the place of the reference."""
    given = {one.lstrip("+").partition("=")[0] for one in overrides if not one.startswith(("~", "hydra."))}
    sections = {key[:end] for key in given if "@" not in key for end, letter in enumerate(key) if letter == "."}
    raw = OmegaConf.to_container(config, resolve=False)
    alone = sorted(one for one in sections if isinstance(_at(raw, one), dict) and _leaves(_at(raw, one), one) <= given)
    if not alone:
        return
    rest = [one for one in overrides if not one.lstrip("+").startswith(tuple(f"{section}." for section in alone))]
    before = OmegaConf.to_container(read_once.compose(config_name, rest), resolve=False)
    for section in alone:
        if isinstance(reference := _at(before, section), str) and "${" in reference:
            own = OmegaConf.select(config, section)
            with open_dict(config):
                OmegaConf.update(config, section, reference, merge=False)
                OmegaConf.update(config, section, OmegaConf.merge(OmegaConf.select(config, section), own), merge=False)


def _at(mapping: Any, path: str) -> Any:
    for name in path.split("."):
        mapping = mapping.get(name) if isinstance(mapping, dict) else None
    return mapping


def _leaves(value: Any, path: str) -> set[str]:
    """The keys of a section down to its values; a value, and a section without keys, is one itself."""
    if not isinstance(value, dict) or not value:
        return {path}
    return {leaf for name, inner in value.items() for leaf in _leaves(inner, f"{path}.{name}")}


def _with_search_path(overrides: list[str], config_dirs: Sequence[str]) -> list[str]:
    """The overrides with the folders in hydra's search path, behind those that it has."""
    if not config_dirs:
        return overrides
    searched = [*filter(_is_search_path, overrides)]
    before = [one.partition("=")[2].strip().removeprefix("[").removesuffix("]") for one in searched]
    folders = [quoted(f"file://{Path(folder).resolve()}") for folder in config_dirs]  # whatever characters they have
    rest = [override for override in overrides if override not in searched]
    return [*rest, f"{SEARCH}=[{','.join([*filter(None, before), *folders])}]"]


def _is_search_path(override: str) -> bool:
    return override.lstrip("+").partition("=")[0] == SEARCH


def _composition_error(error: Exception, overrides: list[str], folders: Sequence[str]) -> ConfigError:
    """Turns hydra's error into ours, with the nearest known group or group file for each that is unknown."""
    wrong = [one for one in (wrong_choice(override, folders) for override in overrides) if one is not None]
    if not wrong:
        said = str(error).partition("See https://hydra.cc")[0].removeprefix("LexerNoViableAltException: ")
        plain = " ".join(said.removesuffix("^").split())
        kinds = "a text stands in quotes ('KEY=\"VALUE\"'), a list in brackets (KEY=[A,B])"
        return ConfigError(
            f"cannot compose the configuration: {plain}", f"correct the override it names; {kinds}; see --help"
        )
    told = {one.message: one.remedy for one in wrong}  # env=NAME is of both sides
    return WrongChoice("\n".join(told), "; ".join(told.values()))
