"""What the launcher asks of the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict


class Placing(TypedDict):
    """What a table of places is made from, beside the nodes that there are."""

    component_placement: Any  # as the keys have it
    node_groups: list[dict[str, Any]] | None
    slots: int  # env slots of the whole run


@dataclass(frozen=True)
class Plan:
    """One start of all ranks.

    Args:
        arguments: of Python, for each rank.
        folder: that the command was started in.
        run: the run's folder.
        nonce: file in it that the launcher has written.
        address: of the cluster, as ``ray.init`` takes it.
        resource: that a rank takes one of: ``GPU``, ``CPU``, or ``auto`` (GPUs if the cluster has any).
        count: of nodes, and ``each`` ranks on each, as far as the user has said it.
        shapes: in which an earlier start may go on, ranks of each node, best first; [] = this is the first.
        lost: ids of nodes that were lost.
        placement: what the user says of places; None = nothing: Ray chooses the nodes.
        init_timeout_s: how long to wait for resources that others have.
        agent_timeout_s: how long a node may leave a call without an answer.
        grace_s: time between SIGTERM and SIGKILL when the launcher has gone.
    """

    arguments: list[str]
    folder: str
    run: str
    nonce: str
    address: str
    resource: str
    count: int | None
    each: int | None
    init_timeout_s: float
    agent_timeout_s: float
    grace_s: float
    shapes: list[list[int]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    placement: Placing | None = None
