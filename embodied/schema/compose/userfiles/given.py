"""The files that a command line chooses of a user's folders: each is read before hydra does, and a key with ``???``,
YAML's sign of a value that has to be given, is not left at its default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from embodied.errors import ConfigError
from embodied.schema.compose.userfiles.yaml_text import check_file
from embodied.schema.keys.paths import leaves

OPEN = "???"
OVER_ALL = "experiment"
"""The group whose files come over those of all others: hydra keeps what those say where one has ``???``."""


def check_chosen(overrides: Sequence[str], folders: Sequence[str]) -> None:
    """Checks the files that overrides choose.

    Args:
        overrides: of hydra, e.g. ``experiment=mine``.
        folders: with more group files.

    Raises:
        ConfigError: a file is no YAML, or an experiment has a key that has to be given, and is not.
    """
    given = {one.lstrip("+~").partition("=")[0] for one in overrides}
    for group, file in _chosen(overrides, folders):
        check_file(file)
        keys = yaml.safe_load(file.read_text(encoding="utf-8")) if group == OVER_ALL else None
        keys = {str(key): one for key, one in (keys or {}).items() if key != "defaults"}
        if named := [key for key, value in leaves("", keys) if value == OPEN and key not in given]:
            message = "\n".join(f"{key} is not set: {file} has ??? in its place" for key in named)
            raise ConfigError(message, f"write its value there, or add {named[0]}=… to the command")


def _chosen(overrides: Sequence[str], folders: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for override in overrides:
        choice, _, name = override.lstrip("+").partition("=")
        group = choice.partition("@")[0]
        for folder in folders if name and "." not in group else ():
            file = Path(folder).expanduser() / group / f"{name.strip(chr(39) + chr(34))}.yaml"
            if file.is_file():
                yield group, file
