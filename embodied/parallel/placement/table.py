"""Says which process runs where and does what: a pure table, without torch and Ray.

    nodes, in order of name ─▶ ranks: node, device, roles       (processes that act or train; torch.distributed)
                          └──▶ hosts: node, slots, rank         (simulators on nodes without a rank)

:func:`embodied.parallel.placement.place.place` makes it from the keys and a description of the nodes. All processes
of a run make equal tables.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from embodied.errors import ConfigError
from embodied.lib.spans import as_spans

Role = Literal["rollout", "train"]
EVERY_ROLE: frozenset[Role] = frozenset({"rollout", "train"})
NODES = "EMBODIED_NODES"
"""Variable in which a launcher describes all nodes of a run to its processes: torchrun's variables know equal ones."""
MOST_ROWS = 8  # of nodes with simulators in the table that is printed


@dataclass(frozen=True)
class Node:
    """A machine, as whoever starts the run describes it: the keys, torchrun's environment, or Ray.

    Args:
        devices: processes that it may have, one a GPU; without GPUs, slots for processes as torchrun counts them.
        cores: of its CPUs; None: not known.
    """

    name: str
    devices: int = 1
    cores: int | None = None


@dataclass(frozen=True)
class Rank:
    """A process of the run.

    Args:
        rank: 0 … size − 1, counted over nodes in order of name, then devices.
        device: on its node; GPUs are counted as ``CUDA_VISIBLE_DEVICES`` of the node lists them.
        local_rank: among the ranks of its node; ``device`` where each device before it has a rank.
        renders: devices of its node on which its simulators render; empty: it has no role rollout, or hosts have them.
    """

    rank: int
    node: str
    device: int
    local_rank: int
    roles: frozenset[Role] = EVERY_ROLE
    renders: tuple[int, ...] = ()

    @property
    def renders_elsewhere(self) -> bool:
        """Whether its simulators render on other devices than its own."""
        return self.renders not in ((), (self.device,))


@dataclass(frozen=True)
class SimulatorHost:
    """Env slots of one rollout rank on a node without ranks. A node has one for each rank that it serves.

    Args:
        rank: the rollout rank that they belong to.
        first: its first slot among the slots of that rank.
        slots: how many follow from ``first``.
    """

    node: str
    rank: int
    first: int
    slots: int


@dataclass(frozen=True)
class NodeSoftware:
    """What the processes of a node run with.

    Args:
        python: path of the interpreter; None: that of the command.
    """

    python: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacementTable:
    """Ranks and simulator hosts of a run.

    Args:
        nodes: in order of name (:func:`by_name`).
        ranks: in order; the place of each is its number.
        hosts: in order of rank, then node.
        software: of the nodes that a node group says it of.
    """

    nodes: tuple[Node, ...]
    ranks: tuple[Rank, ...]
    hosts: tuple[SimulatorHost, ...] = ()
    software: Mapping[str, NodeSoftware] = field(default_factory=dict)

    def ranks_of(self, role: Role) -> tuple[int, ...]:
        """Returns the ranks that have ``role``, ascending."""
        return tuple(rank.rank for rank in self.ranks if role in rank.roles)

    def on(self, node: str) -> tuple[Rank, ...]:
        """Returns the ranks of a node."""
        return tuple(rank for rank in self.ranks if rank.node == node)

    def devices_of(self, node: str) -> tuple[int, ...]:
        """Returns the devices of a node that its ranks or their simulators have, ascending."""
        return tuple(sorted({device for rank in self.on(node) for device in (rank.device, *rank.renders)}))

    def hosts_of(self, rank: int) -> tuple[SimulatorHost, ...]:
        """Returns the hosts that serve a rollout rank; none: its simulators stand beside it."""
        return tuple(host for host in self.hosts if host.rank == rank)

    def software_of(self, node: str) -> NodeSoftware:
        """Returns what the processes of a node run with."""
        return self.software.get(node, NodeSoftware())

    @property
    def kinds(self) -> tuple[frozenset[Role], ...]:
        """The sets of roles that ranks have, each once, in order of the first rank that has it."""
        return tuple(dict.fromkeys(rank.roles for rank in self.ranks))

    @property
    def renders_elsewhere(self) -> bool:
        """Whether simulators beside a rank render on other devices than its own."""
        return any(rank.renders_elsewhere for rank in self.ranks)

    @property
    def collocated(self) -> bool:
        """Whether each rank acts and trains, and has its simulators beside it, on its device."""
        return not self.hosts and not self.renders_elsewhere and all(rank.roles == EVERY_ROLE for rank in self.ranks)

    def rows(self) -> list[list[str]]:
        """Returns short lines for a table, one for all ranks with equal roles."""
        return [*map(self._rank_row, self.kinds), *self._render_rows(), *self._host_rows(), *self._idle_rows()]

    def _rank_row(self, roles: frozenset[Role]) -> list[str]:
        alike = [rank for rank in self.ranks if rank.roles == roles]
        told = f"{_ranks(rank.rank for rank in alike)} on {_nodes([rank.node for rank in alike])}"
        shifted = any(rank.device != rank.local_rank for rank in alike)
        return [roles_told(roles), f"{told}, {_devices(rank.device for rank in alike)}" if shifted else told]

    def _render_rows(self) -> list[list[str]]:
        """Says which simulators render on other devices than those of their ranks: a row for equal devices."""
        elsewhere = [rank for rank in self.ranks if rank.renders_elsewhere]
        alike: dict[tuple[int, ...], list[Rank]] = {}
        for rank in elsewhere:
            alike.setdefault(rank.renders, []).append(rank)
        if len(alike) > MOST_ROWS:
            alike = {tuple({device for devices in alike for device in devices}): elsewhere}
        return [["simulators", f"of {_ranks(rank.rank for rank in ranks)}: on {_devices(devices)} of "
                 f"{_nodes([*dict.fromkeys(rank.node for rank in ranks)])}"]
                for devices, ranks in alike.items()]  # fmt: skip

    def _host_rows(self) -> list[list[str]]:
        by_ranks: dict[tuple[int, ...], list[str]] = {}
        for node in dict.fromkeys(host.node for host in self.hosts):
            by_ranks.setdefault(tuple(host.rank for host in self.hosts if host.node == node), []).append(node)
        slots = Counter[str]()
        for host in self.hosts:
            slots[host.node] += host.slots
        if len(by_ranks) > MOST_ROWS:  # each of many nodes serves other ranks
            by_ranks = {tuple(sorted({rank for ranks in by_ranks for rank in ranks})): list(slots)}
        return [["simulators", f"{_several([slots[node] for node in nodes])} env slots on {_nodes(nodes)}, "
                 f"for {_ranks(ranks)}"] for ranks, nodes in by_ranks.items()]  # fmt: skip

    def _idle_rows(self) -> list[list[str]]:
        """Says how many devices have no component, on nodes that are no hosts."""
        hosts = {host.node for host in self.hosts}
        idle = {node.name: node.devices - len(self.devices_of(node.name)) for node in self.nodes
                if node.name not in hosts}  # fmt: skip
        left = [node for node, count in idle.items() if count]
        return [["idle", f"{_several([idle[node] for node in left])} devices on {_nodes(left)}"]] if left else []


