"""Starts simulator hosts on other nodes: Ray places an actor that starts the process of the host, rows go by TCP.

    rank: RayStarter ── actor SimHost on a node ──▶ child process: embodied.runtime.remote.serve
                 ◀──────────── rows, from the host itself ─────────────┘

The node is chosen here, not by Ray: Ray takes a dead node for alive for seconds, and would place a host there.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from embodied.errors import ClusterError, EmbodiedError, WorkerDiedError
from embodied.parallel.placement.table import NodeSoftware, by_name
from embodied.runtime.remote.folders import temporary_folder
from embodied.runtime.remote.local import LocalStarter
from embodied.runtime.remote.starter import Address, HostJob, StartedHost

READY_S = 10.0  # for an actor to get its CPUs
END_S = 3.0  # for hosts that were stopped to give their CPUs back
TAIL_S = 0.5  # one that is there answers in milliseconds, and who is gone is said within a second


class Place(NamedTuple):
    """A node as it is now.

    Args:
        free: CPUs that nobody has.
        ranks: it has ranks of this run.
    """

    node_id: str
    name: str
    address: str
    free: float
    ranks: bool = False


def choose(places: list[Place], avoid: AbstractSet[str], hosts: Counter[str], wanted: str = "") -> Place | None:
    """Returns the node for the next host: none to avoid if possible, one without ranks if possible, one with few hosts,
    one with many free CPUs; None = no node has a free CPU.

    Args:
        hosts: of this process on each node.
        wanted: node that the placement gives it. It is taken if it is there and not to be avoided, also without a free
            CPU: other hosts of the run may have them.
    """
    for place in places:
        if place.name == wanted and wanted not in avoid:
            return place
    having = [place for place in places if place.free >= 1]

    def key(place: Place) -> tuple[Any, ...]:
        return place.name in avoid, place.ranks, hosts[place.name], -place.free, by_name(place.name)

    return min(having, key=key, default=None)


def cpus_of(place: Place, slots: int, wanted: str) -> int:
    """Returns the CPUs that a host of some slots takes from Ray: none on the node that the placement gives it. Hosts of
    several ranks start there at once, and one that asks for what another has just taken would wait for ever."""
    return 0 if place.name == wanted else min(slots, int(place.free))


class SimHost:
    """The actor beside a host.

    Args:
        address: of its node.
        start_s: seconds in which the host must listen.
        software: of the host; None = that of this process.
    """

    def __init__(self, address: str, start_s: float, software: NodeSoftware | None = None) -> None:
        self._starter = LocalStarter(start_s, address, software)
        self._host: StartedHost | None = None
        self._own = ExitStack()  # a folder for its logs

    def start(self, index: int, job: bytes, key: bytes) -> tuple[str, int]:
        """Starts the host; returns the address at which it listens.

        Args:
            job: pickled :class:`HostJob`.
        """
        host_job: HostJob = pickle.loads(job)
        if not host_job.pool.log_dir.is_dir():
            folder = self._own.enter_context(temporary_folder())
            host_job = replace(host_job, pool=replace(host_job.pool, log_dir=folder))
        self._host = self._starter.start(index, host_job, key, frozenset())
        return self._host.address.host, self._host.address.port

    def tail(self) -> str:
        return "" if self._host is None else self._host.tail()

    def close(self) -> None:
        """Ends the host and removes its folder."""
        if self._host is not None:
            self._host.stop()
        self._own.close()


class RayHost:
    """A host on another node, as the process that has started it sees it.

    Args:
        ends: threads that end hosts; one is put there.
    """

    def __init__(self, node: str, address: Address, actor: Any, ends: deque[threading.Thread]) -> None:
        self.node, self.address, self._actor, self._ends = node, address, actor, ends

    def tail(self) -> str:
        """Returns the end of its log."""
        import ray

        with suppress(ray.exceptions.RayError):
            return str(ray.get(self._actor.tail.remote(), timeout=TAIL_S))
        return f"(node {self.node} does not answer)"

    def stop(self) -> None:
        """Ends the host with its actor, in a thread: a node that is gone does not answer."""
        end = threading.Thread(target=self._end, daemon=True, name=f"end of a host on {self.node}")
        end.start()
        self._ends.append(end)

    def _end(self) -> None:
        import ray

        with suppress(ray.exceptions.RayError, ValueError):
            ray.wait([self._actor.close.remote()], timeout=TAIL_S)
        with suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor)


class RayStarter:
    """Starts hosts on the nodes of a Ray cluster (:class:`embodied.runtime.remote.starter.HostStarter`).

    Args:
        address: of the cluster's head.
        own: address of this node.
        start_s: seconds in which a host must listen.
        wanted: node of each host, as the placement has it; () = any.
        software: of hosts on some nodes, by name.
    """

    def __init__(
        self, address: str, own: str, start_s: float = 60.0, wanted: Sequence[str] = (),
        software: Mapping[str, NodeSoftware] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._address, self._own, self._start_s = address, own, start_s
        self._wanted, self._software = wanted, software
        self._hosts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ends: deque[threading.Thread] = deque()

    def finish(self) -> None:
        """Waits until hosts that were stopped have given back their CPUs, :data:`END_S` at most."""
        until = time.monotonic() + END_S
        for end in [*self._ends]:
            end.join(max(0.0, until - time.monotonic()))
            if not end.is_alive():
                with suppress(ValueError):  # another thread has waited, too
                    self._ends.remove(end)

    def start(self, index: int, job: HostJob, key: bytes, avoid: AbstractSet[str]) -> StartedHost:
        """Starts a host. See :class:`embodied.runtime.remote.starter.HostStarter`."""
        self.finish()  # the host may replace one of these
        import ray  # by the thread of a host: imported by the main thread, Ray takes its handler of SIGTERM

        with self._lock:
            ray.init(address=self._address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        place, actor = self._placed(index, job.pool.num_slots, avoid)
        try:
            listens = ray.get(actor.start.remote(index, pickle.dumps(job), key), timeout=2 * self._start_s)
        except ray.exceptions.RayError as error:
            ray.kill(actor)
            if isinstance(cause := getattr(error, "cause", None), EmbodiedError):
                detail = getattr(cause, "detail", "")
                raise WorkerDiedError(f"on node {place.name}: {cause.message}", cause.remedy, detail) from error
            raise ClusterError(
                f"simulator host {index} did not start on node {place.name}: {str(error).splitlines()[-1]}",
                "see whether the node is up, and has free CPUs (ray status)",
            ) from error
        return RayHost(place.name, Address(*listens), actor, self._ends)

    def _placed(self, index: int, num_slots: int, avoid: AbstractSet[str]) -> tuple[Place, Any]:
        """Makes the actor of a host. Other ranks choose at the same time from the same free CPUs, so a node that lets
        an actor wait is full by now, and another is chosen.

        Raises:
            ClusterError: no node has a free CPU.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        until = time.monotonic() + self._start_s
        while True:
            with self._lock:
                wanted = self._wanted[index] if self._wanted else ""
                place = choose(self._places(), avoid, self._hosts, wanted)
                if place is None:
                    raise _no_room(index)
                self._hosts[place.name] += 1
            actor = ray.remote(SimHost).options(
                num_cpus=cpus_of(place, num_slots, wanted),
                scheduling_strategy=NodeAffinitySchedulingStrategy(place.node_id, soft=False),
            ).remote(place.address, self._start_s, self._software.get(place.name))  # fmt: skip
            if ray.wait([actor.__ray_ready__.remote()], timeout=READY_S)[0] or time.monotonic() > until:
                return place, actor
            ray.kill(actor)
            self._hosts[place.name] -= 1

    def _places(self) -> list[Place]:
        import ray
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        return [
            Place(
                node["NodeID"], node["NodeName"], node["NodeManagerAddress"],
                free.get(node["NodeID"], {}).get("CPU", 0.0), node["NodeManagerAddress"] == self._own,
            )
            for node in ray.nodes() if node["Alive"]
        ]  # fmt: skip


def _no_room(index: int) -> ClusterError:
    return ClusterError(
        f"simulator host {index} finds no node with a free CPU",
        "add a node (ray start --address=HEAD:6379), or lower env.train.total_num_envs: a host takes a CPU for each of "
        "its env slots, as far as its node has them",
    )
