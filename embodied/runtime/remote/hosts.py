"""The remote pool: env slots on simulator hosts, as an :class:`embodied.runtime.ports.EnvPort`.

    Rollout ──▶ RemotePool ──▶ Peer (one a host) ══ Link ══ Host ──▶ Pool ──▶ workers
                    │
               rows of the rollout's slab: observations are received straight into them

A host is to this pool what a worker is to a :class:`embodied.runtime.pool.pool.Pool`:

| what happens                         | what is done                                                                 |
|--------------------------------------|------------------------------------------------------------------------------|
| a worker of a host fails             | its host replaces it; `Lost` and `Back` come from there                      |
| a connection breaks, or is silent    | the host is called again at once, and again; nothing is lost             |
| the host refuses: its process is gone| its slots are `Lost` without suspects, and another host is started           |
| silence of ``node_timeout_s``        | the same; the host ends itself after the same time                           |
| no host serves for ``node_timeout_s``| :meth:`RemotePool.recv` raises, with the names of the nodes                  |
"""

from __future__ import annotations

import os
import queue
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace

from embodied.errors import EmbodiedError
from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.runtime.channel import Command, Completion
from embodied.runtime.pool.placement import slots_of
from embodied.runtime.pool.process import PoolConfig
from embodied.runtime.pool.supervise import Supervisor
from embodied.runtime.ports import Event, Lost
from embodied.runtime.remote.frames import DamagedFrame, FrameKind, Rows
from embodied.runtime.remote.handshake import Opened
from embodied.runtime.remote.link import ALIVE_S
from embodied.runtime.remote.peer import Found, Peer
from embodied.runtime.remote.starter import HostJob, HostStarter
from embodied.runtime.slab import Slab
from embodied.types import WorkerFacts

SILENT_S = 3.0  # seconds without a sign of life after which a host is called again over a new connection
RETRY_S = 5.0  # seconds between two attempts to start a host that could not be started
END_S = 8.0  # seconds that hosts have to end in order
ASK_S = 10.0  # seconds that a host may take to say how much memory its workers have


@dataclass(frozen=True)
class HostsConfig:
    """Settings of the hosts of a rollout.

    Args:
        pool: of all slots together; each host gets its part of slots and workers. ``num_workers`` 0: as many as the
            cores of each host's node serve.
        hosts: how many there are.
        obs: names of the fields of an observation.
        node_timeout_s: seconds that a host may be silent.
        gpus: on which workers render; None = those that the host's process may use.
        forks: workers are forked.
    """

    pool: PoolConfig
    hosts: int
    obs: tuple[str, ...]
    node_timeout_s: float = 30.0
    gpus: tuple[int, ...] | None = None
    forks: bool = False


