"""Who waits for several answers is woken for them together, and misses none: by time, by death, by a deadline."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from rig import FAST

from embodied.errors import WorkerDiedError, WorkerHungError
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.pool.pool import Deadlines, Lost
from embodied.types import Start

WAITS = "broken_envs.WaitsForFile"


def reset(rig, slot, task_id=0, max_steps=100):
    rig.pool.send(Command(Kind.RESET, slot, next_row=slot, task_id=task_id, init_state_id=0, max_steps=max_steps))


def step(rig, slot):
    rig.pool.send(Command(Kind.STEP, slot, row=slot, next_row=len(rig.slab.arrays["actions"]) - 1 - slot))


def all_reset(rig):
    for slot in range(rig.pool.num_slots):
        reset(rig, slot, max_steps=10**6)
    assert len(rig.pool.recv(rig.pool.num_slots)) == rig.pool.num_slots
    return rig


class CountsWakes:
    """An epoll that counts how often it had something to say."""

    def __init__(self, epoll):
        self._epoll, self.wakes = epoll, 0

    def poll(self, timeout):
        events = self._epoll.poll(timeout)
        self.wakes += bool(events)
        return events

    def __getattr__(self, name):
        return getattr(self._epoll, name)


@pytest.mark.parametrize(("slots", "workers", "most"), [(8, 1, 1), (8, 2, 3)])
def test_waiting_for_all_wakes_the_launcher_a_few_times(make_rig, slots, workers, most):
    """Chunks of 20 to 60 ms, so that each answer would wake it apart."""
    rig = all_reset(make_rig(slots=slots, workers=workers, step_s=0.01))
    rig.pool._epoll = counting = CountsWakes(rig.pool._epoll)
    for slot in range(slots):
        step(rig, slot)
    assert sorted(done.slot for done in rig.pool.recv(slots)) == list(range(slots))
    assert counting.wakes <= most


def test_one_answer_is_heard_of_though_two_were_waited_for_before(make_rig, tmp_path):
    """Slot 1 waits for a file that comes when slot 0, which takes 0.2 s, has been heard of."""
    rig = make_rig(slots=2, workers=1, target=WAITS, file=str(tmp_path / "go"), step_s=0.05)
    reset(rig, 0)
    rig.pool.recv(1)
    step(rig, 0)
    reset(rig, 1, task_id=1)
    heard = rig.pool.recv(2, timeout=0.0) or rig.pool.recv(1)
    assert [done.slot for done in heard] == [0]
    (tmp_path / "go").touch()
    assert [done.slot for done in rig.pool.recv(1)] == [1]


def test_time_is_up_with_what_has_been_answered(make_rig, tmp_path):
    rig = make_rig(slots=3, workers=1, target=WAITS, file=str(tmp_path / "go"))
    for slot, task in enumerate((0, 0, 1)):
        reset(rig, slot, task)
    assert [done.slot for done in rig.pool.recv(3, timeout=2.0)] == [0, 1]
    (tmp_path / "go").touch()
    assert [done.slot for done in rig.pool.recv(3)] == [2]


def test_what_was_answered_before_a_death_is_told(make_rig, tmp_path):
    rig = make_rig(slots=3, workers=1, target=WAITS, file=str(tmp_path / "go"), max_restarts=1)
    for slot, task in enumerate((0, 0, 1)):
        reset(rig, slot, task)
    events = rig.pool.recv(3, timeout=0.0)
    pid = rig.pool.pids[0]
    rings = rig.pool._workers[0].channel.completions
    deadline = time.monotonic() + 10
    while rings._head[0] < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    events += rig.pool.recv(3)
    assert [event.slot for event in events if isinstance(event, Completion)] == [0, 1]
    assert [(event.slot, event.suspects) for event in events if isinstance(event, Lost)] == [(0, 0), (1, 0), (2, 1)]


def test_a_death_is_known_at_once_while_answers_are_waited_for(make_rig, tmp_path):
    rig = make_rig(slots=4, workers=2, target=WAITS, file=str(tmp_path / "go"))
    for slot, task in enumerate((0, 0, 1, 0)):
        reset(rig, slot, task)
    os.kill(rig.pool.pids[0], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerDiedError, match="env worker 0"):
        rig.pool.recv(4)
    assert time.monotonic() - began < FAST.reset / 2


def test_a_hang_after_answers_that_woke_nobody_has_the_deadline_of_what_hangs(make_rig, tmp_path):
    """Slot 0's chunk may take 30 s and takes 0.1; slot 1's reset, after it, may take 3 s and never ends."""
    deadlines = Deadlines(init=30.0, reset=3.0, step=30.0)
    rig = make_rig(slots=2, workers=1, target=WAITS, file=str(tmp_path / "never"), deadlines=deadlines, step_s=0.025)
    reset(rig, 0)
    rig.pool.recv(1)
    step(rig, 0)
    reset(rig, 1, task_id=1)
    began = time.monotonic()
    with pytest.raises(WorkerHungError, match="3 s while resetting"):
        rig.pool.recv(2)
    assert 3.0 <= time.monotonic() - began < 25


@pytest.mark.parametrize(("slots", "workers"), [(6, 2), (5, 3)])
def test_every_frame_is_whole_and_the_right_one_whoever_is_waited_for(make_rig, slots, workers):
    """Chunks given in any order; any number of answers waited for, some of them not for long."""
    rig, chance = all_reset(make_rig(slots=slots, workers=workers)), random.Random(slots)
    steps, rows, idle, flying, seen = [0] * slots, [*range(slots)], [*range(slots)], set(), 0
    while seen < 1500:
        chance.shuffle(idle)
        for slot in [idle.pop() for _ in range(chance.randint(0 if flying else 1, len(idle)))]:
            row, rows[slot] = rows[slot], (rows[slot] + slots) % (2 * slots)
            rig.pool.send(Command(Kind.STEP, slot, row=row, next_row=rows[slot]))
            flying.add(slot)
        for done in rig.pool.recv(chance.randint(1, len(flying)), chance.choice([None, 0.0, 0.0005])):
            flying.remove(done.slot)
            idle.append(done.slot)
            steps[done.slot] += done.num_steps
            seen += 1
            for camera, picture in enumerate(rig.slab.arrays["images"][rows[done.slot]]):
                assert (picture == rig.env.picture(Start(0, 0, 0), steps[done.slot], camera)).all()
