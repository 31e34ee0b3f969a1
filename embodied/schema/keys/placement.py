"""Reads where components and node groups are placed: RLinf's grammar, parsed and never evaluated.

    placement   = ranks | {components: where, …}         components = actor | actor, rollout, …
    where       = ranks | LABEL | {node_group: LABEL | [LABEL, …], placement: ranks}
    ranks       = all | part, part, … | [part, …]        part = span | span:processes        span = 3 | 0-3

A rank counts the devices of the nodes that are meant: all nodes, or those of the node groups, each in order of name.
Nodes without devices are counted themselves. A device has one process, so ``:processes`` may only say that. Knows no
machine: :mod:`embodied.parallel.placement.place` compares what is written here with the nodes that there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied.errors import ConfigError, did_you_mean, unknown_name
from embodied.lib.spans import as_spans

COMPONENTS = ("actor", "rollout", "env", "inference", "reward", "critic", "reference")
"""Components that ``cluster.component_placement`` may name."""
PLACEMENT, GROUPS = "cluster.component_placement", "cluster.node_groups"
NODE = "node"
"""The group of all nodes, which are counted themselves, whatever devices they have."""
RESERVED = (NODE, "cluster")
MOST = 65_536  # devices of a cluster: a range beyond is a slip of the pen, and would fill the memory
_SPAN = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
HOW = "write all, a number, 0-3, or a list such as 0-3,8-11"


@dataclass(frozen=True)
class Ranks:
    """Numbers of devices or nodes, as a key names them."""

    numbers: tuple[int, ...] | None  # ascending; None: all
    processes: int | None = None  # processes that ``all`` should have; None: not said


ALL = Ranks(None)


@dataclass(frozen=True)
class Place:
    """Where one component should run.

    >>> placed = parse_placement({"actor,rollout": "0-1", "env": "cpu"}, ["cpu"])
    >>> placed["actor"].ranks.numbers, placed["env"].ranks.numbers, placed["env"].groups
    ((0, 1), None, ('cpu',))
    """

    component: str
    ranks: Ranks = ALL  # of the devices of the groups' nodes; of the nodes themselves where these have no device
    groups: tuple[str, ...] = ()  # labels, in the order in which their nodes are counted; (): all nodes
    text: str = "all"  # as it is written
    who: str = ""  # whom the key gives it, if that is not this component alone

    @property
    def said(self) -> str:
        """The component and its place, for messages."""
        return f"{self.who or self.component} {self.text}"


@dataclass(frozen=True)
class NodeEnv:
    """Python and environment variables of some nodes."""

    nodes: Ranks
    python: str | None = None  # path of the interpreter; None: the one that the run was started with
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeGroup:
    """Nodes with a label."""

    label: str
    nodes: Ranks  # numbers of nodes, which are counted in order of name
    envs: tuple[NodeEnv, ...] = ()
    ignore_hardware: bool = False  # no rank is placed on their devices


def parse_ranks(value: Any, what: str, how: str = HOW) -> Ranks:
    """Reads ``all``, a number, a range, a list, or several of them with commas.

    Args:
        what: the beginning of an error's message, up to the value.

    >>> parse_ranks("0-2, 5", "").numbers, parse_ranks([4, "6-7"], "").numbers, parse_ranks("4-7:0-3", "").numbers
    ((0, 1, 2, 5), (4, 6, 7), (4, 5, 6, 7))

    Raises:
        ConfigError: the value is not of this grammar, names nothing, or names something twice.
    """
    parts = value if isinstance(value, list) else str(value).split(",")
    if any(isinstance(part, bool) or not isinstance(part, (int, str)) for part in parts):
        raise ConfigError(f"{what} {value!r}", how)
    texts = [text for part in parts if (text := str(part).strip())]
    if not texts:
        raise ConfigError(f"{what} {value!r}, which names nothing", how)
    if texts[0].partition(":")[0].strip().lower() == "all" and len(texts) == 1:
        return Ranks(None, _processes_of_all(texts[0], what, value))
    numbers: list[int] = []
    processes = 0
    for text in texts:
        span, colon, own = text.partition(":")
        found = _span(span, what, value, how)
        if colon:
            _check_processes(_span(own, what, value, how), found, processes, what, value)
        numbers += found
        processes += len(found)
    _check_order(numbers, what, value)
    return Ranks(tuple(numbers))


def _span(text: str, what: str, value: Any, how: str) -> range:
    matched = _SPAN.fullmatch(text.strip())
    if matched is None:
        raise ConfigError(f"{what} {value!r}", how)
    first, last = int(matched[1]), int(matched[2] or matched[1])
    if last < first:
        raise ConfigError(f"{what} {value!r}, a range that ends before it begins", f"write {last}-{first}")
    if last >= MOST:
        raise ConfigError(f"{what} {value!r}, and numbers end at {MOST - 1}", how)
    return range(first, last + 1)


def _processes_of_all(text: str, what: str, value: Any) -> int | None:
    own = text.partition(":")[2].strip()
    if not own:
        return None
    span = _span(own, what, value, "leave out what follows the colon: each device has one process")
    if span.start:
        raise ConfigError(f"{what} {value!r}, whose processes begin with {span.start}", "write all")
    return len(span)


def _check_processes(processes: range, devices: range, first: int, what: str, value: Any) -> None:
    """Refuses a number of processes that is not one a device."""
    if len(processes) != len(devices):
        raise ConfigError(
            f"{what} {value!r}: {len(processes)} processes for {len(devices)} devices, and each device has one process",
            "leave out what follows the colon; env.num_workers sets the processes of simulators",
        )
    if processes.start != first:
        raise ConfigError(
            f"{what} {value!r}: processes are numbered in the order of their devices, and these begin with "
            f"{processes.start}",
            "leave out what follows the colon",
        )


def _check_order(numbers: Sequence[int], what: str, value: Any) -> None:
    ordered = sorted(set(numbers))
    if len(ordered) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ConfigError(f"{what} {value!r}, which names {twice} twice", f"write {as_spans(ordered)}")
    if list(numbers) != ordered:
        raise ConfigError(
            f"{what} {value!r}, and devices are numbered by node and device, whatever order is written",
            f"write {as_spans(ordered)}",
        )


def parse_placement(placement: Any, labels: Sequence[str] = ()) -> dict[str, Place]:
    """Reads ``cluster.component_placement``; components that it does not name are not in the result.

    Args:
        placement: as the key holds it; None: not said.
        labels: of the node groups.

    Raises:
        ConfigError: a component or a group is not known, a component is placed twice, or a place is not of the grammar.
    """
    if placement is None:
        return {}
    if not isinstance(placement, Mapping):
        return {name: _place(name, placement, labels, "each component") for name in COMPONENTS}
    if not placement:
        raise ConfigError(f"{PLACEMENT} places nothing", "leave it out, or write cluster.component_placement=all")
    found: dict[str, Place] = {}
    for names, where in placement.items():
        for name in _components(str(names)):
            if name in found:
                raise ConfigError(
                    f"{PLACEMENT} places {name} twice: {found[name].text} and {_text(where)}", "name it in one key"
                )
            found[name] = _place(name, where, labels)
    return found


def _components(names: str) -> Iterator[str]:
    for name in (part.strip() for part in names.split(",")):
        if name not in COMPONENTS:
            raise unknown_name("component", name, COMPONENTS, f"the names in {PLACEMENT}")
        yield name


def _place(name: str, where: Any, labels: Sequence[str], said: str = "") -> Place:
    what = f"{PLACEMENT} gives {said or name}"
    if not isinstance(where, (list, Mapping)) and str(where).strip() in labels:
        return Place(name, ALL, (str(where).strip(),), _text(where), said)
    if isinstance(where, str) and _LABEL.fullmatch(where.strip()) and where.strip().lower() != "all":
        raise ConfigError(
            f"{what} {where!r}, which is no label of {GROUPS}.{did_you_mean(where, labels)}",
            f"{HOW}, or a label{_known(labels)}",
        )
    if not isinstance(where, Mapping):
        return Place(name, parse_ranks(where, what), (), _text(where), said)
    for key in where:
        if key not in ("node_group", "placement"):
            raise ConfigError(
                f"{what} the key {key!r}.{did_you_mean(str(key), ('node_group', 'placement'))}",
                f"write {name}: {{node_group: LABEL, placement: 0-3}}",
            )
    found = _labels(where["node_group"], what, labels) if "node_group" in where else ()
    return Place(name, parse_ranks(where.get("placement", "all"), what), found, _text(where))


def _labels(group: Any, what: str, labels: Sequence[str]) -> tuple[str, ...]:
    texts = group if isinstance(group, list) else str(group).split(",")
    found = tuple(str(text).strip() for text in texts if str(text).strip())
    if not found:
        raise ConfigError(f"{what} a node_group without a label", f"name a label of {GROUPS}{_known(labels)}")
    for label in found:
        if label not in (*labels, NODE):
            raise ConfigError(
                f"{what} the node group {label!r}, which is no label of {GROUPS}.{did_you_mean(label, labels)}",
                f"name a label that there is{_known(labels)}, or add {label} to {GROUPS}",
            )
    if len(set(found)) < len(found):
        raise ConfigError(f"{what} a node group twice: {', '.join(found)}", "name each label once")
    return found


def _known(labels: Sequence[str]) -> str:
    return f" ({', '.join(labels)})" if labels else ""


def _text(where: Any) -> str:
    if not isinstance(where, Mapping):
        return str(where)
    return f"{where.get('placement', 'all')} of {where.get('node_group', 'all nodes')}"


def placed(cluster: Any) -> tuple[tuple[NodeGroup, ...], dict[str, Place]]:
    """Reads the node groups and the placement of a :class:`embodied.schema.ClusterConfig`. Raises
    :class:`ConfigError`."""
    groups = parse_groups(cluster.node_groups or ())
    return groups, parse_placement(cluster.component_placement, [group.label for group in groups])


def parse_groups(groups: Sequence[Any]) -> tuple[NodeGroup, ...]:
    """Reads ``cluster.node_groups``.

    Args:
        groups: objects with the fields of :class:`embodied.schema.keys.sections.node_groups.NodeGroupConfig`.

    Raises:
        ConfigError: a label is reserved or stands twice, or numbers of nodes are not of the grammar.
    """
    found: list[NodeGroup] = []
    for group in groups:
        label = str(group.label).strip()
        if not label or label.lower() == "all" or label in RESERVED or "," in label:
            raise ConfigError(
                f"{GROUPS} has the label {label!r}, which has a meaning of its own: node is every node, all every "
                "device",
                "choose another label",
            )
        if label in (other.label for other in found):
            raise ConfigError(f"{GROUPS} has the label {label!r} twice", "give each group a label of its own")
        envs = tuple(_env(env, label) for env in group.env_configs or ())
        nodes = _nodes(group.node_ranks, f"{GROUPS} gives {label} node_ranks")
        found.append(NodeGroup(label, nodes, envs, group.ignore_hardware))
    return tuple(found)


def _nodes(value: Any, what: str) -> Ranks:
    if ":" in str(value):
        raise ConfigError(f"{what} {value!r}, and nodes have no process numbers", "leave out what follows the colon")
    return parse_ranks(value, what)


def _env(env: Any, label: str) -> NodeEnv:
    nodes = _nodes(env.node_ranks, f"{GROUPS} gives env_configs of {label} node_ranks")
    variables: dict[str, str] = {}
    for name, value in (pair for one in env.env_vars or () for pair in one.items()):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(
                f"{GROUPS} gives {label} the environment variable {name!r}", "write env_vars: [NAME: text]"
            )
        if name in variables:
            raise ConfigError(f"{GROUPS} gives {label} the environment variable {name} twice", "give it one value")
        variables[name] = str(value)
    return NodeEnv(nodes, env.python_interpreter_path, variables)
