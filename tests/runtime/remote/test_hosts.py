"""Rollouts over simulator hosts: every field of every record is that of a local pool, whatever fails meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from host_rig import RelayedStarter, ThreadStarter, meanwhile
from rig import records

from embodied.errors import ConfigError, WorkerDiedError
from embodied.observe.video.video import Video
from embodied.runtime.channel import Command, Kind
from embodied.runtime.plan import train_plan
from embodied.runtime.ports import Back, Lost
from embodied.runtime.remote.local import LocalStarter
from embodied.runtime.remote.peer import Peer
from embodied.runtime.remote.wire.handshake import NotOpened, dial

TESTS = Path(__file__).parents[2]
SHAPE = {"slots": 4, "workers": 4, "rows": 256, "step_s": 0.002, "success_distance": 0.5}
FAR = 60.0  # seconds


def collect(rig, iteration=0):
    """Records, outcomes and counts of a plan of 24 episodes."""
    plan = train_plan(rig.env.spec, seed=3, iteration=iteration, episodes=24, group_size=2)
    results, stats = rig.rollout(min_batch=2).collect(plan, rig.job(max_steps=20))
    outcome = [(r.episode.episode_id, r.episode_return, r.num_steps) for r in results]
    found = records(rig, results), outcome, (stats.env_steps, stats.chunks)
    for result in results:
        for lease in result.leases:
            rig.slab.arrays["rewards"][lease.row] = -1.0
    return found


@pytest.fixture(scope="module")
def expected(shared_rig):
    """What a local pool collects."""
    return collect(shared_rig(**SHAPE))


def gone(pid: int) -> bool:
    """Whether a process has ended; a child of ours that was not waited for has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + FAR
    while not holds():
        assert time.monotonic() < end, f"not so within {FAR:g} s"
        time.sleep(0.02)


@pytest.mark.parametrize(("hosts", "kind"), [(1, ThreadStarter), (2, LocalStarter)])
def test_records_are_those_of_a_local_pool(make_rig, expected, hosts, kind):
    rig = make_rig(**SHAPE, hosts=hosts, starter=kind())
    assert collect(rig) == expected
    assert rig.pool.restarts == 0
    received = sum(up for _, up in rig.pool.traffic.values())
    seen = sum(spec.nbytes for spec in rig.env.spec.obs.values())
    observations = expected[2][1] + 24  # one a chunk but the last of each episode, and one a reset
    assert received > (observations - 24) * seen
    assert received < observations * (seen + 400) + 20_000


def test_workers_of_hosts_that_are_killed_change_no_bit(make_rig, expected):
    rig = make_rig(**SHAPE, hosts=2, starter=ThreadStarter(), max_restarts=1000)
    killed: list[int] = []

    def kill() -> float:
        facts = rig.pool.facts
        if len(killed) < 3 and facts and any(peer.pending for peer in rig.pool.hosts):
            killed.append(facts[len(killed) % len(facts)].pid)
            with suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)
        return 0.05

    with meanwhile(kill):
        assert collect(rig) == expected
    assert killed
    assert 1 <= rig.pool.restarts <= len(killed)


def test_a_killed_host_is_replaced_and_changes_no_bit(make_rig, expected):
    told: list[str] = []
    rig = make_rig(**SHAPE, hosts=2, max_restarts=1000, say=told.append)
    first = rig.pool.hosts[1].started.pid
    workers = [facts.pid for facts in rig.pool.hosts[1].facts]
    killed: list[int] = []

    def kill() -> float:
        if not killed and rig.pool.hosts[1].pending:
            os.kill(first, signal.SIGKILL)
            killed.append(first)
        return 0.001

    with meanwhile(kill):
        assert collect(rig) == expected
    assert killed
    assert rig.pool.restarts == 1
    assert [text.splitlines()[0] for text in told] == [f"simulator host 1 (this machine, {told_of(told)}) has ended"]
    assert "a new simulator host takes its place" in told[0]
    until(lambda: all(gone(pid) for pid in workers))


