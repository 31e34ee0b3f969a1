"""Makes the table of a run's ranks and simulator hosts from what the keys say and what nodes there are.

    places (schema.keys.placement) ─┐
    node groups ────────────────────┼─▶ place ─▶ PlacementTable
    nodes, env slots ───────────────┘

Numbers of devices count over the nodes that are meant, in order of name; those of nodes without devices count
the nodes. Every refusal names the key, and the node if there is one. Pure: no torch, no Ray, nothing of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from embodied.errors import ConfigError
from embodied.lib.spans import as_spans
from embodied.lib.words import counted
from embodied.parallel.placement.table import Node, NodeSoftware, PlacementTable, Rank, Role, SimulatorHost, by_name

if TYPE_CHECKING:  # the keys take tenths of a second, and the table is read before them
    from embodied.schema.keys.placement import NodeEnv, NodeGroup, Place, Ranks

PLACEMENT, GROUPS = "cluster.component_placement", "cluster.node_groups"
FOLLOWS = {"inference": "actor", "critic": "actor", "reference": "actor", "reward": "rollout"}
"""Components without processes of their own, and those with whose processes they go."""
WHY = {
    "inference": "log-probs before the update are passes of the processes that train",
    "critic": "values come from a head of the policy that is trained",
    "reference": "the reference is the base of the policy that is trained",
    "reward": "a reward model scores what the processes that act have collected",
}

Device = tuple[str, int]
"""A node's name and the number of a device on it."""


def place(
    places: Mapping[str, Place], groups: Sequence[NodeGroup], nodes: Sequence[Node], slots: int
) -> PlacementTable:  # fmt: skip
    """Places the components of a run.

    Args:
        places: by component (:func:`embodied.schema.keys.placement.parse_placement`). A component that is missing has
            all devices; the simulators then stand beside the processes that act.
        nodes: in any order.
        slots: env slots of the whole run, which hosts share by their cores.

    Raises:
        ConfigError: a place, a node or a device is not there, stands twice, or cannot do what is asked of it.
    """
    site = _Site(groups, nodes)
    actor, rollout = (site.devices_of(name, places.get(name)) for name in ("actor", "rollout"))
    for name, leader in FOLLOWS.items():
        _check_follows(site, places, name, leader, {"actor": actor, "rollout": rollout}[leader])
    beside, hosts = site.simulators(places.get("env"), actor, rollout)
    renders = _renders(rollout, beside)
    roles: dict[Device, set[Role]] = {device: set() for device in site.all if device in {*actor, *rollout}}
    for device in actor:
        roles[device].add("train")
    for device in rollout:
        roles[device].add("rollout")
    ranks = tuple(_ranks(roles, renders))
    acting = [rank.rank for rank in ranks if "rollout" in rank.roles]
    return PlacementTable(site.nodes, ranks, _hosts(hosts, acting, slots), site.software())


def _ranks(roles: Mapping[Device, set[Role]], renders: Mapping[Device, tuple[int, ...]]) -> Iterator[Rank]:
    before: dict[str, int] = {}
    for number, ((node, device), own) in enumerate(roles.items()):
        local = before[node] = before.get(node, -1) + 1
        yield Rank(number, node, device, local, frozenset(own), renders.get((node, device), ()))


def _renders(rollout: Sequence[Device], beside: Sequence[Device] | None) -> dict[Device, tuple[int, ...]]:
    """Deals the devices of simulators to the processes that act on their node, in turn."""
    found: dict[Device, tuple[int, ...]] = {}
    for node in dict.fromkeys(node for node, _ in rollout) if beside is not None else ():
        acting = [one for one in rollout if one[0] == node]
        devices = [device for name, device in beside or () if name == node]
        same = devices == [device for _, device in acting]
        for place, one in enumerate(acting):
            found[one] = (one[1],) if same else tuple(devices[place % len(devices) :: len(acting)])
    return found


