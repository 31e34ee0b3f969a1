"""Simulator hosts for tests: in a thread of the test, or behind a relay that cuts and damages."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from embodied.runtime.remote.host import Host
from embodied.runtime.remote.local import LocalHost, LocalStarter
from embodied.runtime.remote.starter import Address, HostJob, StartedHost


class ThreadHost:
    """A host in a thread: it starts in no time, and its workers are processes as usual."""

    node = "a thread"

    def __init__(self, job: HostJob, key: bytes) -> None:
        self.host = Host(job, key, Address("127.0.0.1", 0))
        self.address = self.host.address
        self._thread = threading.Thread(target=self.host.serve, daemon=True)
        self._thread.start()

    def tail(self) -> str:
        return ""

    def stop(self) -> None:
        self.host._told_to_end = True
        self._thread.join(10.0)


class ThreadStarter:
    """Starts hosts in threads. ``finished``: how often somebody waited for those that were stopped."""

    finished = 0

    def start(self, index: int, job: HostJob, key: bytes, avoid: AbstractSet[str]) -> StartedHost:
        return ThreadHost(job, key)

    def finish(self) -> None:
        self.finished += 1


class Nodes:
    """Starts hosts on nodes of this machine that lose their power.

    Attributes:
        lost: nodes that did, in order.
        starts: index of each host that was started, and its node.
    """

    def __init__(self, *names: str) -> None:
        self._on: dict[str, list[LocalHost]] = {name: [] for name in names}
        self._lock, self._given = threading.Lock(), Counter[str]()
        self.lost: list[str] = []
        self.starts: list[tuple[int, str]] = []

    def start(self, index: int, job: HostJob, key: bytes, avoid: AbstractSet[str]) -> StartedHost:
        with self._lock:
            node = min((name for name in self._on if name not in avoid), key=lambda name: self._given[name])
            self._given[node] += 1  # others start at the same time
            self.starts.append((index, node))
        host = LocalStarter().start(index, job, key, avoid)
        host.node = node
        with self._lock:
            self._on[node].append(host)
        return host

    def finish(self) -> None: ...

    def cut_power(self, choose: random.Random) -> None:
        """Kills all processes of a node that has hosts, if one has."""
        with self._lock:
            having = sorted(name for name, hosts in self._on.items() if hosts)
            if having:
                self.lost.append(choose.choice(having))
                for host in self._on[self.lost[-1]]:
                    for pid in (host.pid, *descendants(host.pid)):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                self._on[self.lost[-1]].clear()


def descendants(pid: int) -> list[int]:
    """Process ids of all children, theirs, and so on."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="utf-8").split():
                found += [int(child), *descendants(int(child))]
    return found


class Relay:
    """Passes bytes on between a rollout and a host.

    Args:
        damage: bytes between two that are changed, on average; 0: none is.
    """

    def __init__(self, host: Address, damage: int = 0, seed: int = 0) -> None:
        self._host, self._damage, self._chance = host, damage, random.Random(seed)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listening.getsockname()[:2])
        self._open: list[socket.socket] = []
        self.passing = threading.Event()  # cleared: nothing passes, and nobody is told
        self.passing.set()
        self.damaged = self.connections = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self.connections += 1
                try:
                    far = socket.create_connection(self._host)
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        passed, with_damage_at = 0, self._next_damage()
        with suppress(OSError), source, sink:
            while data := bytearray(source.recv(1 << 16)):
                self.passing.wait()
                while with_damage_at is not None and with_damage_at < passed + len(data):
                    data[int(with_damage_at - passed)] ^= 1 << self._chance.randrange(8)
                    self.damaged += 1
                    with_damage_at += self._next_damage() or 0
                passed += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def _next_damage(self) -> int | None:
        return 1 + int(self._chance.expovariate(1 / self._damage)) if self._damage else None

    def cut(self) -> None:
        """Breaks all connections off, in the middle of whatever they carry."""
        for each in self._open:
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self.passing.set()
        self._listening.close()
        self.cut()


class Mutates(Relay):
    """Changes every ``every``-th piece of what passes, on average; ``mutated`` counts them."""

    def __init__(self, host: Address, every: float, seed: int = 0) -> None:
        self._every, self.mutated = every, 0
        self.heard = b""  # what the rollout has sent first, as it was
        super().__init__(host, seed=seed)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        before, first = b"", not self.heard and sink.getpeername()[:2] == tuple(self._host)
        with suppress(OSError), source, sink:
            while data := source.recv(1 << 16):
                if first and len(self.heard) < 1 << 14:
                    self.heard += data
                if self._chance.random() * self._every < 1:
                    self.mutated += 1
                    if not self._send_mutated(data, before, sink):
                        break
                else:
                    sink.sendall(data)
                before = (before + data)[-(1 << 14) :]
            sink.shutdown(socket.SHUT_RDWR)

    def _send_mutated(self, data: bytes, before: bytes, sink: socket.socket) -> bool:
        """Returns whether the connection goes on."""
        chance = self._chance
        if (kind := chance.randrange(20)) == 0:  # slow: nothing is changed
            for at in range(min(len(data), 100)):
                sink.sendall(data[at : at + 1])
            sink.sendall(data[100:])
            return True
        at, to = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        if kind < 5:  # truncated
            sink.sendall(data[:at])
            return False
        if kind < 9:  # blocks change places
            size = 1 << chance.randrange(12)
            data = data[size : 2 * size] + data[:size] + data[2 * size :]
        elif kind < 12:  # replayed
            data = before + data if before else data + data
        elif kind == 12:  # cut out: noticed when more comes
            data = data[:at] + data[to:]
        elif kind < 15:
            data = data[:at] + chance.randbytes(chance.randrange(1, 2000)) + data[at:]
        else:
            data = mutated(data, chance)
        sink.sendall(data)
        return True


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Flips bits, or writes a length that nothing has over some bytes."""
    found = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(found))
        if chance.random() < 0.5:
            found[at] ^= 1 << chance.randrange(8)
        else:
            found[at : at + 8] = struct.pack("<Q", chance.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)))
    return bytes(found)


class RelayedHost:
    def __init__(self, host: StartedHost, relay: Relay) -> None:
        self.host, self.relay, self.node, self.address = host, relay, host.node, relay.address

    def tail(self) -> str:
        return self.host.tail()

    def stop(self) -> None:
        self.relay.close()
        self.host.stop()


class RelayedStarter:
    """Hosts behind relays. ``kind``: of the starter that they have; ``damage``: see :class:`Relay`; ``every``: see
    :class:`Mutates`."""

    def __init__(self, kind: type = LocalStarter, damage: int = 0, every: float = 0.0) -> None:
        self._inner, self._damage, self._every = kind(), damage, every
        self.relays: list[Any] = []

    def start(self, index: int, job: HostJob, key: bytes, avoid: AbstractSet[str]) -> StartedHost:
        host = self._inner.start(index, job, key, avoid)
        seed = len(self.relays)
        made = Mutates(host.address, self._every, seed) if self._every else Relay(host.address, self._damage, seed)
        self.relays.append(made)
        return RelayedHost(host, self.relays[-1])

    def finish(self) -> None:
        self._inner.finish()


@contextmanager
def meanwhile(work) -> Iterator[None]:
    """Runs ``work`` again and again in a thread; it returns the seconds until the next time."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(work()):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
