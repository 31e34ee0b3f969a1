"""A small actor with critics, which learns from a replay buffer: ``_target_: embodied.models.head.HeadPolicy``; around
a frozen policy ``_target_: embodied.models.head.around_base``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from embodied.types import EnvSpec

from .around import around_base
from .policy import HeadPolicy

__all__ = ["HeadPolicy", "around_base", "for_env", "reads"]


def reads() -> str:
    """Returns what a policy reads, for the page of models."""
    return "the state; pictures with `actor.model.pictures=true`"


def for_env(env: EnvSpec, given: Collection[str]) -> tuple[Mapping[str, Any], list[str]]:
    """See :class:`embodied.protocols.FitsEnv`. The sizes of this network are those of the env that it is bound to."""
    cameras = ", ".join(env.cameras)
    unread = bool(cameras) and "pictures" not in given
    return {}, [f"pictures ({cameras}): read with actor.model.pictures=true"] if unread else []
