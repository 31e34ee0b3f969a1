"""Short forms of the command line, rewritten into hydra's own grammar.

``env=NAME`` is short for ``env@env.train=NAME env@env.eval=NAME``, and ``+perturb=NAME`` for
``+perturb@env.eval.perturb=NAME`` (of ``train``: ``env.train``); :data:`SHORT` has more. The schema, not the files,
decides which keys exist: a key that no YAML file mentions needs no ``+``.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from embodied.errors import ConfigError
from embodied.lib.weights_folder import not_a_word
from embodied.schema.compose.of_hydra import OF_HYDRA
from embodied.schema.keys.groups import GROUPS, group_options
from embodied.schema.keys.names import in_known_case

SHORT = {
    "data": "data.train_data_paths", "episodes": "demos.episodes", "noise_std": "demos.noise_std",
    "answers": "runner.answers", "selftest": "runner.selftest",
}  # fmt: skip
"""Short form → key. ``data=PATH`` is a list of one path."""


def expand(overrides: Sequence[str], config_name: str, folders: Sequence[str] = ()) -> list[str]:
    """Rewrites the short forms into hydra's own. ``+perturb=NAME`` is for what the command does: episodes of training,
    or those of evaluations."""
    expanded: list[str] = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if (group := key.lstrip("+").partition("@")[0]) in GROUPS:
            value = in_known_case(value, group_options(group, folders))
            override = f"{key}{equals}{value}"
        if key.lstrip("+~").startswith("hydra.") and key.lstrip("+~") not in OF_HYDRA:
            raise ConfigError(
                f"{key} is a key of hydra's launcher, which is not used",
                f"leave it out; taken are {', '.join(OF_HYDRA)}",
            )
        if not equals and not key.startswith("~"):
            raise not_a_word(override)
        if key in SHORT:
            one_path = key == "data" and not value.startswith("[")
            expanded.append(f"++{SHORT[key]}=" + (f"[{quoted(value)}]" if one_path else value))
        elif key.isidentifier() and key not in GROUPS and not any((Path(one) / key).is_dir() for one in folders):
            expanded.append(f"++{override}")  # no group: the schema says what is wrong, together with all else
        elif value == "null" and "." not in key:
            expanded.append(f"~{key}")  # experiment=null leaves the group out
        elif key in ("perturb", "+perturb"):
            side = "train" if config_name == "train" else "eval"
            expanded.append(f"+perturb@env.{side}.perturb={value}")
        elif key == "env":
            expanded += [f"env@env.train={value}", f"env@env.eval={value}"]
        elif "." in key and "@" not in key and key[0] not in "+~" and not key.startswith("hydra."):
            expanded.append(f"++{override}")
        else:
            expanded.append(override)
    return expanded


def parsed(override: str) -> Override:
    """Parses an override with hydra's grammar; each text once in a process, as that takes a millisecond.

    Raises:
        HydraException: it is none.
    """
    found: Override = pickle.loads(_parsed(override))  # hydra may change what it is given
    return found


@lru_cache(maxsize=4096)
def _parsed(override: str) -> bytes:
    return pickle.dumps(OverridesParser.create().parse_override(override))


def readable(override: str) -> str:
    """Quotes the plain value of a key that hydra's grammar does not read, such as a path with ``~``, é or brackets.

    What begins as a list, a mapping or a quoted text, or has a reference, stays as it is, so that hydra says what
    is wrong.

    Raises:
        ConfigError: the value is several, as hydra's launcher takes them for several runs.
    """
    key, _, value = override.partition("=")
    if "." not in key or "@" in key or not value or value[0] in "[{'\"" or any(sign in value for sign in "\\$"):
        return override
    try:
        several = parsed(override).is_sweep_override()
    except HydraException:
        return f"{key}={quoted(value)}"
    if several:
        key = key.lstrip("+")
        raise ConfigError(
            f"{key}={value} has several values", f"write a list as '{key}=[{value}]', and a text as '{key}=\"{value}\"'"
        )
    return override


def quoted(text: str) -> str:
    """Quotes a text in hydra's grammar, whatever characters it has."""
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"
