"""Refuses settings with which a head around a frozen policy cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.files import EXPORT_FILE
from embodied.schema.keys.config import Config

AROUND = "embodied.models.head.around_base"


def check_head(config: Config) -> None:
    """Refuses a head around a policy that is not named, or named twice. Raises ConfigError."""
    own: Mapping[str, Any] = config.actor.model.model_extra or {}
    if config.actor.model.target != AROUND:
        return
    base = own.get("base") or {}
    named = [name for name in ("url", "folder", "_target_") if base.get(name) is not None]
    if not named and _is_within(own.get("model_path")):
        return
    if not named or ("_target_" not in named and len(named) > 1):
        raise ConfigError(
            "actor.model.base names no policy for the head to change" if not named else
            f"actor.model.base has {' and '.join(named)}, which name two policies",
            "set actor.model.base.url to the address of its server (ws://HOST:PORT), or actor.model.base.folder to its "
            "checkpoint, run or exported folder",
        )  # fmt: skip


def _is_within(folder: Any) -> bool:
    """Whether an exported head's base lies in its own folder."""
    return isinstance(folder, str) and (Path(folder).expanduser() / "base" / EXPORT_FILE).is_file()


def check_head_learner(config: Config) -> None:
    """Refuses to train a head around a policy with another learner than sac, and demonstrations that a head cannot
    learn from. Raises ConfigError."""
    if config.actor.model.target == AROUND and config.algorithm.learner != "sac":
        raise ConfigError(
            f"algorithm.learner is {config.algorithm.learner}, and a head around a frozen policy learns by soft "
            "actor-critic",
            "set algorithm=sac before model=head_residual",
        )
    own: Mapping[str, Any] = config.actor.model.model_extra or {}
    if config.actor.model.target == AROUND and own.get("head") == "noise" and config.algorithm.replay.demonstrations:
        raise ConfigError(
            "algorithm.replay.demonstrations is set, and actor.model.head is noise: a demonstration does not say with "
            "which noise the base would have made its actions",
            "leave algorithm.replay.demonstrations out, or set actor.model.head=residual",
        )
