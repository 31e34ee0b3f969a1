"""Mutated frames at a live host's port and on the way between it and the rollout: no record is another one."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from host_rig import RelayedStarter, ThreadStarter, meanwhile, mutated
from rig import records

from embodied.errors import ConfigError, WorkerDiedError
from embodied.runtime.plan import train_plan
from embodied.runtime.remote import peer
from embodied.runtime.remote.starter import Address
from embodied.runtime.remote.wire import handshake

SHAPE = {"slots": 4, "workers": 2, "rows": 256, "step_s": 0.001, "success_distance": 0.5}
GROWS = 64 << 20  # bytes that a process may take more
FAR = 60.0  # seconds


def collect(rig):
    """Records and outcomes of a plan of 16 episodes."""
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=16, group_size=2)
    results, _ = rig.rollout(min_batch=2).collect(plan, rig.job(max_steps=20))
    found = records(rig, results), [(r.episode.episode_id, r.episode_return, r.num_steps) for r in results]
    for result in results:  # nothing of it is taken for what the next one records
        for lease in result.leases:
            for array in rig.slab.arrays.values():
                array[lease.row].fill(255 if array.dtype.kind in "bu" else -7)
    return found


@pytest.fixture(scope="module")
def expected(shared_rig):
    """What a local pool collects."""
    return collect(shared_rig(**SHAPE))


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


MANY = pytest.param(10_000, marks=pytest.mark.slow)


class Strangers:
    """Come to a port with pieces of a conversation that was heard there; some stay and say nothing more.

    Args:
        told: what the rollout has said to the host, from its hello on.
    """

    def __init__(self, address: Address, told: bytes, seed: int = 1) -> None:
        self._address, self._told, self._chance = address, told, random.Random(seed)
        self._staying: list[socket.socket] = []
        self.count = 0

    def come(self) -> float:
        """One of them comes."""
        self.count += 1
        data = self._says()
        with suppress(OSError):
            came = socket.create_connection(self._address, FAR)
            came.sendall(data)
            self._staying.append(came)
            if self._chance.random() < 0.5:  # it answers what it is asked with what was heard, too
                came.settimeout(0.05)
                came.recv(1000)
                came.sendall(self._told[len(data) :][:200])
        stay = self._chance.randrange(200)
        for each in self._staying[: len(self._staying) - stay]:
            self._leave(each)
        self._staying = self._staying[-stay:] if stay else []
        return 0.0

    def _says(self) -> bytes:
        chance, told = self._chance, self._told
        kind = chance.randrange(6)
        if kind == 0:
            return told  # replayed whole
        if kind == 1:
            return told[: chance.randrange(200)]
        if kind == 2:
            return chance.randbytes(chance.randrange(1, 3000))
        if kind == 3:  # a true hello, and a proof by another key
            return told[: handshake._HELLO.size] + chance.randbytes(handshake.PROOF_BYTES) + told[200:]
        return mutated(told[: chance.randrange(1, 400)], chance)

    def _leave(self, came: socket.socket) -> None:
        if self._chance.random() < 0.3:
            with suppress(OSError):
                came.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        came.close()

    def close(self) -> None:
        for each in self._staying:
            each.close()


@pytest.mark.parametrize("count", [300, MANY])
def test_strangers_at_a_live_host_change_nothing_and_the_rollout_is_let_in_among_them(make_rig, expected, count):
    starter = RelayedStarter(every=1e9)
    rig = make_rig(**SHAPE, hosts=1, starter=starter)
    relay, host = starter.relays[0], rig.pool.hosts[0].started.host
    assert collect(rig) == expected
    strangers = Strangers(host.address, relay.heard)
    before = resident(host.pid), open_files(host.pid)

    def come() -> float:
        if strangers.count % 100 == 50:
            relay.cut()  # the rollout has to come to the door again
        return strangers.come()

    with meanwhile(come):
        while strangers.count < count:
            assert collect(rig) == expected
    strangers.close()
    assert collect(rig) == expected
    assert relay.connections > 1
    assert rig.pool.restarts == 0
    assert resident(host.pid) < before[0] + GROWS
    end = time.monotonic() + FAR
    while open_files(host.pid) > before[1] + 2:  # a connection may be new
        assert time.monotonic() < end, f"{open_files(host.pid)} files are open, and {before[1]} were"
        time.sleep(0.1)


@pytest.mark.parametrize("count", [150, MANY])
def test_mutated_frames_on_both_ways_reach_no_record(make_rig, expected, monkeypatch, count):
    starter = RelayedStarter(every=8.0)
    monkeypatch.setattr(peer, "AGAIN_S", 0.01)
    monkeypatch.setattr(peer, "DIAL_S", 0.5)
    rig = make_rig(**SHAPE, hosts=2, starter=starter, max_restarts=10**6)
    own = resident(os.getpid())
    while sum(relay.mutated for relay in starter.relays) < count:
        assert collect(rig) == expected
    assert resident(os.getpid()) < own + GROWS
    for one in rig.pool.hosts:
        if one.started is not None:
            assert resident(one.started.host.pid) < 1 << 30


def errors_of_dials(monkeypatch, count: int) -> list[Exception]:
    """Errors that the next attempts to reach a host end with."""
    errors, dial = [ConfigError("embodied is 9", "install the same") for _ in range(count)], peer.dial

    def dialed(*how):
        if errors:
            raise errors.pop()
        return dial(*how)

    monkeypatch.setattr(peer, "dial", dialed)
    monkeypatch.setattr(peer, "AGAIN_S", 0.01)
    return errors


@pytest.mark.parametrize(("damaged", "up"), [(2, True), (10, False)])
def test_a_hello_that_was_damaged_is_no_other_version(make_rig, monkeypatch, damaged, up):
    """A host of another version says so each time."""
    errors_of_dials(monkeypatch, damaged)
    with nullcontext() if up else pytest.raises(ConfigError, match="embodied is 9"):
        assert make_rig(**SHAPE, hosts=1, starter=ThreadStarter()).pool.up == [0, 1, 2, 3]


@pytest.mark.parametrize("reached", [False, True])
def test_hellos_that_were_damaged_lose_a_host_at_most(make_rig, monkeypatch, reached):
    """Of a host that was reached before, and among refusals of another kind, no version is to blame."""
    errors = errors_of_dials(monkeypatch, 0)
    if not reached:
        errors += [ConfigError("embodied is 9", "install the same"), handshake.NotOpened("it broke off")] * 2
        with pytest.raises(WorkerDiedError, match="has ended or does not know this rollout"):
            make_rig(**SHAPE, hosts=1, starter=ThreadStarter())
        return
    pool = make_rig(**SHAPE, hosts=1, starter=ThreadStarter(), max_restarts=3).pool
    errors += [ConfigError("embodied is 9", "install the same")] * 3
    link = pool.hosts[0].link
    link.detach()
    link.broken = OSError("cut")
    while pool.restarts == 0 or len(pool.up) < 4:
        pool.recv(1, timeout=0.1)
    assert errors == []
