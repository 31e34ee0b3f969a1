"""Reads hydra's YAML files, and parses a text once in a process.

Hydra parses each of some 20 files again for each composition, which took half of its time. A command composes two or
three times: its own line, its protocol, and what its sides follow.
"""

from __future__ import annotations

import pickle
from importlib import resources
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource

_Key = tuple[str, str, str, str, bytes]
_parsed: dict[_Key, bytes] = {}


class ReadOnce(ConfigRepository):
    """Hydra's repository of files. A file is found and read each time, so that a changed one is parsed anew."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Returns what a file holds, as an object of its own: hydra changes it while it merges."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        text = None if source is None else _text(source, config_path)
        if source is None or text is None:
            return super().load_config(config_path)
        key = (source.scheme(), source.path, source.provider, config_path, text)
        if key not in _parsed:
            loaded = super().load_config(config_path)
            if _text(source, config_path) != text:  # it was written meanwhile
                return loaded
            _parsed[key] = pickle.dumps(loaded)
        found: ConfigResult = pickle.loads(_parsed[key])
        return found


def use() -> None:
    """Lets the hydra that is set up read its files so."""
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    loader.repository = ReadOnce(loader.config_search_path)


def _text(source: ConfigSource, config_path: str) -> bytes | None:
    """The text of a source's file; None for a source of another kind, and for what cannot be read, which hydra says."""
    name = source._normalize_file_name(config_path)
    try:
        if source.scheme() == "pkg":
            return resources.files(source.path).joinpath(name).read_bytes()
        return Path(source.path, name).read_bytes() if source.scheme() == "file" else None
    except OSError:
        return None