def _hosts(nodes: Sequence[Node], acting: Sequence[int], slots: int) -> tuple[SimulatorHost, ...]:
    """Divides env slots among nodes in proportion to their cores (to equal parts where a node does not say them). Slots
    stand in a row, those of a rank together; each node takes the next piece of the row."""
    if not nodes:
        return ()
    each, weights = slots // len(acting), [node.cores or 1 for node in nodes]
    if any(node.cores is None for node in nodes):
        weights = [1] * len(nodes)
    ends = [slots * sum(weights[: place + 1]) // sum(weights) for place in range(len(nodes))]
    found = []
    for node, begin, end in zip(nodes, [0, *ends], ends, strict=False):
        if begin == end:
            raise ConfigError(
                f"{PLACEMENT} puts simulators on {len(nodes)} nodes, and of {slots} env slots none is left for "
                f"{node.name}",
                f"raise env.train.total_num_envs to {len(nodes)} or more, or name fewer nodes for env",
            )
        for place, rank in enumerate(acting):
            first, last = max(begin, place * each), min(end, (place + 1) * each)
            if first < last:
                found.append(SimulatorHost(node.name, rank, first - place * each, last - first))
    return tuple(sorted(found, key=lambda host: (host.rank, host.first)))


def _check_follows(
    site: _Site, places: Mapping[str, Place], name: str, leader: str, devices: Sequence[Device]
) -> None:  # fmt: skip
    """Refuses a place of its own for a component that has no processes."""
    if name in places and site.devices_of(name, places[name]) != devices:
        wanted = places[leader].text if leader in places else "all"
        raise ConfigError(
            f"{PLACEMENT} gives {name} {places[name].text} and {leader} {wanted}, and {name} has no processes of its "
            f"own: {WHY[name]}",
            f"leave {name} out, or give it what {leader} has",
        )


class _Site:
    """The nodes that there are, with the labels of the keys."""

    def __init__(self, groups: Sequence[NodeGroup], nodes: Sequence[Node]) -> None:
        ordered = sorted(nodes, key=lambda node: by_name(node.name))
        if not ordered:
            raise ConfigError("no node is there to run on", "start Ray on a node, or set cluster.num_nodes")
        for one, other in pairwise(ordered):
            if one.name == other.name:
                raise ConfigError(f"two nodes have the name {one.name}", "give each node a name of its own")
        self.groups = {group.label: group for group in groups}
        self.nodes = tuple(ordered)
        blind = {node.name for group in groups if group.ignore_hardware for node in self.of_group(group)}
        self.nodes = tuple(replace(node, devices=0) if node.name in blind else node for node in ordered)
        self.all = self._devices(self.nodes)

    @staticmethod
    def _devices(nodes: Sequence[Node]) -> list[Device]:
        return [(node.name, device) for node in nodes for device in range(node.devices)]

    def of_group(self, group: NodeGroup) -> list[Node]:
        """Returns the nodes of a group."""
        return self._numbered(group.nodes, self.nodes, f"{GROUPS} gives {group.label} the node")

    def _numbered(self, ranks: Ranks, nodes: Sequence[Node], what: str) -> list[Node]:
        for number in ranks.numbers or ():
            if number >= len(nodes):
                raise ConfigError(
                    f"{what} {number}, and {counted(len(nodes), 'node')} {_are(len(nodes))} there: "
                    f"{_numbered_names(nodes)}",
                    f"name nodes of {_to(len(nodes))}; cluster.num_nodes says how many there are",
                )
        return [nodes[number] for number in (range(len(nodes)) if ranks.numbers is None else ranks.numbers)]

    def _meant(self, place: Place) -> tuple[list[Node], bool]:
        """Returns the nodes that a place counts in, and whether it counts the nodes themselves."""
        if not place.groups:
            return list(self.nodes), not self.all
        labels = [label for label in place.groups if label in self.groups]
        if len(labels) < len(place.groups) and len(place.groups) > 1:
            raise ConfigError(
                f"{PLACEMENT} gives {place.said}, and the group node has every node already",
                "name it alone, or leave it out",
            )
        if not labels:
            return list(self.nodes), True
        nodes = [node for label in labels for node in self.of_group(self.groups[label])]
        found = [self._node(node.name) for node in nodes]
        if (twice := next((node.name for node in found if found.count(node) > 1), None)) is not None:
            raise ConfigError(
                f"{PLACEMENT} gives {place.said}, and {twice} is in more than one of the groups",
                "name groups that share no node",
            )
        return found, not any(node.devices for node in found)

    def _node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def devices_of(self, name: str, place: Place | None) -> list[Device]:
        """Returns the devices of a component that has processes, in order."""
        if place is None or (place.ranks.numbers is None and not place.groups and place.ranks.processes is None):
            found = self.all
        else:
            nodes, themselves = self._meant(place)
            if themselves:
                raise ConfigError(
                    f"{PLACEMENT} gives {place.said}, and {_names(nodes)} {_have(nodes)} no device for a process",
                    "name devices; simulators alone (env) can be on nodes without",
                )
            found = self._chosen(place, self._devices(nodes))
        if not found:
            raise ConfigError(
                f"no node has a device for {name}: {_names(self.nodes)}",
                "set cluster.num_gpus_per_node to the processes of each node, or leave ignore_hardware out of "
                f"{GROUPS} for one of them",
            )
        order = {device: number for number, device in enumerate(self.all)}
        return sorted(found, key=order.__getitem__)

    def _chosen(self, place: Place, devices: Sequence[Device]) -> list[Device]:
        numbers, processes = place.ranks.numbers, place.ranks.processes
        if processes not in (None, len(devices)):
            raise ConfigError(
                f"{PLACEMENT} gives {place.said}: {processes} processes for {len(devices)} devices, "
                "and each device has one process",
                "leave out what follows the colon",
            )
        beyond = [number for number in numbers or () if number >= len(devices)]
        if beyond:
            last = devices[-1][0]
            raise ConfigError(
                f"{PLACEMENT} gives {place.said}, and {counted(len(devices), 'device')} "
                f"{_are(len(devices))} there, the last on {last}: {as_spans(beyond, 3)} {_are(len(beyond))} not",
                f"name devices of {_to(len(devices))}, or raise cluster.num_nodes or cluster.num_gpus_per_node",
            )
        return [devices[number] for number in numbers] if numbers is not None else list(devices)

    def simulators(
        self, place: Place | None, actor: Sequence[Device], rollout: Sequence[Device]
    ) -> tuple[Sequence[Device] | None, list[Node]]:
        """Returns the devices on which simulators render beside the processes that act (None: they are elsewhere), and
        the nodes that host them without a rank."""
        if place is None:
            return rollout, []
        if place.ranks.numbers is None and not place.groups and set(rollout) == set(self.all):
            return rollout, []
        nodes, themselves = self._meant(place)
        if themselves:
            chosen = self._numbered(place.ranks, nodes, f"{PLACEMENT} gives env the node")
            devices: list[Device] = []
        else:
            devices = self._chosen(place, self._devices(nodes))
            chosen = [node for node in nodes if node.name in {name for name, _ in devices}]
        acting, working = {name for name, _ in rollout}, {name for name, _ in (*rollout, *actor)}
        names = [node.name for node in chosen]
        if not working & set(names):
            return None, [self._node(name) for name in sorted(names, key=by_name)]
        self._check_beside(place, names, acting, themselves)
        return devices, []

    def _check_beside(self, place: Place, names: Sequence[str], acting: set[str], themselves: bool) -> None:
        """Refuses simulators that stand neither beside a process that acts nor on nodes of their own."""
        said = f"{PLACEMENT} gives {place.said}"
        fix = "name the devices of rollout, or nodes that have neither actor nor rollout"
        for name in names:
            if name not in acting:
                raise ConfigError(f"{said}, and no process on {name} acts: rollout is on {_several(acting)}", fix)
        if themselves:
            raise ConfigError(f"{said}, and {names[0]} has processes of its own", fix)
        for name in sorted(acting, key=by_name):
            if name not in names:
                raise ConfigError(f"{said}, and the processes that act on {name} have no simulators", fix)

    def software(self) -> dict[str, NodeSoftware]:
        """Returns interpreter and variables of each node that a group says them of."""
        found: dict[str, NodeSoftware] = {}
        for group in self.groups.values():
            own = self.of_group(group)
            for env in group.envs:
                for node in self._within(group, env, own):
                    found[node.name] = _merged(found.get(node.name), env, group.label, node.name)
        return found

    def _within(self, group: NodeGroup, env: NodeEnv, own: Sequence[Node]) -> list[Node]:
        if env.nodes.numbers is None:
            return list(own)
        nodes = self._numbered(env.nodes, self.nodes, f"{GROUPS} gives env_configs of {group.label} the node")
        for number, node in zip(env.nodes.numbers, nodes, strict=True):
            if node.name not in {one.name for one in own}:
                raise ConfigError(
                    f"{GROUPS} gives env_configs of {group.label} the node {number} ({node.name}), which is not in "
                    "that group",
                    f"name nodes of {group.label}, or add it to the group's node_ranks",
                )
        return nodes


def _merged(before: NodeSoftware | None, env: NodeEnv, label: str, node: str) -> NodeSoftware:
    """Joins what several entries say of a node; refuses two values of one thing."""
    before = before or NodeSoftware()
    if before.python is not None and env.python not in (None, before.python):
        raise ConfigError(
            f"{GROUPS} gives {node} two interpreters: {before.python} and {env.python} ({label})", "give it one"
        )
    for name, value in env.variables.items():
        if before.variables.get(name, value) != value:
            raise ConfigError(
                f"{GROUPS} gives {node} two values of {name}: {before.variables[name]} and {value} ({label})",
                "give it one",
            )
    return NodeSoftware(env.python or before.python, {**before.variables, **env.variables})


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _have(nodes: Sequence[Node]) -> str:
    return "has" if len(nodes) == 1 else "have"


def _to(number: int) -> str:
    return "0" if number == 1 else f"0-{number - 1}"


def _names(nodes: Sequence[Node]) -> str:
    return _several([node.name for node in nodes])


def _several(names: Sequence[str] | set[str]) -> str:
    found = sorted(names, key=by_name)
    return ", ".join(found) if len(found) < 4 else f"{found[0]} … {found[-1]}"


def _numbered_names(nodes: Sequence[Node]) -> str:
    shown = [f"{number} is {node.name}" for number, node in enumerate(nodes)]
    return ", ".join(shown if len(shown) < 4 else [shown[0], "…", shown[-1]])
