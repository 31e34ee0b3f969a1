"""Makes a user's dataclass from keys of the configuration and its own options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from embodied.algorithms.conformance.blame import blame
from embodied.errors import ConfigError, EmbodiedError, unknown_name


def construct(kind: Any, label: str, key: str, keys: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Makes an object of a user-configured dataclass ``kind`` (a loss, a term) from its options and from other keys of
    the same names.

    Args:
        label: what the object is, for messages.
        key: of the configuration, under which ``options`` stand.
        keys: values of other keys; the dataclass takes those that it has fields for.

    Raises:
        UnknownNameError: an option is no field.
        ConfigError: an option is lacking, or the dataclass refuses a value.
    """
    known = [field.name for field in fields(kind) if field.init]
    if unknown := [name for name in options if name not in known]:
        raise unknown_name(f"option of {label}", unknown[0], known or ["(none)"], key)
    values = {name: keys[name] for name in known if name in keys} | dict(options)
    if lacking := [field.name for field in fields(kind) if _is_needed(field) and field.name not in values]:
        raise ConfigError(
            f"{label} needs the option{'s' if lacking[1:] else ''} {', '.join(lacking)}, which "
            f"{'have' if lacking[1:] else 'has'} no default",
            " ".join(f"set {key}.{name}=…" for name in lacking),
        )
    try:
        return kind(**values)
    except EmbodiedError:
        raise
    except Exception as error:  # whatever a class of the user's raises
        raise ConfigError(
            f"{label} refuses its options: {error} ({type(error).__name__}; {blame(error, kind)})", f"correct {key}"
        ) from error


def _is_needed(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING
