"""Loads what is served: a checkpoint, or a folder that ``embodied.tools.export`` has written. No simulator is imported.

=======================================================  =============================================================
folder                                                   is
=======================================================  =============================================================
``runs/NAME/checkpoints/000100`` (``meta.json``)         a checkpoint (:func:`embodied.learn.origin.restore`)
``runs/NAME``                                            its newest checkpoint
``embodied.json``: formats hf, torch_export, onnx, aoti  an export (:mod:`embodied.learn.checkpoint.exported`)
=======================================================  =============================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from embodied.errors import ConfigError, unknown_name
from embodied.learn.checkpoint import exported
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.origin import origin_of, restore
from embodied.lib.targets import arguments_of
from embodied.lib.weights_folder import find
from embodied.protocols import Policy
from embodied.types import EnvSpec

MODEL = "actor.model."
BASE = "base"  # argument of what builds a head around a frozen policy
OF_REQUESTS = ("protocol", "mapping", "num_action_chunks")  # of a base's arguments


class Loaded(NamedTuple):
    """A policy that answers, the env that it is bound to, and what it was loaded from."""

    policy: Policy
    env: EnvSpec
    source: str


def load(
    folder: Path, device: torch.device | str = "cpu", trust: bool = False, keys: Mapping[str, Any] | None = None,
    base: str | None = None,
) -> Loaded:  # fmt: skip
    """Loads the policy of a checkpoint or of an exported folder, for serving.

    Args:
        trust: the folder may name whatever it likes to build its policy, and hold machine code.
        keys: arguments of what builds the policy, in place of the folder's own.
        base: address of the server of the policy that the folder's head changes.

    Raises:
        CheckpointError: nothing that can be served is there, or it is damaged.
        ConfigError: what builds the policy cannot be imported, or is none of ours.
        UnknownNameError: it takes no argument of such a name.
    """
    found, keys = find(str(folder)), keys or {}
    folder = found.folder
    if found.is_export:
        facts = exported.read_export(folder)
        keys = {**keys, **export_base(facts.model, base, folder, keys)}
        if keys:
            target = str(facts.model.get("_target_", ""))
            if not trust:  # before anything that it names is imported
                exported.check_trusted(target, facts.model, folder)
            check_keys(keys, target, folder)
            facts = replace(facts, model={**facts.model, **keys})
        return Loaded(*exported.build(facts, folder, device, trust=trust), f"{facts.format} export {folder}")
    origin = origin_of(folder, read_meta(folder))
    if base is not None:
        keys = {**keys, **checkpoint_base(origin.kwargs, base, folder)}
        origin = replace(origin, kwargs={**origin.kwargs, BASE: keys[BASE]})
    elif not trust:
        check_base(origin.kwargs.get(BASE), folder)
    if not trust:
        exported.check_trusted(origin.target, origin.kwargs, folder)
    if keys:
        check_keys(keys, origin.target, folder)
    return Loaded(*restore(folder, device, keys), f"checkpoint {folder}")


def checkpoint_base(kwargs: Mapping[str, Any], url: str, folder: Path) -> dict[str, Any]:
    """Returns the argument with which a checkpoint's head asks the server ``url``.

    Args:
        kwargs: with which the checkpoint builds its policy.

    Raises:
        ConfigError: it is no head around another policy.
    """
    if BASE not in kwargs:
        raise _no_head(folder)
    return {BASE: served_base(kwargs[BASE], url)}


def named_base(folder: Path, url: str | None) -> dict[str, Any]:
    """Returns what of a checkpoint's arguments the command line names: nothing without ``url``.

    Raises:
        ConfigError: the checkpoint needs a server and none is named, or it needs none.
    """
    kwargs = origin_of(folder, read_meta(folder)).kwargs
    if url is not None:
        return checkpoint_base(kwargs, url, folder)
    check_base(kwargs.get(BASE), folder)
    return {}


def served_base(own: Any, url: str) -> dict[str, Any]:
    """Returns the arguments of a head's base behind the server ``url``: of the folder's own those that say how a
    request is filled. Files that hold secrets are never taken from a folder."""
    kept = {name: value for name, value in dict(own or {}).items() if name in OF_REQUESTS}
    return {"url": url, **kept}


def export_base(
    model: Mapping[str, Any], url: str | None, folder: Path, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the argument that names the base of an exported head whose base is behind a server; nothing for other
    policies.

    Args:
        model: what builds the policy of the folder.
        given: arguments in place of the folder's.

    Raises:
        ConfigError: no server is named, or one for a policy that asks none.
    """
    own = model.get(BASE)
    waits = isinstance(own, Mapping) and "url" in own
    if url is not None:
        if not waits:
            raise _no_head(folder)
        assert isinstance(own, Mapping)
        return {BASE: {**{name: value for name, value in own.items() if value is not None}, "url": url}}
    if waits and BASE not in (given or {}):
        raise ConfigError(
            f"{folder} changes what a policy behind a server does, and that policy is not in the folder",
            "serve the policy, and name its server: --base ws://HOST:PORT",
        )
    return {}


def check_base(own: Any, folder: Path) -> None:
    """Refuses to connect to an address that the folder alone names. Raises ConfigError."""
    if isinstance(own, Mapping) and own.get("url"):
        raise ConfigError(
            f"{folder} changes what a policy behind {own['url']} does, and its server is named by the folder alone",
            f"name the server yourself: --base {own['url']}, or wherever this policy is served now",
        )


def _no_head(folder: Path) -> ConfigError:
    return ConfigError(
        f"--base names the server of the policy that a head changes, and {folder} asks no server", "leave --base out"
    )


def parse_keys(words: Sequence[str]) -> dict[str, Any]:
    """Parses arguments of the policy: ``["actor.model.rtc_jacobian=true"]`` → a mapping of names and values.

    Raises:
        ConfigError: a word is none of ``actor.model.KEY=VALUE``.
    """
    found = {}
    for word in words:
        key, sign, value = word.partition("=")
        name = key.removeprefix(MODEL)
        if not (sign and key.startswith(MODEL) and name.isidentifier()):
            raise ConfigError(f"{word}: expected {MODEL}KEY=VALUE", f"e.g. {MODEL}num_action_chunks=16")
        found[name] = yaml.safe_load(value)
    return found


def check_keys(keys: Mapping[str, Any], target: str, folder: Path) -> None:
    """Raises UnknownNameError for a key that ``target`` takes no argument for."""
    arguments = arguments_of(target, f"{folder}: _target_")
    for name in keys:
        if name not in arguments:
            known = [f"{MODEL}{one}" for one in arguments.named]
            raise unknown_name("key", f"{MODEL}{name}", known, "the word")