class RemotePool:
    """Env slots of simulator hosts. See the module's docstring for what happens when one fails.

    Args:
        starter: starts the hosts, at first and in place of those that are lost.
        say: given one paragraph for each worker or host that failed and is replaced.

    Raises (from the constructor and ``recv``):
        EmbodiedError: as a :class:`embodied.runtime.pool.pool.Pool` does, and if hosts cannot be started or reached.
    """

    def __init__(
        self, config: HostsConfig, slab: Slab, starter: HostStarter, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._config, self._slab, self._starter, self._say = config, slab, starter, say
        self.num_slots = config.pool.num_slots
        self._supervisor = Supervisor(config.pool.max_restarts, say, "simulator host")
        self._rows = Rows(slab, config.obs)
        self._peers: dict[int, Peer] = {}
        self._by_slot: dict[int, Peer] = {}
        self._found: queue.SimpleQueue[tuple[Peer, Found]] = queue.SimpleQueue()  # by threads that start or call hosts
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events: list[Event] = []  # that recv has not returned yet
        self._retry: dict[int, float] = {}  # host → when it is to be started again
        self._failed_start: Exception | None = None  # of a host that was to replace another
        self._restarts_before = 0  # of workers of hosts that are gone
        self._opened = False  # all slots were up once
        self._polled = self._reached_at = time.monotonic()
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._proof = f".seen-by-hosts-{secrets.token_hex(8)}"
        threading.Thread(target=self._show_life, daemon=True, name="hosts alive").start()
        try:
            for index in range(config.hosts):
                self._start(index, frozenset())
            self._await(lambda: self._num_up == self.num_slots)
        except BaseException:
            self.close()
            raise
        self._opened = True
        self._events.clear()

    # -- hosts -------------------------------------------------------------------------------------------------------

    def _start(self, index: int, avoid: AbstractSet[str]) -> None:
        slots = slots_of(index, self.num_slots, self._config.hosts, self._config.pool.batch)
        self._retry.pop(index, None)
        peer = Peer(index, slots, self._job(index, len(slots)), self._rows, self._say, self._tell)
        self._peers[index] = peer
        self._by_slot |= dict.fromkeys(slots, peer)
        peer.start(self._starter, avoid)

    def _job(self, index: int, slots: int) -> HostJob:
        config, pool = self._config, self._config.pool
        logs = pool.log_dir.absolute() / f"host-{index:02d}"
        logs.mkdir(parents=True, exist_ok=True)
        (logs / self._proof).touch()
        workers = min(slots, -(-pool.num_workers // config.hosts))
        own = replace(pool, num_slots=slots, num_workers=workers, log_dir=logs, server=None, rank=0, ranks=1)
        path = tuple(os.path.abspath(folder) for folder in sys.path)
        return HostJob(
            own, self._slab.fields, config.obs, config.gpus, config.forks, config.node_timeout_s, self._proof, path
        )

    def _tell(self, peer: Peer, found: Found) -> None:
        """Called by threads: something has become of the attempt to start or reach a host."""
        self._found.put((peer, found))
        with self._lock:
            if not self._closed.is_set():
                os.eventfd_write(self._bell, 1)

    def _show_life(self) -> None:
        while not self._closed.wait(ALIVE_S):
            for peer in [*self._peers.values()]:
                peer.link.alive()

    def _hear_of(self, peer: Peer, found: Found) -> None:
        if self._peers.get(peer.index) is not peer:  # it was given up meanwhile
            if isinstance(found, Opened):
                found.socket.close()
        elif isinstance(found, Opened):
            try:
                peer.attach(found)
            except DamagedFrame as error:
                self._lose(peer, peer.gone(f"does not know what it was sent: {error}"))
        else:
            self._lose(peer, found)

    def _lose(self, peer: Peer, error: Exception) -> None:
        """Give a host up, and start another in its place.

        Raises:
            Exception: ``error``, if the run does not go on without the host.
        """
        self._events += peer.lose_all(error)
        self._restarts_before += peer.restarts
        del self._peers[peer.index]
        peer.drop()
        if not self._opened:
            raise error
        if peer.reached:
            log = self._config.pool.log_dir / f"host-{peer.index:02d}"
            self._supervisor.failed(peer.index, error, peer.served, log)
            self._start(peer.index, frozenset({peer.started.node} if peer.started is not None else ()))
            return
        if self._failed_start is None:
            self._say(f"{getattr(error, 'message', error)}\n  it is tried again every {RETRY_S:g} s")
        self._failed_start = error
        self._retry[peer.index] = time.monotonic() + RETRY_S

    def _start_again(self, now: float) -> None:
        """Start hosts that could not be started before.

        Raises:
            Exception: why they cannot be, if no host has served for too long.
        """
        if any(peer.link.attached for peer in self._peers.values()):
            self._reached_at = now
        elif self._failed_start is not None and now - self._reached_at > self._config.node_timeout_s:
            raise self._failed_start
        for index in [index for index, due in self._retry.items() if due <= now]:
            self._start(index, frozenset())

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def up(self) -> list[int]:
        """Slots that take commands, as far as :meth:`recv` has said."""
        return sorted(slot for peer in self._peers.values() for slot in peer.up)

    @property
    def moving(self) -> AbstractSet[int]:
        """Slots with a command that will be answered whatever is sent or not."""
        return {slot for peer in self._peers.values() for slot in peer.moving}

    def group_of(self, slot: int) -> int:
        """A number of the slot's worker and its host if the worker steps its slots together, else 0."""
        peer = self._by_slot[slot]
        return peer.index * self.num_slots + peer.group_of(slot) if self._config.pool.batch else 0

    def simulators_of(self, slot: int) -> int:
        """The first slot of the slot's worker if those share simulators, else the slot."""
        return self._by_slot[slot].simulators_of(slot)

    @property
    def restarts(self) -> int:
        """Workers and hosts that have failed and were replaced."""
        return self._supervisor.total + self._restarts_before + sum(peer.restarts for peer in self._peers.values())

    @property
    def facts(self) -> list[WorkerFacts]:
        """Facts that the serving workers found at their start."""
        return [facts for _, peer in sorted(self._peers.items()) for facts in peer.facts]

    @property
    def memory(self) -> int:
        """Bytes of the workers on all hosts; those of a host that does not say it in time are left out."""
        asked = self._ask(FrameKind.MEMORY)
        self._await(lambda: all(peer.memory is not None or self._is_gone(peer) for peer in asked), ASK_S)
        return sum(peer.memory or 0 for peer in asked)

    @property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Bytes that were sent to each host that serves, and received from it."""
        return {index: (peer.link.bytes_sent, peer.link.bytes_received) for index, peer in self._peers.items()}

    @property
    def hosts(self) -> list[Peer]:
        """The hosts that there are, started or starting."""
        return [peer for _, peer in sorted(self._peers.items())]

    def blame(self, lost: Lost, episode_id: int, count: int) -> None:
        """Report an episode that has been lost ``count`` times; raises ``lost.error`` if that is too often."""
        self._supervisor.episode_failed(lost.error, episode_id, count, lost.suspects)

    def forgive(self, slot: int) -> None:
        """Report that the episode that ended the slot's workers is given up."""
        peer = self._by_slot[slot]
        self._supervisor.finished_an_episode(peer.index)
        peer.forgive(slot)

    # -- serving -----------------------------------------------------------------------------------------------------

    def send(self, command: Command, video: Video | None = None, draws: Draws | None = None) -> None:
        """Give a slot its next command; the next :meth:`flush` or :meth:`recv` sends it."""
        self._by_slot[command.slot].give(command, video, draws)

    def flush(self) -> None:
        """Send what slots were given."""
        for peer in self._peers.values():
            peer.link.flush()

    def recv(self, min_ready: int, timeout: float | None = None) -> list[Event]:
        """Wait until ``min_ready`` slots have completed, a slot was lost or came back, ``timeout`` seconds have passed,
        or nothing is left to wait for. Returns all that has happened."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            self._poll(0.0 if self._enough(min_ready, until) else until - time.monotonic())
            if self._enough(min_ready, until):
                events, self._events = self._events, []
                return events

    def _enough(self, min_ready: int, until: float) -> bool:
        events = self._events
        if len(events) >= min_ready or time.monotonic() >= until:
            return True
        if not all(isinstance(event, Completion) for event in events):
            return True
        return not any(peer.pending for peer in self._peers.values()) and self._num_up == self.num_slots

    @property
    def _num_up(self) -> int:
        return sum(len(peer.up) for peer in self._peers.values())

    def _poll(self, wait: float) -> None:
        """Wait for something to happen, a second at most, and take in what has."""
        waiting, by_fd = select.poll(), dict[int, Peer]()
        waiting.register(self._bell, select.POLLIN)
        for peer in self._peers.values():
            flushed = peer.link.flush()
            if peer.link.attached:
                by_fd[peer.link.fileno()] = peer
                waiting.register(peer.link, select.POLLIN if flushed else select.POLLIN | select.POLLOUT)
        ready = [fd for fd, _ in waiting.poll(1000 * max(0.0, min(wait, ALIVE_S)))]
        now = time.monotonic()
        for peer in [by_fd[fd] for fd in ready if fd in by_fd]:
            self._read(peer, now)
        if self._bell in ready:
            self._take_found()
        self._call_silent(now)
        self._start_again(now)

    def _read(self, peer: Peer, now: float) -> None:
        try:
            for frame in peer.link.read():
                for event in peer.hear(frame, now):
                    if isinstance(event, Completion) and event.ended:
                        self._supervisor.finished_an_episode(peer.index)
                    self._events.append(event)
        except DamagedFrame as error:
            self._lose(peer, peer.gone(f"sends what makes no sense: {error}"))
        except EmbodiedError as error:
            if peer.served:
                raise
            self._lose(peer, error)

    def _take_found(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        with suppress(queue.Empty):
            while True:
                self._hear_of(*self._found.get_nowait())

    def _call_silent(self, now: float) -> None:
        """Call hosts again whose connection is broken or silent. While nobody listened, as in an update, no host was
        silent."""
        listened, self._polled = now - self._polled < SILENT_S, now
        for peer in [*self._peers.values()]:
            link = peer.link
            if not listened:
                link.heard = now
            if not peer.dialing and (link.broken is not None or now - link.heard > SILENT_S):
                peer.dial(link.heard + self._config.node_timeout_s)

    # -- resting and ending ------------------------------------------------------------------------------------------

    def _ask(self, kind: int) -> list[Peer]:
        asked = [peer for peer in self._peers.values() if peer.reached]
        for peer in asked:
            peer.ask(kind)
        return asked

    def _is_gone(self, peer: Peer) -> bool:
        return self._peers.get(peer.index) is not peer

    def _await(self, condition: Callable[[], bool], seconds: float = float("inf")) -> None:
        """Takes in what happens until a condition holds, for some seconds at most."""
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            self._poll(until - time.monotonic())

    def rest(self) -> None:
        """End the workers until :meth:`wake`, so that all that they hold is free. No command may be in flight."""
        asked = self._ask(FrameKind.REST)
        self._await(lambda: all(peer.rested or self._is_gone(peer) for peer in asked))
        self._events.clear()

    def wake(self) -> None:
        """Start the workers, unless they have been."""
        for peer in [peer for peer in self._peers.values() if peer.rested]:
            peer.ask(FrameKind.WAKE)
            peer.rested = False
        self._await(lambda: self._num_up == self.num_slots)
        self._events.clear()

    def close(self) -> None:
        """End the hosts and wait for them. Those that do not end within 8 s are killed."""
        with self._lock:
            self._closed.set()
        peers = [*self._peers.values()]
        for peer in peers:
            if peer.link.attached:
                peer.link.put(FrameKind.BYE)
                peer.link.flush()
        until = time.monotonic() + END_S
        while time.monotonic() < until and any(peer.link.attached and not peer.link.broken for peer in peers):
            for peer in peers:
                peer.link.read()
            time.sleep(0.01)
        for peer in peers:
            peer.drop()
        for index in range(self._config.hosts):
            (self._config.pool.log_dir / f"host-{index:02d}" / self._proof).unlink(missing_ok=True)
        self._peers, self._by_slot = {}, {}
        os.close(self._bell)
