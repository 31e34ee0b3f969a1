"""What every env port must keep, written against the protocol alone.

Another implementation joins by one more entry in ``PORTS``: a function that opens it over a slab, with the fake env's
fields and those of a chunk of 4 actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_rig import ThreadStarter

from embodied.errors import WorkerDiedError
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.ports import Back, EnvPort, Event, Lost
from embodied.runtime.slab import Slab
from embodied.testing import FakeEnv
from embodied.types import Start

SLOTS = 3
FAR = 30.0  # seconds within which a worker is replaced


@dataclass(frozen=True)
class Opened:
    port: EnvPort
    slab: Slab


Open = Callable[..., Opened]


CLASSES = {
    (False, False): "embodied.testing.FakeEnv",
    (False, True): "broken_envs.FailsOnce",
    (True, False): "embodied.testing.FakeBatchEnv",
    (True, True): "broken_batches.FailsOnceTogether",
}
"""The env's class, by whether it is a batch, and whether its first worker fails."""


def local(batch: bool, workers: int) -> Callable[..., Callable[..., Opened]]:
    """The pool of this machine."""

    def opener(make_rig: Any, server: Any) -> Open:
        def opened(fails_once: str | None = None, max_restarts: int = 3, **env: Any) -> Opened:
            once = {"marker": fails_once} if fails_once else {}
            rig = make_rig(
                slots=SLOTS, workers=workers, target=CLASSES[batch, bool(once)], max_restarts=max_restarts,
                pool={"batch": batch, "server": server}, **once, **env,
            )  # fmt: skip
            return Opened(rig.pool, rig.slab)

        return opened

    return opener


def remote(batch: bool, hosts: int) -> Callable[..., Callable[..., Opened]]:
    """Simulator hosts; they run in threads of the test, which start at once."""

    def opener(make_rig: Any, server: Any) -> Open:
        def opened(fails_once: str | None = None, max_restarts: int = 3, **env: Any) -> Opened:
            once = {"marker": fails_once} if fails_once else {}
            target = CLASSES[batch, bool(once)]
            rig = make_rig(
                slots=SLOTS, workers=hosts, target=target, max_restarts=max_restarts, hosts=hosts,
                starter=ThreadStarter(),
                pool={"batch": batch}, **once, **env,
            )  # fmt: skip
            return Opened(rig.pool, rig.slab)

        return opened

    return opener


PORTS: dict[str, tuple[Callable[..., Open], bool]] = {
    "a worker a slot": (local(batch=False, workers=SLOTS), False),
    "one worker": (local(batch=False, workers=1), False),
    "forked": (local(batch=False, workers=2), True),
    "a batch": (local(batch=True, workers=1), False),
    "hosts": (remote(batch=False, hosts=2), False),
    "a host with a batch": (remote(batch=True, hosts=1), False),
}


@pytest.fixture(params=PORTS)
def open_port(request: pytest.FixtureRequest, make_rig: Any) -> Open:
    """Opens the port over fake envs.

    Args:
        fails_once: path of a file; the first worker that comes to the ``fault`` makes it and fails, later ones do not.
    """
    opener, forked = PORTS[request.param]
    return opener(make_rig, request.getfixturevalue("fork_server") if forked else None)


def reset(opened: Opened, slot: int, row: int, **changes: Any) -> None:
    given: dict[str, Any] = {"task_id": slot % 2, "init_state_id": 0, "seed": 3, "max_steps": 100, **changes}
    opened.port.send(Command(Kind.RESET, slot, next_row=row, **given))


def step(opened: Opened, slot: int, row: int, next_row: int) -> None:
    opened.port.send(Command(Kind.STEP, slot, row=row, next_row=next_row))


def all_of(opened: Opened, count: int) -> list[Completion]:
    """Completions, until there are ``count``."""
    events: list[Event] = []
    while len(events) < count:
        more = opened.port.recv(count - len(events), timeout=FAR)
        assert more, "something is in flight, so there is something to wait for"
        events += more
    assert all(isinstance(event, Completion) for event in events), events
    return events  # type: ignore[return-value]


def until_back(opened: Opened, slots: set[int]) -> list[Event]:
    """All events until these slots are back."""
    events: list[Event] = []
    deadline = time.monotonic() + FAR
    while not slots <= {event.slot for event in events if isinstance(event, Back)}:
        assert time.monotonic() < deadline, events
        events += opened.port.recv(1, timeout=1.0)
    return events


