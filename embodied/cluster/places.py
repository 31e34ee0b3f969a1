"""Where the keys put ranks and simulator hosts on the nodes of a cluster. Knows no Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from embodied.cluster.nodes import Node, Shape, in_order
from embodied.cluster.plan import Placing
from embodied.errors import ClusterError
from embodied.parallel.placement import table


@dataclass(frozen=True)
class Places:
    """The nodes of a run.

    Args:
        ranks: nodes with ranks, in the order of these.
        devices: that ranks or their simulators have, so that nobody else may, of each node of ``ranks``.
        hosts: nodes that have simulators alone.
        described: all nodes (:data:`embodied.parallel.placement.table.NODES`).
    """

    table: table.PlacementTable
    ranks: list[Node]
    devices: Shape
    hosts: list[Node]
    shape: Shape
    described: str


def places_on(
    nodes: Sequence[Node], placing: Placing, count: int | None, each: int | None
) -> Places:  # fmt: skip
    """Returns where a run stands.

    Args:
        nodes: that there are.
        count: of nodes that the run takes, the first by name; None: all.
        each: most devices of a node that it takes; None: all.

    Raises:
        EmbodiedError: the keys place something that cannot be.
    """
    from embodied.parallel.placement.place import place
    from embodied.schema import ClusterConfig
    from embodied.schema.keys.placement import placed

    there = in_order(nodes)
    if len(there) < (count or 0):
        names = ", ".join(node.shown for node in there)
        raise ClusterError(
            f"cluster.num_nodes is {count}, and the cluster has {len(there)}: {names}",
            "start Ray on the others (ray start --address=HEAD:6379), or set cluster.num_nodes to what is there",
        )
    taken = there[:count]
    described = [
        table.Node(node.name, node.total if each is None else min(node.total, each), node.cores) for node in taken
    ]
    keys = ClusterConfig(component_placement=placing["component_placement"], node_groups=placing["node_groups"])
    groups, places = placed(keys)
    found = place(places, groups, described, placing["slots"])
    having = Counter(rank.node for rank in found.ranks)
    hosting = {host.node for host in found.hosts}
    ranks = [node for node in taken if node.name in having]
    hosts = [node for node in taken if node.name in hosting]
    devices = Shape(tuple(len(found.devices_of(node.name)) for node in ranks))
    shape = Shape(tuple(having[node.name] for node in ranks))
    return Places(found, ranks, devices, hosts, shape, table.nodes_as_text(described))
