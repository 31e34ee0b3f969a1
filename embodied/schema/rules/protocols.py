"""Reads the keys that a protocol sets, and checks that a configuration may carry its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from embodied.errors import ConfigError
from embodied.schema.keys.sections.protocol import ProtocolConfig

HELD_OUT = "protocol.held_out_states"


def named(overrides: Iterable[str]) -> str | None:
    """Returns the protocol that a command line names, by the last ``protocol=NAME``."""
    names = [value for key, _, value in (one.partition("=") for one in overrides) if key.lstrip("+") == "protocol"]
    return names[-1] if names and names[-1] not in ("", "null") else None


def without_foreign_name(protocol: Mapping[str, Any], overrides: Iterable[str], files: Collection[str]) -> Any:
    """Returns the protocol without the name that an experiment gave it, if the command line chooses another env.

    Args:
        files: names of the protocols that are files of their own, which are for any env of their class.
    """
    chooses = any(one.partition("=")[0].lstrip("+") in ("env", "env@env.eval") for one in overrides)
    is_own = protocol["name"] in files or any(one.startswith("protocol.name=") for one in overrides)
    return {**protocol, "name": None} if chooses and not is_own else protocol


def as_named(protocol: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """Gives a protocol the name of its file, if its rules are the file's. Another number of held-out states is one of
    its deviations, which results say.

    Raises:
        ConfigError: it has the name, and other rules.
    """
    whole = {**ProtocolConfig().model_dump(), **file}
    other = [key for key in ("env", "sets", "of_model") if protocol[key] != whole[key]]
    if other:
        name = protocol["name"]
        raise ConfigError(
            f"this is not the protocol {name}: {', '.join(f'protocol.{key}' for key in other)} differs from its file",
            f"choose it whole by protocol={name}, with single keys beside it (env.eval.…=…), which results then say; "
            "or give this one a name of its own: protocol.name=…",
        )
    held_out = whole["held_out_states"]
    if protocol["held_out_states"] == held_out:
        return dict(protocol)
    return {**protocol, "sets": {**protocol["sets"], HELD_OUT: held_out}}


def protocol_values(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that the configured protocol sets, by dotted key.

    Raises:
        ConfigError: the protocol is for another env.
    """
    protocol = mapping["protocol"]
    target, wanted = mapping["env"]["eval"].get("_target_"), protocol["env"]
    if wanted is not None and target != wanted:
        raise ConfigError(
            f"protocol={protocol['name']} is for {wanted}, and env.eval is {target}",
            "choose an env of that class (env=libero_10 …), or leave protocol= out",
        )
    return {**protocol["sets"], **protocol["of_model"].get(mapping["actor"]["model"].get("_target_"), {})}


def without_overridden(values: Mapping[str, Any], command_line: Collection[str]) -> dict[str, Any]:
    """Drops the protocol's keys that the command line sets itself, directly or with their section."""
    return {
        key: value for key, value in values.items()
        if key != HELD_OUT and not any(one == key or ("." in one and key.startswith(f"{one}.")) for one in command_line)
    }  # fmt: skip
