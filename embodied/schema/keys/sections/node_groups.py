"""Sections of node groups: which nodes have a label, and what runs on them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from embodied.schema.keys.base import Section

Number = Annotated[int, Strict()]  # true is no number
Where = str | Number | list[Number | str]
"""``all``, a number, ``0-3``, ``0-3,8-11``, or a list of them (:mod:`embodied.schema.keys.placement`)."""


class NodeEnvConfig(Section):
    """Python and environment variables of some nodes of a group."""

    node_ranks: Where = Field(description="Nodes of the group: all, a number, 0-3, a list. Counted in order of name.")
    python_interpreter_path: str | None = Field(
        None, min_length=1, description="Python of the processes on these nodes; null = that of the command."
    )
    env_vars: list[dict[str, str | int | float | bool]] | None = Field(
        None, description="Environment variables of the processes on these nodes: [{NAME: value}, …]."
    )


class NodeGroupConfig(Section):
    """Nodes with a label."""

    label: str | Number = Field(description="Label that cluster.component_placement names.")
    node_ranks: Where = Field(description="Nodes: all, a number, 0-3, a list. They are counted in order of name.")
    env_configs: list[NodeEnvConfig] | None = Field(
        None, description="Python and environment variables of some of the nodes; null = those of the command."
    )
    ignore_hardware: bool = Field(
        False, description="Place no rank on the devices of these nodes: they are machines that run simulators alone."
    )
