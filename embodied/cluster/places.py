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
        ranks: nodes with ranks, in the order of these, ``shape.each`` on each.
        hosts: nodes that have simulators alone.
        described: all nodes (:data:`embodied.parallel.placement.table.NODES`).
    """

    table: table.PlacementTable
    ranks: list[Node]
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
        EmbodiedError: the keys place something that cannot be, or another number of ranks on each node.
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
    _check_equal(having)
    hosting = {host.node for host in found.hosts}
    ranks = [node for node in taken if node.name in having]
    hosts = [node for node in taken if node.name in hosting]
    return Places(found, ranks, hosts, Shape(len(ranks), max(having.values())), table.nodes_as_text(described))


def _check_equal(having: Counter[str]) -> None:
    """Refuses nodes with different numbers of ranks, which many parts of a run count by."""
    most, least = having.most_common()[0], having.most_common()[-1]
    if most[1] != least[1]:
        raise ClusterError(
            f"the placement puts {most[1]} ranks on node {most[0]} and {least[1]} on {least[0]}, and a run has as many "
            "on each node that has any",
            "give actor and rollout as many devices of each node in cluster.component_placement, or set "
            f"cluster.num_gpus_per_node={least[1]} if all devices are meant",
        )
