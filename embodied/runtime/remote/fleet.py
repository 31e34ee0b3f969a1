"""The simulator hosts of a rollout: starts them, calls those that are silent, replaces those that are lost.

A host is to a rollout what a worker is to its launcher:

| what happens                         | what is done                                                                 |
|--------------------------------------|------------------------------------------------------------------------------|
| a worker of a host fails             | its host replaces it; `Lost` and `Back` come from there                      |
| a connection breaks, or is silent    | the host is called again at once, and again; nothing is lost             |
| the host refuses: its process is gone| its slots are `Lost` without suspects, and another host is started           |
| silence of ``node_timeout_s``        | the same; the host ends itself after the same time                           |
| no host serves for ``node_timeout_s``| :meth:`Fleet.poll` raises, with the names of the nodes                  |
"""

from __future__ import annotations

import os
import queue
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace

from embodied.errors import EmbodiedError
from embodied.runtime.channel import Completion
from embodied.runtime.pool.placement import Gpu, slots_by_share, slots_of
from embodied.runtime.pool.process import PoolConfig
from embodied.runtime.pool.supervise import Supervisor
from embodied.runtime.ports import Event
from embodied.runtime.remote.peer import Found, Peer
from embodied.runtime.remote.starter import HostJob, HostStarter
from embodied.runtime.remote.wire.frames import DamagedFrame, FrameKind, Rows
from embodied.runtime.remote.wire.handshake import Opened
from embodied.runtime.remote.wire.link import ALIVE_S
from embodied.runtime.slab import Slab

