"""Section of remembered starts: ``algorithm.start_value.*``."""

from __future__ import annotations

from pydantic import Field

from embodied.schema.keys.base import Section


class StartValueConfig(Section):
    half_life: float | None = Field(
        8.0,
        gt=0,
        description="Iterations until an episode counts half in what is remembered of its start, because the policy "
        "has moved; null = nothing is forgotten, which is right for a policy that does not learn.",
    )
    prior_episodes: float | None = Field(
        None,
        ge=0,
        description="How many episodes the value of its task counts as much as, in the value of a start; null = "
        "estimated from how alike episodes of one start are.",
    )
