"""Counts the bytes that an iteration sends between the parts of a run: pure arithmetic over the placement's table.

| link | bytes |
|---|---|
| host → rollout | an observation of each record, from the node that made it to the rank that acts on it |
| rollout → train | what scoring and passes read of each record, unless the rank that collected it trains on it |
| train → rollout | trained weights, once to each node with ranks that only act |
| among train ranks | sums of gradients in a ring; with sharded weights also these, gathered for each pass |
| everything small | results of episodes, to each rank |

Groups of episodes are dealt in turn: group g is collected by rollout rank g mod R and trained on by train rank g mod T.
Counts are upper limits: no episode ends early, and every record carries a gradient.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from embodied.parallel.placement.table import PlacementTable

RESULT = 1_300  # bytes of an episode's result, as it is pickled; measured with 16 records


@dataclass(frozen=True)
class Traffic:
    """Sizes of an iteration, in bytes unless another unit is named."""

    groups: int  # groups of episodes
    episodes: int
    records: int  # of all episodes
    observations: int  # that hosts send: one a record, and final ones where they are read
    observation: int  # of one, with what is sent beside it
    record: int  # of one, what scoring and passes read
    trained: int  # weights that are trained
    steps: int  # optimizer steps
    gathered: int = 0  # weights that are sharded; 0: each rank holds all of them
    gathers: int = 0  # how often an iteration gathers them
    scatters: int = 0  # how often it sums gradients of sharded weights
    shards: int = 1  # ranks among which a weight is sharded; the others hold copies of the shards


@dataclass(frozen=True)
class Link:
    """What one kind of traffic takes in an iteration.

    Args:
        total: bytes between different processes.
        between: bytes of ``total`` that go from one node to another.
        node: the node that sends or receives the most of ``between``; "": nothing leaves its node.
        most: bytes that it sends or receives, whichever is more: networks do both at once.
    """

    name: str
    total: int
    between: int
    node: str
    most: int

    def seconds(self, gbps: float) -> float:
        """Returns how long a network of ``gbps`` 10⁹ bits a second in each direction is busy at least.

        >>> Link("a", 10**9, 10**9, "node-0", 10**9).seconds(8)
        1.0
        """
        return self.most * 8 / (gbps * 1e9)


Flows = defaultdict[tuple[str, str], float]
"""Bytes from a node to a node; within a node those between its processes."""


def links(table: PlacementTable, traffic: Traffic) -> list[Link]:
    """Returns the links of a run, those without traffic included."""
    return [
        _link("host → rollout", _from_hosts(table, traffic)),
        _link("rollout → train", _records(table, traffic)),
        _link("train → rollout", _weights(table, traffic)),
        _link("among train ranks", _gradients(table, traffic)),
        _link("everything small", _results(table, traffic)),
    ]


def busiest(found: Sequence[Link]) -> Link | None:
    """Returns the link that saturates a network first: the one that brings a node the most bytes of an iteration."""
    return max((link for link in found if link.most), key=lambda link: link.most, default=None)


def _link(name: str, flows: Mapping[tuple[str, str], float]) -> Link:
    sent, received = defaultdict[str, float](float), defaultdict[str, float](float)
    for (source, target), size in flows.items():
        if source != target:
            sent[source] += size
            received[target] += size
    loads = {node: max(sent[node], received[node]) for node in (*received, *sent)}
    node = max(loads, key=lambda name: loads[name], default="")
    return Link(name, round(sum(flows.values())), round(sum(sent.values())), node, round(loads.get(node, 0)))


def _from_hosts(table: PlacementTable, traffic: Traffic) -> Flows:
    flows, slots = Flows(float), Counter[int]()
    for host in table.hosts:
        slots[host.rank] += host.slots
    each = traffic.observations / max(len(table.ranks_of("rollout")), 1)
    for host in table.hosts:
        size = each * host.slots / slots[host.rank] * traffic.observation
        flows[host.node, table.ranks[host.rank].node] += size
    return flows


def _records(table: PlacementTable, traffic: Traffic) -> Flows:
    flows, rollout, train = Flows(float), table.ranks_of("rollout"), table.ranks_of("train")
    if not train:
        return flows
    for group in range(traffic.groups):
        source, target = rollout[group % len(rollout)], train[group % len(train)]
        if source != target:
            size = traffic.records / traffic.groups * traffic.record
            flows[table.ranks[source].node, table.ranks[target].node] += size
    return flows


def _weights(table: PlacementTable, traffic: Traffic) -> Flows:
    """A broadcast goes from node to node in a chain, and within a node to each rank."""
    flows, train = Flows(float), table.ranks_of("train")
    only_act = [rank for rank in table.ranks if "train" not in rank.roles]
    at = table.ranks[train[0]].node if train else ""
    for node in dict.fromkeys(rank.node for rank in only_act) if train else ():
        ranks = sum(rank.node == node for rank in only_act)
        if node not in (at, table.ranks[train[0]].node):
            flows[at, node] += traffic.trained
            at, ranks = node, ranks - 1
        flows[node, node] += ranks * traffic.trained
    return flows


def _gradients(table: PlacementTable, traffic: Traffic) -> Flows:
    """Rings: of all train ranks where each holds all weights; else of the ranks that share a weight, and of those that
    hold the same shard of it."""
    flows, train = Flows(float), table.ranks_of("train")
    if not traffic.gathered:
        _around(flows, table, train, 2 * traffic.steps * traffic.trained)
        return flows
    shards = traffic.shards
    for first in range(0, len(train), shards):
        together = train[first : first + shards]
        _around(flows, table, together, traffic.gathers * traffic.gathered + traffic.scatters * traffic.trained)
    for place in range(shards if len(train) > shards else 0):
        _around(flows, table, train[place::shards], 2 * traffic.steps * traffic.trained / shards)
    return flows


def _around(flows: Flows, table: PlacementTable, ranks: Sequence[int], size: float) -> None:
    """Adds a ring: each rank sends all of ``size`` but its own part to the next."""
    for source, target in _ring(ranks):
        part = size * (len(ranks) - 1) / len(ranks)
        flows[table.ranks[source].node, table.ranks[target].node] += part


def _ring(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    if len(ranks) > 1:
        yield from zip(ranks, (*ranks[1:], ranks[0]), strict=True)


def _results(table: PlacementTable, traffic: Traffic) -> Flows:
    """Results go around a ring of all ranks, which send them on."""
    flows = Flows(float)
    _around(flows, table, [rank.rank for rank in table.ranks], traffic.episodes * RESULT)
    return flows
