"""Knowledge of other systems: hints for their keys, and configurations without keys that ask for nothing.

what hydra composed ─▶ without keys that say nothing ─▶ resolve: defaults, ${…} ─▶ a hub's name becomes its folder
                                                                    ─▶ without accepted keys that ask for nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embodied.errors import ConfigError
from embodied.schema.keys.paths import at, leaves, without
from embodied.schema.others.accepted_no_ops import without_neutral
from embodied.schema.others.hints import elsewhere, hint, instead
from embodied.schema.others.hub_cache import PATH, with_cached_model
from embodied.schema.others.keep_default import silent
from embodied.schema.others.translation import Lookup, unknown
from embodied.schema.others.values import Settings


@dataclass(frozen=True)
class Normalised:
    """A configuration translated into our own keys, and notes of what was dropped."""

    mapping: dict[str, Any]
    silent: tuple[str, ...]  # keys with a value that keeps the default
    no_ops: tuple[str, ...]  # keys that were accepted and dropped
    hub_name: str | None  # the model's name on the hub, in whose place its folder is now
    refused: list[ConfigError]  # errors about values that ask for what is not there


@dataclass(frozen=True)
class Others:
    """Translates keys and values of other systems (RLinf, verl, ROLL, Cosmos-RL, TRL) in a configuration.

    Args:
        known: says the values of the user's other keys, for hints.
    """

    known: Lookup = unknown

    def hint(self, key: str, value: Any = None) -> str:
        """Returns our counterpart of another system's key, as the end of a sentence; empty if no system has it."""
        return hint(key, value, self.known)

    def elsewhere(self, key: str, value: Any = None) -> str:
        """Returns the same hint for a key that another system has in another section."""
        return elsewhere(key, value, self.known)

    def instead(self, key: str, value: Any) -> Settings:
        """Returns our settings for another system's key; empty where they are not known exactly."""
        return instead(key, value, self.known)

    def normalise(
        self, mapping: Mapping[str, Any], resolve: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Normalised:  # fmt: skip
        """Drops keys that keep their default or ask for nothing, and names the model by its folder.

        Args:
            mapping: the configuration, with its references.
            resolve: merges it with the defaults and resolves the references.

        Raises:
            ConfigError: a revision of the model is asked for that was not downloaded.
        """
        quiet = silent(mapping)
        rest = dict(mapping)
        for key in quiet:
            rest = without(rest, key)
        resolved = resolve(rest)
        with_folder = with_cached_model(resolved)
        name = at(resolved, PATH)
        left, refused = without_neutral(with_folder)
        kept = {key for key, _ in leaves("", left)}
        dropped = tuple(key for key, _ in leaves("", with_folder) if key not in kept)
        return Normalised(left, tuple(quiet), dropped, name if at(with_folder, PATH) != name else None, refused)

    def without_no_ops(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Drops the accepted keys that do nothing, whatever their values are."""
        return without_neutral(mapping)[0]
