"""Values that follow from other keys, with the keys that they follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Changes = dict[str, Any]
"""Dotted key → its value."""


@dataclass(frozen=True)
class Derivation:
    """Values of configuration keys that follow from other keys, with these. A later value of a key replaces an earlier
    one."""

    values: Changes = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)  # key → those that its value follows from

    def add(self, values: Mapping[str, Any], *sources: str) -> None:
        """Adds values that all follow from the same keys."""
        self.values.update(values)
        self.sources.update(dict.fromkeys(values, sources))

    def include(self, other: Derivation, below: str = "") -> None:
        """Adds another derivation, whose keys stand below a section."""
        self.values.update({below + key: value for key, value in other.values.items()})
        self.sources.update({below + key: sources for key, sources in other.sources.items()})
