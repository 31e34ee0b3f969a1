"""Importing what a ``_target_`` names, and the arguments that it takes. Imports nothing else: env workers of another
Python interpreter use it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Arguments:
    """The arguments of what a ``_target_`` names. ``name in arguments``: it takes such a keyword argument."""

    named: Mapping[str, inspect.Parameter]  # by name, without *args and **kwargs
    others: bool  # it takes any other name besides (**kwargs)

    def __contains__(self, name: object) -> bool:
        return self.others or name in self.named


def arguments_of(path: str, key: str) -> Arguments:
    """Returns the arguments of what a ``_target_`` names.

    Raises:
        ConfigError: it cannot be imported, or cannot be asked, as it cannot be called or is no code of Python.
    """
    target = load_target(path, key)
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{key}: the arguments of '{path}' are not known: {error}",
            f"set {key} to the dotted path of a class or function that is written in Python",
        ) from error
    kinds = {parameter.kind for parameter in parameters.values()}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind not in variable}
    return Arguments(named, inspect.Parameter.VAR_KEYWORD in kinds)