SILENT_S = 3.0  # seconds without a sign of life after which a host is called again over a new connection
RETRY_S = 5.0  # seconds between two attempts to start a host that could not be started
END_S = 8.0  # seconds that hosts have to end in order


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
        elsewhere: each host has a machine of its own. Else they share the cores of one.
        shares: of the slots, in proportion, one a host; (): equal ones.
    """

    pool: PoolConfig
    hosts: int
    obs: tuple[str, ...]
    node_timeout_s: float = 30.0
    gpus: tuple[Gpu, ...] | None = None
    forks: bool = False
    elsewhere: bool = False
    shares: tuple[int, ...] = ()


class Fleet:
    """The hosts of one rollout. See the module's docstring for what happens when one fails.

    ``peers`` are those that there are, by index; ``by_slot`` has the last one that had the slot; ``events`` is what has
    happened since somebody took it.

    Raises (from the constructor, :meth:`poll` and :meth:`await_until`):
        EmbodiedError: a host that the run does not go on without.
    """

    def __init__(self, config: HostsConfig, slab: Slab, starter: HostStarter, say: Callable[[str], None]) -> None:
        self._config, self._slab, self._starter, self._say = config, slab, starter, say
        self._num_slots = config.pool.num_slots
        self.supervisor = Supervisor(config.pool.max_restarts, say, "simulator host")
        self._rows = Rows(slab, config.obs)
        self.peers: dict[int, Peer] = {}
        self.by_slot: dict[int, Peer] = {}
        self._found: queue.SimpleQueue[tuple[Peer, Found]] = queue.SimpleQueue()  # by threads that start or call hosts
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.events: list[Event] = []  # that recv has not returned yet
        self._retry: dict[int, float] = {}  # host → when it is to be started again
        self._failed_start: Exception | None = None  # of a host that was to replace another
        self.restarts_before = 0  # of workers of hosts that are gone
        self._opened = False  # all slots were up once
        self._polled = self._reached_at = time.monotonic()
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._proof = f".seen-by-hosts-{secrets.token_hex(8)}"
        threading.Thread(target=self._show_life, daemon=True, name="hosts alive").start()
        try:
            for index in range(config.hosts):
                self._start(index, frozenset())
            self.await_until(lambda: self.num_up == self._num_slots)
        except BaseException:
            self.close()
            raise
        self._opened = True
        self.events.clear()

    # -- starting and losing ---------------------------------------------------------------------------------------

    def _start(self, index: int, avoid: AbstractSet[str]) -> None:
        count, batch, shares = self._num_slots, self._config.pool.batch, self._config.shares
        slots = (
            slots_by_share(index, count, shares, batch) if shares else slots_of(index, count, self._config.hosts, batch)
        )
        if not slots:
            return
        self._retry.pop(index, None)
        peer = Peer(index, slots, self._job(index, len(slots)), self._rows, self._say, self._tell)
        self.peers[index] = peer
        self.by_slot |= dict.fromkeys(slots, peer)
        peer.start(self._starter, avoid)

    def _job(self, index: int, slots: int) -> HostJob:
        config, pool = self._config, self._config.pool
        logs = pool.log_dir.absolute() / f"host-{index:02d}"
        logs.mkdir(parents=True, exist_ok=True)
        (logs / self._proof).touch()
        workers = min(slots, -(-pool.num_workers // config.hosts))
        own = replace(pool, num_slots=slots, num_workers=workers, log_dir=logs, server=None)
        if not config.elsewhere:
            own = replace(own, rank=pool.rank * config.hosts + index, ranks=pool.ranks * config.hosts)
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
            for peer in [*self.peers.values()]:
                peer.link.alive()

    def _hear_of(self, peer: Peer, found: Found) -> None:
        if self.peers.get(peer.index) is not peer:  # it was given up meanwhile
            if isinstance(found, Opened):
                found.socket.close()
        elif isinstance(found, Opened):
            try:
                peer.attach(found)
                self._failed_start = None
            except DamagedFrame as error:
                self._lose(peer, peer.gone(f"does not know what it was sent: {error}"))
        else:
            self._lose(peer, found)

    def _lose(self, peer: Peer, error: Exception) -> None:
        """Give a host up, and start another in its place.

        Raises:
            Exception: ``error``, if the run does not go on without the host.
        """
        self.events += peer.lose_all(error)
        self.restarts_before += peer.restarts
        del self.peers[peer.index]
        peer.drop()
        if not self._opened:
            raise error
        if peer.reached:
            log = self._config.pool.log_dir / f"host-{peer.index:02d}"
            self.supervisor.failed(peer.index, error, peer.served, log)
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
        if any(peer.link.attached for peer in self.peers.values()):
            self._reached_at = now
        elif self._failed_start is not None and now - self._reached_at > self._config.node_timeout_s:
            raise self._failed_start
        for index in [index for index, due in self._retry.items() if due <= now]:
            self._start(index, frozenset())

    # -- listening ---------------------------------------------------------------------------------------------------

    @property
    def num_up(self) -> int:
        return sum(len(peer.up) for peer in self.peers.values())

    def poll(self, wait: float) -> None:
        """Wait for something to happen, a second at most, and take in what has."""
        waiting, by_fd = select.poll(), dict[int, Peer]()
        waiting.register(self._bell, select.POLLIN)
        for peer in self.peers.values():
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
                        self.supervisor.finished_an_episode(peer.index)
                    self.events.append(event)
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
        if not listened:
            self._reached_at = now
        for peer in [*self.peers.values()]:
            link = peer.link
            if not listened:
                link.heard = now
            if not peer.dialing and (link.broken is not None or now - link.heard > SILENT_S):
                peer.dial(link.heard + self._config.node_timeout_s)

    def ask(self, kind: int) -> list[Peer]:
        asked = [peer for peer in self.peers.values() if peer.reached]
        for peer in asked:
            peer.ask(kind)
        return asked

    def is_gone(self, peer: Peer) -> bool:
        return self.peers.get(peer.index) is not peer

    def await_until(self, condition: Callable[[], bool], seconds: float = float("inf")) -> None:
        """Takes in what happens until a condition holds, for some seconds at most."""
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            self.poll(until - time.monotonic())

    def close(self) -> None:
        """End the hosts and wait for them. Those that do not end within 8 s are killed."""
        with self._lock:
            self._closed.set()
        peers = [*self.peers.values()]
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
        self._starter.finish()
        for index in range(self._config.hosts):
            (self._config.pool.log_dir / f"host-{index:02d}" / self._proof).unlink(missing_ok=True)
        self.peers, self.by_slot = {}, {}
        os.close(self._bell)
