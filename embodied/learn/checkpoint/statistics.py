"""The ranges that a policy takes from demonstrations. They are part of the policy's extra state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from embodied.data.demonstrations import Demonstration
from embodied.data.statistics import ranges
from embodied.errors import ConfigError
from embodied.protocols import HasExtraState, Policy, UsesStatistics
from embodied.schema import SftConfig


def known(policy: Policy) -> dict[str, Any] | None:
    """Returns the action and state ranges that ``policy`` scales by, ``{"name", "action", …}``; None if it uses the
    env's."""
    kept = policy.extra_state() if isinstance(policy, HasExtraState) else {}
    return json.loads(kept["statistics"]) if "statistics" in kept else None


def kind(policy: Policy) -> str:
    """Names the kind of action ranges of ``policy`` for the user (quantiles, bounds). Call after ``use_statistics``."""
    found = known(policy)
    return "1 % and 99 % quantiles" if found is not None and "q01" in found["action"] else "minimum and maximum"


def settle(policy: Policy, sft: SftConfig, episodes: Sequence[Demonstration]) -> list[str]:
    """Gives the policy the demonstrations' action ranges as ``sft.statistics`` says; returns lines for the user."""
    if not isinstance(policy, UsesStatistics):
        if sft.statistics == "quantiles":
            raise ConfigError(
                f"sft.statistics is quantiles, and {type(policy).__name__} spreads no tokens over ranges",
                "leave out sft.statistics",
            )
        return []
    present = known(policy)
    if sft.statistics == "env" and present is not None:
        raise ConfigError(
            f"sft.statistics is env, and the policy comes with the ranges '{present['name']}' of its checkpoint",
            "set sft.statistics=auto, or sft.statistics=quantiles to replace them",
        )
    if sft.statistics == "env":
        return ["ranges of action tokens: the env's"]
    if sft.statistics == "auto" and present is not None:
        return [f"ranges of action tokens: '{present['name']}', as the policy's checkpoint has them"]
    policy.use_statistics("demonstrations", ranges(episodes))
    return [f"ranges of action tokens: {kind(policy)} of the demonstrations"]