def begun(opened: Opened) -> Opened:
    """Slot s has been reset into row s."""
    for slot in range(SLOTS):
        reset(opened, slot, slot)
    assert sorted(done.slot for done in all_of(opened, SLOTS)) == [*range(SLOTS)]
    opened.slab.arrays["actions"][:] = 0.5
    return opened


def chunk(opened: Opened, first: int) -> list[Completion]:
    """A chunk of every slot: from row ``first`` + s into the row ``SLOTS`` further."""
    for slot in range(SLOTS):
        step(opened, slot, first + slot, first + SLOTS + slot)
    return all_of(opened, SLOTS)


def test_all_slots_take_commands_once_it_is_open(open_port):
    opened = open_port()
    assert opened.port.num_slots == SLOTS
    assert [*opened.port.up] == [*range(SLOTS)]
    assert opened.port.restarts == 0
    assert [*opened.port.moving] == []


def test_slots_share_simulators_with_none_unless_their_env_says_so(open_port):
    port = open_port().port
    assert [port.simulators_of(slot) for slot in range(SLOTS)] == [*range(SLOTS)]


def test_slots_that_share_simulators_are_those_of_a_worker(make_rig):
    pool = make_rig(slots=SLOTS, workers=2, target="hosted_env.SharesSimulators").pool
    assert [pool.simulators_of(slot) for slot in range(SLOTS)] == [0, 1, 0]


def test_a_command_is_answered_once_and_its_rows_are_written_by_then(open_port):
    opened = begun(open_port())
    envs = [FakeEnv() for _ in range(SLOTS)]
    for done in chunk(opened, 0):
        assert (done.kind, done.num_steps, done.ended, done.observed) == (Kind.STEP, 4, False, True)
    for slot, env in enumerate(envs):
        env.reset(Start(slot % 2, 0, 3))
        rewards = [env.step(np.full(7, 0.5, np.float32)).reward for _ in range(4)]
        seen = {name: np.zeros(field.shape, field.dtype) for name, field in env.spec.obs.items()}
        env.observe(seen)
        assert np.array_equal(opened.slab.arrays["rewards"][slot], np.float32(rewards))
        for name, values in seen.items():
            assert np.array_equal(opened.slab.arrays[name][SLOTS + slot], values)
    assert opened.port.recv(1, timeout=0.05) == []


def test_a_slot_without_a_batch_is_reset_first_and_observed_later(open_port, request):
    if "batch" in request.node.callspec.id:
        pytest.skip("slots of a batch are reset and observed in one round")
    opened, rows = open_port(), [*range(SLOTS)]
    begun(opened)
    expected = {name: opened.slab.arrays[name][rows].copy() for name in FakeEnv().spec.obs}
    for slot in rows:
        reset(opened, slot, -1)
    assert {(done.kind, done.observed) for done in all_of(opened, SLOTS)} == {(Kind.RESET, False)}
    for slot in rows:
        opened.port.send(Command(Kind.OBSERVE, slot, next_row=SLOTS + slot))
    assert {(done.kind, done.observed) for done in all_of(opened, SLOTS)} == {(Kind.OBSERVE, True)}
    for name, values in expected.items():
        assert (opened.slab.arrays[name][SLOTS : 2 * SLOTS] == values).all(), name


def test_an_episode_ends_at_its_limit(open_port):
    opened = open_port()
    for slot in range(SLOTS):
        reset(opened, slot, slot, max_steps=6)
    all_of(opened, SLOTS)
    assert not any(done.ended for done in chunk(opened, 0))
    for slot in range(SLOTS):
        step(opened, slot, SLOTS + slot, -1)
    assert {(done.num_steps, done.ended, done.observed) for done in all_of(opened, SLOTS)} == {(2, True, False)}


def test_recv_waits_for_as_many_as_are_wanted_and_no_longer_than_it_may(open_port):
    opened = begun(open_port(step_s=0.02))
    assert opened.port.recv(SLOTS) == [], "nothing is in flight"
    for slot in range(SLOTS):
        step(opened, slot, slot, SLOTS + slot)
    assert opened.port.recv(SLOTS, timeout=0.001) == [], "a chunk takes 40 ms or more"
    assert len(opened.port.recv(SLOTS, timeout=FAR)) == SLOTS


