"""The ranges of the demonstrations, which travel with a checkpoint as something that the run settled."""

from __future__ import annotations

import json
from typing import Any

from embodied.protocols import Policy, Settles


def known(policy: Policy) -> dict[str, Any] | None:
    """What ``policy`` uses, ``{"name", "action", …}``; None if it goes by the env's range."""
    settled = policy.settled() if isinstance(policy, Settles) else {}
    return json.loads(settled["statistics"]) if "statistics" in settled else None


def kind(policy: Policy) -> str:
    """What the ranges of ``policy`` are, for the user. Call after ``use_statistics``."""
    found = known(policy)
    return "1 % and 99 % quantiles" if found is not None and "q01" in found["action"] else "minimum and maximum"