def told_of(told: list[str]) -> str:
    """The address in a notice of a lost host."""
    return told[0].split(", ")[1].split(")")[0]


def test_a_lost_host_is_nobodys_fault_and_comes_back(make_rig):
    rig = make_rig(**SHAPE, hosts=2, max_restarts=3)
    pool, lost_slots = rig.pool, {1, 3}
    for slot in range(4):
        pool.send(Command(Kind.RESET, slot, next_row=slot, task_id=0, init_state_id=0, seed=3, max_steps=8))
    assert len(pool.recv(4)) == 4
    os.kill(pool.hosts[1].started.pid, signal.SIGKILL)
    events = []
    while {event.slot for event in events if isinstance(event, Back)} != lost_slots:
        events += pool.recv(1, timeout=FAR)
    lost = [event for event in events if isinstance(event, Lost)]
    assert {event.slot for event in lost} == lost_slots
    assert {event.suspects for event in lost} == {0}
    assert all(isinstance(event.error, WorkerDiedError) for event in lost)
    assert pool.up == [0, 1, 2, 3]


def test_a_command_that_was_on_its_way_when_its_slot_was_lost_is_dropped(make_rig):
    """The rollout does not know of the loss yet when it sends the STEP, and the new worker has no episode to step."""
    rig = make_rig(slots=1, workers=1, rows=8, hosts=1, starter=ThreadStarter(), max_restarts=3)
    pool, reset = rig.pool, Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, seed=3, max_steps=8)
    pool.send(reset)
    assert len(pool.recv(1)) == 1
    os.kill(pool.facts[0].pid, signal.SIGKILL)
    until(lambda: pool.hosts[0].started.host._attempts == [1])
    pool.send(Command(Kind.STEP, 0, row=0, next_row=1))
    pool.flush()
    events = []
    while not any(isinstance(event, Back) for event in events):
        events += pool.recv(1, timeout=FAR)
    assert [type(event) for event in events] == [Lost, Back]
    pool.send(reset)
    assert [event.kind for event in pool.recv(1)] == [Kind.RESET]
    pool.send(Command(Kind.STEP, 0, row=0, next_row=1))
    assert [event.kind for event in pool.recv(1)] == [Kind.STEP]
    assert pool.restarts == 1


def test_without_restarts_a_lost_host_ends_the_run(make_rig):
    rig = make_rig(**SHAPE, hosts=1, max_restarts=0)
    os.kill(rig.pool.hosts[0].started.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"simulator host 0 \(this machine, .*\) has ended"):
        collect(rig)


def test_a_host_that_stands_still_is_lost_after_the_timeout_alone(make_rig, expected):
    rig = make_rig(**SHAPE, hosts=2, max_restarts=1000, node_timeout_s=5.0)
    first = rig.pool.hosts[0].started.pid
    os.kill(first, signal.SIGSTOP)
    assert collect(rig) == expected
    assert rig.pool.restarts == 1
    until(lambda: gone(first))


def test_connections_that_break_lose_nothing(make_rig, expected):
    starter = RelayedStarter(ThreadStarter)
    rig = make_rig(**SHAPE, hosts=2, starter=starter)
    chance = random.Random(4)

    def cut() -> float:
        chance.choice(starter.relays).cut()
        return chance.uniform(0.02, 0.1)

    with meanwhile(cut):
        assert collect(rig) == expected
    assert rig.pool.restarts == 0
    assert sum(relay.connections for relay in starter.relays) > 2  # a connection of each, and more


def test_a_link_that_stands_still_for_a_while_loses_nothing(make_rig, expected):
    starter = RelayedStarter(ThreadStarter)
    rig = make_rig(**SHAPE, hosts=2, starter=starter)
    relay, begun = starter.relays[0], time.monotonic()
    relay.passing.clear()

    def heal() -> float:
        if time.monotonic() - begun > 4.0:  # longer than a link may be silent before it is called again
            relay.passing.set()
        return 0.1

    with meanwhile(heal):
        assert collect(rig) == expected
    assert rig.pool.restarts == 0


