"""The statistics that a policy takes from demonstrations. They are part of the policy's extra state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from embodied.data.demonstrations import Demonstration
from embodied.data.statistics import statistics_of
from embodied.errors import ConfigError
from embodied.protocols import HasExtraState, Policy, UsesStatistics
from embodied.schema import SftConfig


def known(policy: Policy) -> dict[str, Any] | None:
    """Returns the statistics that ``policy`` scales actions and state by, ``{"name", "action", …}``; None if it uses
    the env's. Those of the state alone have no ``action``."""
    kept = policy.extra_state() if isinstance(policy, HasExtraState) else {}
    return json.loads(kept["statistics"]) if "statistics" in kept else None


def kind(policy: Policy) -> str:
    """Names the kind of action statistics of ``policy`` for the user. Call after ``use_statistics``. Action tokens are
    spread over quantiles; of another policy that keeps several kinds it is not known by which it scales."""
    found = known(policy)
    names = found["action"] if found is not None else {}
    if "q01" in names and "mean" in names and not policy.spec.categories:
        return "those"
    if "q01" in names:
        return "1 % and 99 % quantiles"
    return "mean and standard deviation" if "mean" in names and "min" not in names else "minimum and maximum"


def settle(policy: Policy, sft: SftConfig, episodes: Sequence[Demonstration]) -> list[str]:
    """Gives the policy the demonstrations' statistics as ``sft.statistics`` says; returns lines for the user."""
    if not isinstance(policy, UsesStatistics):
        if sft.statistics == "quantiles":
            raise ConfigError(
                f"sft.statistics is quantiles, and {type(policy).__name__} takes no statistics of demonstrations",
                "leave out sft.statistics",
            )
        return []
    present, what = known(policy), "ranges of action tokens" if policy.spec.categories else "statistics of actions"
    of_actions = present is not None and "action" in present
    if sft.statistics == "env" and present is not None and of_actions:
        raise ConfigError(
            f"sft.statistics is env, and the policy comes with the statistics '{present['name']}' of its checkpoint",
            "set sft.statistics=auto, or sft.statistics=quantiles to replace them",
        )
    if sft.statistics == "env":
        return [f"{what}: the env's"]
    if sft.statistics == "auto" and present is not None:
        return [
            f"{what}: "
            + (f"'{present['name']}'" if of_actions else "the env's")
            + ", as the policy's checkpoint has them"
        ]
    policy.use_statistics("demonstrations", statistics_of(episodes))
    return [f"{what}: {kind(policy)} of the demonstrations"]
