"""Nodes of a cluster: which of them a run takes, and whether they can take part. Knows no Ray.

Ranks stand on the nodes in the order of their names, so the same cluster gives the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.errors import ClusterError
from embodied.parallel.placement.table import by_name

CLOCKS_S = 2.0
"""Most by which clocks may differ. Logs and time lines of nodes are read side by side."""


@dataclass(frozen=True)
class Node:
    """A node as Ray knows it.

    Args:
        name: as the user calls it; its address if it has no other.
        total: of the resource that ranks take, GPUs or CPUs.
        free: of these, not taken by others.
        cores: of its CPUs; None: not known.
    """

    node_id: str
    name: str
    address: str
    total: int
    free: int
    cores: int | None = None

    @property
    def shown(self) -> str:
        return self.name if self.name == self.address else f"{self.name} ({self.address})"


@dataclass(frozen=True)
class Shape:
    """How many ranks are on each node. Only a placement makes different numbers."""

    counts: tuple[int, ...]

    @classmethod
    def of(cls, nodes: int, each: int) -> Shape:
        return cls((each,) * nodes)

    @property
    def nodes(self) -> int:
        return len(self.counts)

    @property
    def most(self) -> int:
        """Ranks on the node that has the most."""
        return max(self.counts)

    @property
    def size(self) -> int:
        return sum(self.counts)


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Sorts nodes by name, as the table of places does."""
    return sorted(nodes, key=lambda node: (by_name(node.name), node.address))


def usual_shape(nodes: Sequence[Node], count: int | None, each: int | None) -> Shape:
    """Returns the shape of a run: all nodes that have the resource, with a rank for each GPU of the least of them.

    Args:
        count: of nodes, if the user has said it.
        each: ranks on each, if the user has said it or they take CPUs.

    >>> nodes = [Node("", "a", "a", 8, 8), Node("", "b", "b", 4, 4), Node("", "c", "c", 0, 0)]
    >>> usual_shape(nodes, None, None), usual_shape(nodes, 1, None), usual_shape(nodes, None, 6)
    (Shape(counts=(4, 4)), Shape(counts=(8,)), Shape(counts=(6,)))
    """
    having = [node for node in nodes if node.total >= (each or 1)]
    chosen = sorted((node.total for node in having), reverse=True)[:count]
    return Shape.of(count or max(1, len(having)), each or min(chosen, default=1))


def fitting(shapes: Sequence[Shape], nodes: Sequence[Node]) -> Shape | None:
    """Returns the first shape for which there are enough nodes; None if there is none."""
    return next((s for s in shapes if sum(node.total >= s.most for node in nodes) >= s.nodes), None)


