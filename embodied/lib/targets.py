"""Importing what a ``_target_`` names. Imports nothing else: env workers of another Python interpreter use it."""

from __future__ import annotations

import importlib
from typing import Any

from embodied.errors import ConfigError


def load_target(path: str, key: str) -> Any:
    """Import what a ``_target_`` names. Raises :class:`ConfigError` if there is no such module or attribute."""
    module_name, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{key}: cannot import '{path}': {error}",
            f"set {key} to the dotted path of a class or function that can be imported",
        ) from error
