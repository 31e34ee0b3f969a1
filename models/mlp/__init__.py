"""A small network of numbers, without pictures: ``_target_: embodied.models.mlp.MLPPolicy``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from embodied.types import EnvSpec

from .policy import MLPPolicy

__all__ = ["MLPPolicy", "for_env", "reads"]


def reads() -> str:
    """Returns what a policy reads, for the page of models."""
    return "the state"


def for_env(env: EnvSpec, given: Collection[str]) -> tuple[Mapping[str, Any], list[str]]:
    """See :class:`embodied.protocols.FitsEnv`. The sizes of this network are those of the env that it is bound to."""
    cameras = ", ".join(env.cameras)
    return {}, [f"pictures ({cameras}): this model sees the state alone"] if cameras else []