def test_a_slot_moves_from_its_command_to_the_answer(open_port):
    opened = begun(open_port())
    for slot in range(SLOTS):
        step(opened, slot, slot, SLOTS + slot)
    assert {*opened.port.moving} == {*range(SLOTS)}
    all_of(opened, SLOTS)
    assert {*opened.port.moving} == set()


def test_a_slot_that_moves_is_answered_without_any_other(open_port):
    opened = begun(open_port())
    step(opened, 1, 1, 4)
    if 1 in opened.port.moving:
        assert [done.slot for done in all_of(opened, 1)] == [1]
        return
    assert opened.port.recv(1, timeout=0.1) == []
    others = [slot for slot in range(SLOTS) if opened.port.group_of(slot) == opened.port.group_of(1) and slot != 1]
    assert others, "a slot waits only for slots of its group"
    for slot in others:
        step(opened, slot, slot, SLOTS + slot)
    assert {*opened.port.moving} == {1, *others}
    assert sorted(done.slot for done in all_of(opened, 1 + len(others))) == sorted([1, *others])


def test_a_reset_waits_for_nobody(open_port):
    opened = begun(open_port())
    reset(opened, 2, 5)
    assert {*opened.port.moving} == {2}
    assert [done.slot for done in all_of(opened, 1)] == [2]


@pytest.mark.parametrize(("fault", "step_s"), [("exception", 0.0), ("exception", 0.002), ("kill", 0.002)])
def test_a_lost_slot_is_said_once_comes_back_and_is_whole(open_port, tmp_path: Path, fault, step_s):
    """Task 1 runs in slot 1 alone, and its first worker fails in the second chunk."""
    once = {"fails_once": str(tmp_path / "failed"), "fault": fault, "fault_step": 6, "fault_task": 1}
    opened = begun(open_port(**once, step_s=step_s))
    chunk(opened, 0)
    for slot in range(SLOTS):
        step(opened, slot, SLOTS + slot, 2 * SLOTS + slot)
    opened.port.flush()
    events = until_back(opened, {1})
    lost = {event.slot: event for event in events if isinstance(event, Lost)}
    back = [event.slot for event in events if isinstance(event, Back)]
    assert sorted(back) == sorted(lost)
    assert len(back) == len(set(back)), "each slot comes back once"
    for slot in lost:
        kinds = [type(event) for event in events if event.slot == slot]
        assert kinds in ([Lost, Back], [Completion, Lost, Back]), "what was completed, then the loss, then the return"
    assert lost[1].suspects >= 1
    assert isinstance(lost[1].error, WorkerDiedError)
    assert opened.port.restarts == 1
    assert [*opened.port.up] == [*range(SLOTS)]
    answered = [event.slot for event in events if isinstance(event, Completion)]
    rest = set(range(SLOTS)) - set(lost) - set(answered)
    all_of(opened, len(rest))
    assert {*opened.port.moving} == set()
    for slot in lost:  # redone from the start
        reset(opened, slot, slot)
    all_of(opened, len(lost))
    before = opened.slab.arrays["rewards"][:SLOTS].copy()
    for slot in lost:
        step(opened, slot, slot, SLOTS + slot)
    all_of(opened, len(lost))
    assert np.array_equal(opened.slab.arrays["rewards"][:SLOTS], before), "redone, the episode gives the same numbers"


def test_an_episode_that_ends_its_workers_again_and_again_is_the_error(open_port):
    opened = begun(open_port(fault="exception", fault_step=2, fault_task=1, max_restarts=1))
    for slot in range(SLOTS):
        step(opened, slot, slot, SLOTS + slot)
    events = until_back(opened, {1})
    (lost,) = [event for event in events if isinstance(event, Lost) and event.slot == 1]
    opened.port.blame(lost, episode_id=7, count=1)
    with pytest.raises(WorkerDiedError, match="episode 7"):
        opened.port.blame(lost, episode_id=7, count=2)


def test_a_worker_that_fails_too_often_in_a_row_is_the_error(open_port):
    opened = begun(open_port(fault="exception", fault_step=2, fault_task=1, max_restarts=0))
    for slot in range(SLOTS):
        step(opened, slot, slot, SLOTS + slot)
    with pytest.raises(WorkerDiedError, match="told to fail in step"):
        until_back(opened, {1})
