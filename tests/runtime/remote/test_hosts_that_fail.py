"""Hosts that start late, fail late or never come back: what the rollout makes of it."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from host_rig import ThreadStarter

from embodied.errors import ClusterError, RendererUnavailableError
from embodied.runtime.ports import Back, Lost
from embodied.runtime.remote import fleet
from embodied.runtime.remote.host import Host
from embodied.runtime.remote.peer import Peer
from embodied.runtime.remote.wire.frames import Frame, FrameKind, to_text

SHAPE = {"slots": 2, "workers": 2, "rows": 16}
FAR = 60.0  # seconds


class Fails(ThreadStarter):
    """Starts hosts but for some, counted from 0."""

    def __init__(self, *fails: int) -> None:
        self.fails, self.count = fails, -1

    def start(self, index, job, key, avoid):
        self.count += 1
        if self.count in self.fails:
            raise ClusterError("there is no room", "make some")
        return super().start(index, job, key, avoid)


def events_until(pool: Any, kind: type) -> list[Any]:
    events: list[Any] = []
    while not any(isinstance(event, kind) for event in events):
        events += pool.recv(1, timeout=FAR)
    return events


def test_a_slot_that_is_back_takes_commands_once_recv_has_said_so(make_rig):
    """The question for the memory meanwhile takes in what has happened, and must not tell it by the way: the rollout
    would give the slot a command, and another one when it hears that it is back."""
    pool = make_rig(slots=1, workers=1, rows=8, hosts=1, starter=ThreadStarter(), max_restarts=3).pool
    os.kill(pool.facts[0].pid, signal.SIGKILL)
    while not any(isinstance(event, Back) for event in pool._fleet.events):
        assert pool.memory >= 0
    assert pool.up == []
    assert [type(event) for event in events_until(pool, Back)] == [Lost, Back]
    assert pool.up == [0]


def test_a_slot_that_came_back_before_its_host_rested_is_not_up():
    facts = {"pid": 7, "renderer": "none", "reason": "a fake env"}
    peer = Peer(0, (4, 5), SimpleNamespace(pool=SimpleNamespace(batch=False)), None, print, print)  # type: ignore[arg-type]
    told = {"group": 0, "simulators": 1, "restarts": 0, "shares_folder": True, "facts": facts}
    assert peer.hear(Frame(FrameKind.BACK, 1, 0.0, to_text(told)), 1.0) == [Back(5)]
    assert (peer.up, len(peer.facts)) == ({5}, 1)
    assert peer.hear(Frame(FrameKind.RESTED, -1, 0.0, b""), 1.0) == []
    assert (peer.rested, peer.up, peer.facts) == (True, set(), [])


def test_who_wakes_does_not_wait_for_a_host_that_was_lost_while_it_rested(make_rig):
    pool = make_rig(**SHAPE, hosts=2, starter=Fails(*range(2, 999)), max_restarts=3).pool
    pool.rest()
    pool.hosts[1].started.stop()
    waking = threading.Thread(target=pool.wake, daemon=True)
    waking.start()
    waking.join(FAR)
    assert not waking.is_alive()
    assert pool.up == [0]


def test_an_update_longer_than_the_timeout_is_no_time_without_hosts(make_rig, monkeypatch):
    """The first attempt to replace the host fails. Nobody listens while an update takes its time."""
    monkeypatch.setattr(fleet, "RETRY_S", 1000.0)
    pool = make_rig(**SHAPE, hosts=1, starter=Fails(1), max_restarts=3).pool
    pool.hosts[0].started.stop()
    while pool._fleet._failed_start is None:
        pool.recv(1, timeout=0.1)
    pool._fleet._polled -= 1000.0
    pool._fleet._reached_at -= 1000.0
    pool._fleet._retry[0] = 0.0
    events_until(pool, Back)
    assert pool._fleet.num_up > 0


def test_an_attempt_that_failed_is_no_reason_once_another_succeeded(make_rig, monkeypatch):
    """A connection that breaks much later is made anew."""
    monkeypatch.setattr(fleet, "RETRY_S", 0.05)
    starter = Fails(1)
    pool = make_rig(**SHAPE, hosts=1, starter=starter, max_restarts=3).pool
    pool.hosts[0].started.stop()
    while starter.count < 2 or len(pool.up) < 2:
        pool.recv(1, timeout=0.1)
    link = pool.hosts[0].link
    link.detach()
    link.broken = OSError("cut")
    pool._fleet._reached_at -= 1000.0
    while not link.attached:
        pool.recv(1, timeout=0.1)
    assert pool.up == [0, 1]


def test_a_host_is_reached_before_it_builds_its_simulators(make_rig, monkeypatch):
    """Building may take longer than the rollout waits for a word."""
    reached, attach, open_pool = threading.Event(), Peer.attach, Host._open

    def attached(peer, opened):
        attach(peer, opened)
        reached.set()

    def build(host, opened):
        assert reached.wait(FAR), "nobody was let in before the build"
        open_pool(host, opened)

    monkeypatch.setattr(Peer, "attach", attached)
    monkeypatch.setattr(Host, "_open", build)
    assert make_rig(**SHAPE, hosts=1, starter=ThreadStarter(), node_timeout_s=FAR / 2).pool.up == [0, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_a_host_that_has_built_for_long_serves_or_says_why_not(make_rig, monkeypatch, fails):
    """It has heard nothing meanwhile, as nobody has listened."""
    open_pool = Host._open

    def build(host, opened):
        open_pool(host, opened)
        host._link.heard -= 1000.0
        if fails:
            raise RendererUnavailableError("no GL here", "install it")

    monkeypatch.setattr(Host, "_open", build)
    if fails:
        with pytest.raises(RendererUnavailableError, match="no GL here"):
            make_rig(**SHAPE, hosts=1, starter=ThreadStarter())
    else:
        assert make_rig(**SHAPE, hosts=1, starter=ThreadStarter()).pool.up == [0, 1]


def test_hosts_that_were_stopped_are_waited_for_at_the_end(make_rig):
    starter = Fails(1)
    with pytest.raises(ClusterError):
        make_rig(**SHAPE, hosts=2, starter=starter)
    assert starter.finished == 1