def nodes_as_text(nodes: Sequence[Node]) -> str:
    """Formats a description of nodes for :data:`NODES`.

    >>> nodes_of({NODES: nodes_as_text([Node("a", 8, 64), Node("b", 0)])})
    [Node(name='a', devices=8, cores=64), Node(name='b', devices=0, cores=None)]
    """
    return json.dumps([asdict(node) for node in nodes])


def nodes_of(environment: Mapping[str, str]) -> list[Node]:
    """Reads the description of nodes that the launcher of a process has left; empty: it has left none.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return [Node(**one) for one in json.loads(environment.get(NODES) or "[]")]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{NODES} describes no nodes: {error}", f"unset {NODES}; launchers set it") from error


def by_name(name: str) -> tuple[tuple[int, int, str], ...]:
    """Returns the key by which nodes are ordered: numbers in names count as numbers.

    >>> sorted(["node-10", "node-2", "b"], key=by_name)
    ['b', 'node-2', 'node-10']
    """
    parts = re.split(r"([0-9]+)", name)
    return (*((1, int(part), "") if part.isdigit() else (2, 0, part) for part in parts if part), (0, 0, name))


def roles_told(roles: frozenset[Role]) -> str:
    """Formats roles.

    >>> roles_told(EVERY_ROLE)
    'rollout, train'
    """
    return ", ".join(sorted(roles))


def _ranks(ranks: Iterable[int]) -> str:
    found = sorted(ranks)
    count = f" ({len(found)})" if len(found) > 1 else ""
    return f"rank{'s' * (len(found) > 1)} {as_spans(found, most=3)}{count}"


def _devices(devices: Iterable[int]) -> str:
    found = sorted({*devices})
    return f"device{'s' * (len(found) > 1)} {as_spans(found)}"


def _nodes(names: Sequence[str]) -> str:
    """Formats the nodes of some things, with a name for each thing.

    >>> _nodes(["a", "a", "b", "b"]), _nodes(["a"]), _nodes(["a", "b", "c"]), _nodes(["a", "a", "b"])
    ('a and b, 2 on each', 'a', '3 nodes, a … c', 'a (2) and b (1)')
    """
    counts = Counter(names)
    nodes = list(counts)
    if len({*counts.values()}) > 1 and len(nodes) <= MOST_ROWS:
        *first, last = (f"{node} ({count})" for node, count in counts.items())
        return f"{', '.join(first)} and {last}"
    told = " and ".join(nodes) if len(nodes) < 3 else f"{len(nodes)} nodes, {nodes[0]} … {nodes[-1]}"
    several = len(nodes) > 1 and max(counts.values()) > 1
    return f"{told}, {_several(list(counts.values()))} on each" if several else told


def _several(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
