"""What a folder may name to build its policy or its env, if it may come from a stranger.

A folder could name any function, and have it called. Checksums find damage; they do not tell who wrote a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError

TRUSTED = frozenset(
    {
        *("embodied.models.openvla_oft.build_policy", "embodied.models.causal_lm.build_policy"),
        *("embodied.models.exported.build_policy", "embodied.models.mlp.MLPPolicy", "embodied.testing.FakePolicy"),
        *("embodied.models.head.HeadPolicy", "embodied.models.head.around_base"),
        *("embodied.models.flow_vla.build_policy", "embodied.testing.FakeTextPolicy", "embodied.testing.FlowPolicy"),
    }
)
"""What a folder may name to build its policy."""
ENVS = frozenset(
    {
        *("embodied.envs.libero.LiberoEnv", "embodied.envs.maniskill.ManiSkillEnv", "embodied.envs.gym.GymEnv"),
        *("embodied.envs.text.env.MathEnv", "embodied.envs.text.calculator.CalculatorEnv"),
        *("embodied.envs.text.reasoning.ReasoningEnv", "embodied.testing.FakeEnv", "embodied.testing.FakeTextEnv"),
    }
)
"""What a folder may name to build its env, with arguments that name no code of others."""
TRUST = "trust"
"""Keyword argument of what runs machine code. The caller gives it, never the folder."""
OWN_CODE = {"trust_remote_code": ("model_path",), "tokenizer_trust_remote_code": ("tokenizer_path", "model_path")}
"""Keyword argument that permits to run Python files of a folder → the arguments that name the folder."""
ADDRESSES = ("url", "token_file", "ca_file")
"""Keyword arguments that say where a policy server is, and how this program shows who it is."""
HERE = "."
"""In a keyword argument of ``model``: the folder itself."""
SERVE = "embodied.tools.serve --trust"

_CODE = ("imports", "entry_point", "wrappers", "target", "expert", "variables", "python", "reader", "task_file", "path")
"""Arguments of envs that name code, or an interpreter, or what it loads."""
_KNOWN = ("gymnasium_robotics", "gym_pusht", "gym_aloha", "metaworld", "mani_skill")
"""Packages of ``embodied``'s extras."""
_OURS = "embodied.envs."
_OF_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.-]*")


def check_trusted(target: str, keys: Mapping[str, Any], folder: Path, by_hand: str = SERVE) -> None:
    """Checks what builds the policy of a folder that may come from a stranger.

    Args:
        keys: its keyword arguments. Those of a checkpoint hold :data:`TRUST` if its run trusted what it loaded.
        by_hand: the option with which a command trusts a folder.

    Raises:
        ConfigError: it is no model of this library, or machine code is to be run.
    """
    if target not in TRUSTED:
        raise ConfigError(
            f"{folder} wants '{target}' to be imported and called, which is no model of this library",
            f"if you trust the folder: {by_hand}, or in Python open_export(folder, trust=True)",
        )
    if keys.get(TRUST):
        raise ConfigError(
            f"{folder} says of itself that it is to be trusted ('{TRUST}' of '{target}')",
            f"do not use it if it comes from strangers; if it is your own: {by_hand}",
        )
    base = keys.get("base")
    if isinstance(base, Mapping) and base.get("_target_") is not None:  # of a head; what it stands on is called as well
        own = {name: value for name, value in base.items() if name != "_target_"}
        check_trusted(str(base["_target_"]), own, folder, by_hand)
    for key, paths in OWN_CODE.items():
        named = [str(keys[path]) for path in paths if keys.get(path)]
        if keys.get(key) and any([*(folder if one == HERE else Path(one).expanduser()).glob("*.py")] for one in named):
            raise ConfigError(
                f"{folder} permits to run Python files that came with the weights ({key})",
                f"do not use it if it comes from strangers; if it is your own: {by_hand}",
            )


def check_addresses(keys: Mapping[str, Any], folder: Path) -> None:
    """Checks that an exported folder names no server and no file of a secret: whoever uses it does. Observations and
    tokens would go wherever it says.

    Args:
        keys: what builds its policy.

    Raises:
        ConfigError: it names one.
    """
    for name, value in keys.items():
        if isinstance(value, Mapping):
            check_addresses(value, folder)
        elif name in ADDRESSES and value is not None:
            raise ConfigError(
                f"{folder} says of itself where a server is or which secret goes there ('{name}'), which no export "
                "writes",
                "do not use it if it comes from strangers; if it is your own, export its checkpoint again",
            )


def check_trusted_env(target: str, keys: Mapping[str, Any], folder: Path, by_hand: str) -> None:
    """Checks what builds the env of a folder that may come from a stranger.

    Raises:
        ConfigError: it is no env of this library, or an argument names code of others.
    """
    named = target if target not in ENVS else next(_code(keys, ""), None)
    if named is not None:
        raise ConfigError(
            f"{folder} wants '{named}' to be imported and run for its env, which is no part of this library",
            f"name the env yourself: env=NAME; or, if the folder is your own: {by_hand}",
        )


def _code(value: Any, key: str) -> Any:
    """Yields the texts in an env's arguments that name code of others."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _code(inner, f"{key}.{name}" if key.rpartition(".")[2] in _CODE else str(name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _code(inner, key)
    elif isinstance(value, str) and value and not value.startswith(_OURS):
        of_code = key.partition(".")[0] in _CODE and value not in _KNOWN
        if of_code or re.search(r"\.py\b", value) or (key in ("id", "data") and _OF_MODULE.fullmatch(value)):
            yield value
