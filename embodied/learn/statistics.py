"""The ranges of the demonstrations travel with a checkpoint, among the facts of the policy (``Policy.describe``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from embodied.errors import CheckpointError
from embodied.protocols import Clonable, Policy

FACT = "statistics"


def known(policy: Policy) -> dict[str, Any] | None:
    """What ``policy`` uses, ``{"name", "action", …}``; None if it goes by the env's range."""
    text = policy.describe().get(FACT)
    return None if text is None else json.loads(text)


def restore(policy: Policy, facts: Mapping[str, str]) -> None:
    """Give ``policy`` the ranges that a checkpoint was saved with (``Meta.policy``), if it has any.

    Raises:
        CheckpointError: it has, and the policy cannot take them.
    """
    if FACT not in facts:
        return
    if not isinstance(policy, Clonable):
        raise CheckpointError(
            f"the checkpoint was trained with ranges of demonstrations, and {type(policy).__name__} cannot take them",
            "use the model that wrote it: model=…",
        )
    values = json.loads(facts[FACT])
    policy.use_statistics(values.pop("name"), values)
