"""Section ``protocol``: what an evaluation is held to, so that its success can be compared with that of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import Field

from embodied.errors import ConfigError
from embodied.schema.base import Section


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


def asked(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys that the protocol of a whole configuration sets, with their values.

    Raises:
        ConfigError: the protocol is for another env.
    """
    protocol = mapping["protocol"]
    target, wanted = mapping["env"]["eval"].get("_target_"), protocol["env"]
    if wanted is not None and target != wanted:
        raise ConfigError(
            f"protocol={protocol['name']} is for {wanted}, and env.eval is {target}",
            "choose an env of that class (env=libero_10 …), or leave protocol= out",
        )
    return {**protocol["sets"], **protocol["of_model"].get(mapping["actor"]["model"].get("_target_"), {})}


def not_given(wanted: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Returns those of the protocol's keys that do not stand on the command line, nor a section of theirs."""
    return {
        key: value for key, value in wanted.items()
        if not any(one == key or ("." in one and key.startswith(f"{one}.")) for one in given)
    }  # fmt: skip
