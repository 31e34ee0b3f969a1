"""Reads the ranges that a policy has taken from demonstrations. They are part of the policy's extra state."""

from __future__ import annotations

import json
from typing import Any

from embodied.protocols import HasExtraState, Policy


def known(policy: Policy) -> dict[str, Any] | None:
    """The ranges that ``policy`` uses, ``{"name", "action", …}``; None if it uses the env's."""
    kept = policy.extra_state() if isinstance(policy, HasExtraState) else {}
    return json.loads(kept["statistics"]) if "statistics" in kept else None


def kind(policy: Policy) -> str:
    """Names the kind of ranges of ``policy`` for the user. Call after ``use_statistics``."""
    found = known(policy)
    return "1 % and 99 % quantiles" if found is not None and "q01" in found["action"] else "minimum and maximum"