def shapes_after_loss(shape: Shape, divides: Callable[[int], bool]) -> list[Shape]:
    """Returns shapes in which a run may go on: the same, then as many ranks on fewer nodes, then fewer ranks. After
    different numbers on the nodes, which a placement gives again, those are every smaller number that divides.

    Args:
        divides: returns whether a number of ranks can share the run's slots and groups.

    >>> [after.counts for after in shapes_after_loss(Shape.of(3, 2), lambda size: size != 4)]
    [(2, 2, 2), (3, 3), (6,), (2,)]
    >>> [after.counts for after in shapes_after_loss(Shape((2, 1, 2)), lambda size: size != 3)]
    [(2, 1, 2), (5,), (4,), (2,), (1,)]
    """
    fewer = range(shape.nodes - 1, 0, -1)
    packed = [Shape.of(nodes, shape.size // nodes) for nodes in fewer if shape.size % nodes == 0]
    if len({*shape.counts}) > 1:
        return [shape, *packed, *(Shape((size,)) for size in range(shape.size - 1, 0, -1) if divides(size))]
    return [shape, *packed, *(Shape.of(nodes, shape.most) for nodes in fewer if divides(nodes * shape.most))]


def too_few(shape: Shape, nodes: Sequence[Node], what: str, placed: bool = False) -> ClusterError:
    """Returns the error for a shape that the cluster can never have.

    Args:
        placed: a placement gives the shape.
    """
    most = max((node.total for node in nodes), default=0)
    fits = sum(node.total >= shape.most for node in nodes)
    return ClusterError(
        f"the run wants {wanted_of(shape, what)}, and {_count(fits)} of the cluster has as many: {_table(nodes, what)}",
        "give other devices to actor and rollout in cluster.component_placement, or add nodes that have it" if placed
        else f"set cluster.num_nodes to {fits} or less" if fits
        else f"set cluster.num_gpus_per_node to {most} or less" if most
        else "add a node that has it (ray start --address=HEAD:6379)",
    )  # fmt: skip


def not_ready(shape: Shape, nodes: Sequence[Node], what: str, waited_s: float) -> ClusterError:
    """Returns the error for a shape whose resources others have."""
    return ClusterError(
        f"the run waited {waited_s:g} s for {wanted_of(shape, what)}: {_table(nodes, what)}",
        "end what has the others (ray status shows it), ask for less (cluster.num_nodes, cluster.num_gpus_per_node), "
        "or raise cluster.init_timeout_s",
    )


def wanted_of(shape: Shape, what: str) -> str:
    """Formats what the ranks of a shape take.

    >>> wanted_of(Shape.of(2, 4), "GPU"), wanted_of(Shape((2, 1)), "CPU"), wanted_of(Shape.of(1, 4), "GPU")
    ('4 GPU on each of 2 nodes', '2 + 1 CPU on 2 nodes', '4 GPU')
    """
    if len({*shape.counts}) > 1:
        return f"{' + '.join(map(str, shape.counts))} {what} on {shape.nodes} nodes"
    return f"{shape.most} {what} on each of {shape.nodes} nodes" if shape.nodes > 1 else f"{shape.most} {what}"


def _count(nodes: int) -> str:
    return {0: "no node", 1: "one node"}.get(nodes, f"{nodes} nodes")


def _table(nodes: Sequence[Node], what: str) -> str:
    rows = (f"{node.shown} {node.free} of {node.total} {what} free" for node in in_order(nodes))
    return "; ".join(rows) or "it has no nodes"


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], node: Node, folder: str, run: Path
) -> Iterator[ClusterError]:
    """Yields what keeps a node from taking part, by its facts and those of the launcher's machine
    (:func:`embodied.cluster.node_facts.facts`).

    Args:
        folder: that the command was started in.
        run: folder of the run.
    """
    if not theirs["interpreter"]:
        yield ClusterError(
            f"node {node.shown} does not have the interpreter {theirs['executable']}",
            "install it there, or change python_interpreter_path in cluster.node_groups",
        )
        return
    if not theirs["project"]:
        yield ClusterError(
            f"node {node.shown} does not have this package in the Python with which Ray was started there",
            "install the same version there, and start Ray with that Python",
        )
    for name in ("project", "Python", "torch"):
        if theirs["project"] and theirs[name] != ours[name]:
            what = "embodied" if name == "project" else name
            yield ClusterError(
                f"node {node.shown} has {what} {theirs[name] or '(none)'}, and the launcher's machine {ours[name]}",
                f"install the same {what} on all nodes, and start Ray there with that Python",
            )
    if not theirs["folder"]:
        yield ClusterError(
            f"node {node.shown} does not have the folder {folder}, in which the command was started",
            "start it in a folder that all nodes share",
        )
    elif theirs["nonce"] != ours["nonce"]:
        yield ClusterError(
            f"node {node.shown} cannot see the run's folder {run}: what the launcher wrote there is not there",
            "set runner.output_dir to a folder that all nodes share",
        )


def check_clock(node: Node, before: float, theirs: float, after: float) -> None:
    """Refuses a clock that differs, whenever between ``before`` and ``after`` of the launcher's it was read, seconds.

    Raises:
        ClusterError: by more than two seconds.
    """
    apart = max(before - theirs, theirs - after)
    if apart > CLOCKS_S:
        raise ClusterError(
            f"the clock of node {node.shown} is {apart:.1f} s {'behind' if theirs < before else 'ahead of'} "
            "that of the launcher's machine",
            "set the clocks by NTP (timedatectl set-ntp true)",
        )


def without(nodes: Sequence[Node], lost: Collection[str]) -> list[Node]:
    """Returns the nodes in their order, without those that were lost."""
    return in_order([node for node in nodes if node.node_id not in lost])
