"""Whose configuration a file is, by the keys that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.errors import ConfigError
from embodied.migrate.translate import SYSTEMS
from embodied.schema.keys.paths import leaves
from embodied.schema.others.tables import find

FEWEST, TIMES = 3, 3
"""Keys of another system at least, and how many times more than of the one that was named; half of all are its."""


def check_origin(theirs: Mapping[str, Any], system: str) -> None:
    """Refuses a foreign configuration whose keys are those of another system than ``system``: next to nothing would be
    left of it.

    Args:
        theirs: their keys, nested.
        system: whose it is said to be.

    Raises:
        ConfigError: another system has several times as many of its keys.
    """
    named = [key for key, _ in leaves("", theirs)]
    counts = {one: sum(bool(find(key, names)) for key in named) for one, names in SYSTEMS.items()}
    most = max(counts, key=lambda one: counts[one])
    is_most = counts[most] >= max(FEWEST, TIMES * counts[system], len(named) / 2)
    if is_most and most != system:
        raise ConfigError(
            f"{counts[most]} of the {len(named)} keys are of {most}, and {counts[system]} of {system}",
            f"if it is a file of {most}, give --from {most}",
        )