def test_damaged_bytes_reach_no_row(make_rig, expected):
    starter = RelayedStarter(ThreadStarter, damage=30_000)
    rig = make_rig(**SHAPE, hosts=2, starter=starter, max_restarts=1000)
    assert collect(rig) == expected
    assert sum(relay.damaged for relay in starter.relays) > 0  # how many depends on when connections broke


def test_rest_ends_the_workers_and_wake_starts_them(make_rig, expected):
    rig = make_rig(**SHAPE, hosts=2, starter=ThreadStarter())
    before = [facts.pid for facts in rig.pool.facts]
    assert len(before) == 4
    assert rig.pool.memory > 0
    rig.pool.rest()
    assert rig.pool.up == []
    assert all(gone(pid) for pid in before)
    rig.pool.wake()
    assert rig.pool.up == [0, 1, 2, 3]
    assert collect(rig) == expected


def test_times_are_those_of_the_rollouts_clock(make_rig):
    rig = make_rig(**SHAPE, hosts=1, starter=ThreadStarter())
    peer = rig.pool.hosts[0]
    peer.clock.heard(theirs=5.0 + time.monotonic(), ours=time.monotonic())  # its clock is 5 s ahead
    began = time.monotonic()
    rig.pool.send(Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, seed=3, max_steps=8))
    (done,) = rig.pool.recv(1)
    assert began - 5.0 - 1.0 < done.began < time.monotonic() - 5.0 + 1.0


class OtherFolder(ThreadStarter):
    """Its hosts do not see the folder of the run."""

    def start(self, index, job, key, avoid):
        return super().start(index, replace(job, proof="not-there"), key, avoid)


def test_a_host_that_does_not_see_the_folder_writes_no_video(make_rig, tmp_path):
    rig = make_rig(**SHAPE, hosts=1, starter=OtherFolder())
    reset = Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, seed=3, max_steps=8, video=True)
    with pytest.raises(ConfigError, match="does not see the run's folder"):
        rig.pool.send(reset, Video(str(tmp_path / "episode.mp4")))
    assert not [*(tmp_path / "logs").rglob("worker-*.log")]


def test_a_host_that_hears_nothing_ends_itself_with_its_workers(make_rig, monkeypatch):
    rig = make_rig(**SHAPE, hosts=1, node_timeout_s=2.0)
    peer = rig.pool.hosts[0]
    pids = [peer.started.pid, *(facts.pid for facts in rig.pool.facts)]
    monkeypatch.setattr(Peer, "dial", lambda self, until: None)
    monkeypatch.setattr(type(peer.link), "alive", lambda self: None)
    until(lambda: all(gone(pid) for pid in pids))


def test_a_launcher_that_is_killed_leaves_no_process(tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom rig import open_rig\n"
        "with open_rig(Path(sys.argv[1]), slots=2, workers=2, hosts=2) as rig:\n"
        "    print(*[peer.started.pid for peer in rig.pool.hosts], *[f.pid for f in rig.pool.facts], flush=True)\n"
        "    time.sleep(600)\n"
    )
    path = os.pathsep.join([str(TESTS / "helpers"), *sys.path])
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert launcher.stdout is not None
    pids = [int(pid) for pid in launcher.stdout.readline().split()]
    assert len(pids) == 4
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    until(lambda: all(gone(pid) for pid in pids))


def test_only_the_rollout_that_came_first_is_served(make_rig):
    rig = make_rig(**SHAPE, hosts=1, starter=ThreadStarter())
    peer = rig.pool.hosts[0]
    with pytest.raises(NotOpened, match="serves another rollout"):
        dial(peer.started.address, peer._key, bytes(16), 0)
    assert rig.pool.up == [0, 1, 2, 3]
