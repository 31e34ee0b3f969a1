"""Composes with hydra: parses a text once in a process, and merges once what the choices of groups give.

Hydra parses and merges some 20 files again for each composition. A command composes two or three times: its own line,
its protocol, and what its sides follow; a program that composes often, such as our tests, does little else. What is
kept counts as long as hydra would find the same files with the same texts.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from hydra import compose as hydra_compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from embodied.schema.compose.short_forms import parsed
from embodied.schema.keys.groups import GROUPS

_Key = tuple[str, str, str, str, bytes]
_MOST = 64  # compositions kept, of some 60 kB each
_CALL = re.compile(rb"\$\{[^}]*:")  # such as ${oc.env:HOME}: it may give something else the next time
_OURS = ("embodied.config", "hydra.conf")


@dataclass(frozen=True)
class _Read:
    """What a composition has asked for, and found."""

    sources: tuple[ConfigSource, ...]  # in which it was looked for, in their order
    config_path: str
    key: _Key | None  # None: it was not there, or is no file

    @property
    def holds(self) -> bool:
        """Whether it would find the same now."""
        return _found(self.sources, self.config_path) == self.key

    @property
    def may_be_kept(self) -> bool:
        return self.key is None or self.key[1] in _OURS or _CALL.search(self.key[4]) is None


_parsed: dict[_Key, bytes] = {}
_merged: dict[tuple[str, tuple[str, ...]], tuple[list[_Read], bytes]] = {}
_listed: dict[tuple[str, tuple[str, ...]], tuple[list[_Read], list[tuple[str, str]]]] = {}
_reads: list[_Read] = []  # of the composition that is being made


class _ReadOnce(ConfigRepository):
    """Hydra's repository of files. A file is found and read each time, so that a changed one is parsed anew."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Returns what a file holds, as an object of its own: hydra changes it while it merges."""
        key = _found(self.sources, config_path)
        _reads.append(_Read(tuple(self.sources), config_path, key))
        if key is None:
            return super().load_config(config_path)
        if key not in _parsed:
            loaded = super().load_config(config_path)
            if _found(self.sources, config_path) != key:  # it was written meanwhile
                return loaded
            _parsed[key] = pickle.dumps(loaded)
        found: ConfigResult = pickle.loads(_parsed[key])
        return found


def loader() -> ConfigLoaderImpl:
    """Returns the loader of the hydra that is set up; from now on it parses a text once."""
    found = GlobalHydra.instance().config_loader()
    assert isinstance(found, ConfigLoaderImpl)
    if not isinstance(found.repository, _ReadOnce):
        found.repository = _ReadOnce(found.config_search_path)
    return found


def compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Composes as ``hydra.compose`` does with hydra's own section, in the hydra that is set up.

    Raises:
        HydraException, OmegaConfBaseException, ValueError: as ``hydra.compose``.
    """
    loader()
    try:
        read = [parsed(one) for one in overrides]
        values = [one for one in read if _is_value(one)]
        chosen = [one for one in read if not _is_value(one)]
        if values and all(map(_is_choice, chosen)):
            return _with_values(_of_choices(config_name, [one.input_line or "" for one in chosen]), values, read)
    except (HydraException, OmegaConfBaseException, ValueError):
        pass  # said below of the command line as it is
    return _of_choices(config_name, overrides)


def _is_value(override: Override) -> bool:
    """Whether it sets a value, which no choice of a file depends on."""
    key = override.key_or_group
    return "." in key and "/" not in key and not key.startswith("hydra.") and override.package is None


def _is_choice(override: Override) -> bool:
    """Whether it chooses a file, or is for hydra, so that it may come before values that it stands behind."""
    key = override.key_or_group
    return key.startswith("hydra.") or (key in GROUPS and not isinstance(override.value(), dict))


def _of_choices(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """What the files give, an object of its own."""
    name = (config_name, tuple(overrides))
    reads, kept = _merged.get(name, ([], b""))
    if kept and all(read.holds for read in reads):
        config: DictConfig = pickle.loads(kept)
        config.hydra.runtime.cwd = os.getcwd()
        return config
    _reads.clear()
    config = hydra_compose(config_name, [*overrides], return_hydra_config=True)
    if _may_be_kept(overrides):
        _merged[name] = ([*_reads], pickle.dumps(config))
        for oldest in [*_merged][:-_MOST]:
            del _merged[oldest]
    return config


def files_of(config_name: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the files that hydra merges, in its order: name in its search path, and section that the keys go to.

    Args:
        overrides: choices of groups, and hydra's own.
    """
    name = (config_name, tuple(overrides))
    reads, kept = _listed.get(name, ([], []))
    if reads and all(read.holds for read in reads):
        return kept
    _reads.clear()
    chosen = loader().compute_defaults_list(config_name, [*overrides], RunMode.RUN).defaults
    files = [(f"{choice.config_path}", choice.package or "") for choice in chosen]
    if _may_be_kept(overrides):
        _listed[name] = ([*_reads], files)
        for oldest in [*_listed][:-_MOST]:
            del _listed[oldest]
    return files


def _may_be_kept(overrides: Sequence[str]) -> bool:
    """Whether what was just made of these overrides and of ``_reads`` is the same the next time."""
    return not any("${" in one for one in overrides) and all(read.may_be_kept and read.holds for read in _reads)


def _with_values(config: DictConfig, values: list[Override], read: list[Override]) -> DictConfig:
    """Sets values and names all overrides in hydra's own section, as hydra does after it has merged the files."""
    ConfigLoaderImpl.validate_sweep_overrides_legal(read, run_mode=RunMode.RUN, from_shell=False)
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    of_task = [one for one in read if not one.is_hydra_override()]
    config.hydra.overrides.task = [one.input_line for one in of_task]
    job = config.hydra.job
    told = job.config.override_dirname
    job.override_dirname = get_overrides_dirname(
        overrides=of_task, kv_sep=told.kv_sep, item_sep=told.item_sep, exclude_keys=told.exclude_keys
    )
    return config


def _found(sources: Sequence[ConfigSource], config_path: str) -> _Key | None:
    """Which file hydra would take, with its text; None for one of another kind, and for none."""
    source = next((source for source in sources if source.is_config(config_path)), None)
    if source is None or source.scheme() not in ("pkg", "file"):
        return None
    name = source._normalize_file_name(config_path)
    folder = resources.files(source.path) if source.scheme() == "pkg" else Path(source.path)
    try:
        return source.scheme(), source.path, source.provider, config_path, folder.joinpath(name).read_bytes()
    except OSError:  # hydra says it
        return None
