"""Section ``protocol``: what an evaluation is held to, so that its success can be compared with that of others."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from embodied.schema.keys.base import Section


class ProtocolConfig(Section):
    name: str | None = Field(
        None,
        min_length=1,
        description="Name of the evaluation's protocol (`protocol=NAME`); null = the keys as they are.",
    )
    source: str = Field("", description="Where the protocol's values come from.")
    env: str | None = Field(
        None, description="Class of the env that the protocol is for (`env.eval._target_`); another one is refused."
    )
    sets: dict[str, Any] = Field(
        {},
        description="Keys that the protocol sets, with dots. A key of the command line has its own value, and the "
        "results say so.",
    )
    of_model: dict[str, dict[str, Any]] = Field(
        {},
        description="Keys that it sets for models of some kind: their `actor.model._target_`, then keys as in `sets`.",
    )
    held_out_states: int = Field(
        0,
        ge=0,
        description="Initial states of each task, the last ones, that training and embodied.tools.demos never start "
        "from and evaluations alone do. A task whose starts differ by their seeds alone has other seeds in evaluations "
        "anyway. 0 = both start from all.",
    )
