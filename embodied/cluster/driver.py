"""The process that speaks with Ray: finds nodes, places an agent on each, hands on what they tell, notices lost ones.

    python -m embodied.cluster.driver FD      plan, then commands: standard input; events: file descriptor FD

Ray prints into this process's standard output and standard error, which the launcher keeps in a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from embodied.cluster import node_facts
from embodied.cluster.agent import Agent
from embodied.cluster.events import Ended, Event, HeadGone, Lost, Note, Placed, Refused, Tell, as_line, event_of
from embodied.cluster.keeper import answers
from embodied.cluster.nodes import (
    Node,
    Shape,
    check_clock,
    differences,
    fitting,
    in_order,
    not_ready,
    too_few,
    usual_shape,
    wanted_of,
    without,
)
from embodied.cluster.places import Places, places_on
from embodied.cluster.plan import Placing, Plan
from embodied.cluster.ranks import Order
from embodied.errors import ClusterError, EmbodiedError, refuse
from embodied.observe.terminal import streams
from embodied.parallel.placement import table

BACK_S = 10.0  # for a lost node to be back before the run goes on with fewer
ASKED_S = 0.5  # one call for events
BEAT_S = 0.1
LEAVE_S = 3.0


class Driver:
    """Starts a plan's ranks and watches them."""

    def __init__(self, plan: Plan, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._agents: list[Any] = []
        self._nodes: list[Node] = []
        self._left: set[int] = set()  # ranks that run
        self._heard: Counter[int] = Counter()  # lines of each node
        self._answered: dict[int, float] = {}  # when each node last did
        self._head = ""  # its address
        self._places: Places | None = None  # None: Ray chooses the nodes
        self._where = Placed([], [])

    # -- nodes -------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Raises :class:`ClusterError`: there is no cluster."""
        address = os.environ.get("RAY_ADDRESS", "auto") if self._plan.address == "auto" else self._plan.address
        try:
            if ":" in address and not answers(address, 5.0):
                raise ConnectionError(f"nobody answers at {address}")
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "this machine" if address == "auto" else address
            raise ClusterError(
                f"no Ray cluster was found at {where}: {str(error).splitlines()[0]}",
                "start one (ray start --head --port=6379; on the other nodes ray start --address=HEAD:6379), or set "
                "cluster.address to its head",
            ) from error

    def nodes(self) -> tuple[list[Node], str]:
        """Returns the nodes that are there, without those that were lost, and the resource that ranks take."""
        from ray._private.state import available_resources_per_node

        there, free = [node for node in ray.nodes() if node["Alive"]], available_resources_per_node()
        gpus = any(node["Resources"].get("GPU") for node in there)
        what = self._plan.resource if self._plan.resource != "auto" else "GPU" if gpus else "CPU"
        found = [
            Node(
                node["NodeID"], node["NodeName"], node["NodeManagerAddress"], int(node["Resources"].get(what, 0)),
                int(free.get(node["NodeID"], {}).get(what, 0)), int(node["Resources"].get("CPU", 0)) or None,
            )
            for node in there
        ]  # fmt: skip
        return without(found, self._plan.lost), what

    def _shape(self) -> tuple[Shape, str]:
        """Chooses how many nodes and ranks. Raises :class:`ClusterError`: the cluster can never have them."""
        if self._plan.placement is not None:
            return self._by_table(self._plan.placement)
        nodes, what = self.nodes()
        each = self._plan.each or (1 if what == "CPU" else None)
        shapes = self._shapes() or [usual_shape(nodes, self._plan.count, each)]
        until = time.monotonic() + (BACK_S if self._plan.shapes else 0.0)
        while fitting(shapes[:1], nodes) is None and time.monotonic() < until:
            time.sleep(BEAT_S * 5)
            nodes, what = self.nodes()
        shape = fitting(shapes, nodes)
        if shape is None:
            raise too_few(shapes[0], nodes, what)
        return shape, what

    def _shapes(self) -> list[Shape]:
        return [Shape(tuple(counts)) for counts in self._plan.shapes]

    def _by_table(self, placing: Placing) -> tuple[Shape, str]:
        """Chooses the nodes by the keys. Raises :class:`EmbodiedError`: the cluster has not what they place."""
        shapes = self._shapes()
        sizes = [shape.size for shape in shapes]
        until = time.monotonic() + (BACK_S if shapes else 0.0)
        while True:
            nodes, what = self.nodes()
            last = time.monotonic() >= until
            try:
                each = self._plan.each or (1 if what == "CPU" else None)
                self._places = places_on(nodes, placing, self._plan.count, each)
                shape = self._places.shape
                if not shapes or shape == shapes[0] or (last and shape.size in sizes):
                    return shape, what
                error: EmbodiedError = too_few(shapes[0], nodes, what, placed=True)
            except EmbodiedError as failed:
                error = failed
            if last:
                raise error
            time.sleep(BEAT_S * 5)

    # -- placing -----------------------------------------------------------------------------------------------------

    def place(self) -> None:
        """Places agents and starts the ranks. Raises :class:`ClusterError`: what keeps the cluster from it."""
        shape, what = self._shape()
        taken = shape if self._places is None else self._places.devices
        group = self._group(taken, what)
        self._nodes, bundles = self._placed(group)
        self._check_facts()
        self._start_agents(group, bundles, taken, what)
        self._check_clocks()
        self._where = Placed([node.shown for node in self._nodes], [*shape.counts])
        self._tell(self._where)
        self._start_ranks(shape)

    def _group(self, taken: Shape, what: str) -> PlacementGroup:
        """Waits for the resources of all nodes together."""
        not_lost = {"ray.io/node-id": f"!in({','.join(self._plan.lost)})"} if self._plan.lost else {}
        wanted = [not_lost] * taken.nodes if not_lost else None
        if self._places is not None:
            wanted = [{"ray.io/node-id": node.node_id} for node in self._places.ranks]
        group = placement_group(
            [{what: count} for count in taken.counts], strategy="STRICT_SPREAD",
            bundle_label_selector=wanted,
        )  # fmt: skip
        if not group.wait(min(LEAVE_S, self._plan.init_timeout_s)):
            self._tell(Note(f"waiting for {wanted_of(taken, what)}: others have them"))
            if not group.wait(max(0.0, self._plan.init_timeout_s - LEAVE_S)):
                raise not_ready(taken, self.nodes()[0], what, self._plan.init_timeout_s)
        return group

    def _placed(self, group: PlacementGroup) -> tuple[list[Node], list[int]]:
        """Returns the group's nodes in their order, and the bundle of each."""
        where = placement_group_table(group)["bundles_to_node_id"]
        bundle_of = {node_id: bundle for bundle, node_id in where.items()}
        nodes = in_order([node for node in self.nodes()[0] if node.node_id in bundle_of])
        return nodes, [bundle_of[node.node_id] for node in nodes]

    def _check_facts(self) -> None:
        plan, nonce = self._plan, self._plan.nonce
        ours = node_facts.facts(plan.folder, nonce)
        ray.cloudpickle.register_pickle_by_value(node_facts)
        asked = ray.remote(node_facts.facts)
        hosts = [] if self._places is None else self._places.hosts
        answers = [
            asked.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False))
            .remote(plan.folder, nonce, self._software(node).python or "") for node in (*self._nodes, *hosts)
        ]  # fmt: skip
        theirs = ray.get(answers)
        beside = {name: ours[name] for name in ("torch", "folder", "nonce")}  # simulators need none of these
        theirs = [*theirs[: len(self._nodes)], *({**facts, **beside} for facts in theirs[len(self._nodes) :])]
        refuse([
            error for node, facts in zip((*self._nodes, *hosts), theirs, strict=True)
            for error in differences(ours, facts, node, plan.folder, Path(plan.run))
        ])  # fmt: skip

    def _software(self, node: Node) -> table.NodeSoftware:
        return table.NodeSoftware() if self._places is None else self._places.table.software_of(node.name)

    def _start_agents(self, group: PlacementGroup, bundles: Sequence[int], taken: Shape, what: str) -> None:
        actor = ray.remote(Agent)
        self._agents = [
            actor.options(
                num_gpus=count if what == "GPU" else None, num_cpus=0 if what == "GPU" else count, max_concurrency=4,
                scheduling_strategy=_bundle(group, bundle),
            ).remote(node.address) for node, bundle, count in zip(self._nodes, bundles, taken.counts, strict=True)
        ]  # fmt: skip

    def _check_clocks(self) -> None:
        ray.get([agent.clock.remote() for agent in self._agents])  # they are there
        for node, agent in zip(self._nodes, self._agents, strict=True):
            before = time.time()
            check_clock(node, before, ray.get(agent.clock.remote()), time.time())

    def _start_ranks(self, shape: Shape) -> None:
        port = ray.get(self._agents[0].port.remote())
        self._head = ray.get_runtime_context().gcs_address
        described = table.nodes_as_text([table.Node(node.name, shape.most) for node in self._nodes])
        if self._places is not None:
            described = self._places.described
        software = [self._software(node) for node in self._nodes]
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"}  # agents have what Ray has set there
        orders = [
            Order(
                self._plan.arguments, "ray", sum(shape.counts[:place]), count, place, shape.size,
                self._nodes[0].address, port, self._plan.folder, str(Path(self._plan.run, "logs")), self._plan.grace_s,
                self._head, self._nodes[place].address, described, software[place].python or "",
                {**threads, **software[place].variables},
            )
            for place, count in enumerate(shape.counts)
        ]  # fmt: skip
        ray.get([agent.start.remote(asdict(order)) for agent, order in zip(self._agents, orders, strict=True)])
        self._left = set(range(shape.size))  # until now a signal ends the launcher itself

    # -- watching ----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Hands on what ranks tell until all have ended, or their nodes are lost."""
        calls = dict(self._ask(place) for place in range(len(self._agents)))
        self._answered = dict.fromkeys(calls.values(), time.monotonic())
        while self._left and calls:
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=ASKED_S)
            for call in ready:
                if self._take(call, place := calls.pop(call)):
                    calls |= [self._ask(place)]
            for place in [place for place in calls.values() if self._silent(place)]:
                self._lose(place, f"it has not answered for {self._plan.agent_timeout_s:g} s")
                calls = {call: other for call, other in calls.items() if other != place}

    def _ask(self, place: int) -> tuple[Any, int]:
        return self._agents[place].events.remote(self._heard[place], ASKED_S), place

    def _take(self, call: Any, place: int) -> bool:
        """Hands on an answer of a node's agent; returns whether to ask again."""
        try:
            lines = ray.get(call)
        except ray.exceptions.ActorUnavailableError:  # the network, or the node: whichever, for a while
            time.sleep(BEAT_S)
            return True
        except ray.exceptions.RayError:
            self._lose(place, "its agent or the keeper of its ranks has ended")
            return False
        self._answered[place] = time.monotonic()
        self._heard[place] += len(lines)
        self._hand_on(lines)
        return True

    def _silent(self, place: int) -> bool:
        return time.monotonic() - self._answered[place] > self._plan.agent_timeout_s + ASKED_S

    def _hand_on(self, lines: Sequence[str]) -> None:
        for line in lines:
            event = event_of(line)
            if isinstance(event, Ended):
                self._left.discard(event.rank)
            self._tell(event)

    def _lose(self, place: int, reason: str) -> None:
        ranks = {*self._where.ranks_of(place)}
        if not self._left & ranks:
            return
        self._left -= ranks
        if not answers(self._head):  # Ray's processes on the head's machine end with it, and ranks there are saving
            self._tell(HeadGone(self._head))
            self.send({"signal": signal.SIGTERM})
        self._tell(Lost(place, self._nodes[place].node_id, reason))

    def send(self, command: dict[str, Any]) -> bool:
        """Sends a command to all keepers; returns whether there are any."""
        for agent in self._agents if self._left else ():
            agent.send.remote(command)
        return bool(self._agents and self._left)


def _bundle(group: PlacementGroup, bundle: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)


def main() -> int:
    streams.for_log()
    out, told = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8"), threading.Lock()

    def tell(event: Event) -> None:
        with told:
            out.write(as_line(event))
            out.flush()

    driver = Driver(Plan(**json.loads(sys.stdin.readline())), tell)
    threading.Thread(target=_listen, args=(driver,), daemon=True, name="commands").start()
    try:
        driver.connect()
        driver.place()
        driver.watch()
    except EmbodiedError as error:
        for each in (error, *error.others):
            tell(Refused(each.message, each.remedy))
    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(LEAVE_S)  # without a head it waits long
    out.close()
    os._exit(0)


def _listen(driver: Driver) -> None:
    """Hands commands to the keepers. Ends this process where there are none yet, or the launcher has gone."""
    for line in sys.stdin:
        if not driver.send(json.loads(line)):
            break
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
