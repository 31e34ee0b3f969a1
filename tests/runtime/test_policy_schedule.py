"""Which slots the policy answers when: the rule alone, and that no setting of it changes a record."""

from __future__ import annotations

import pytest
from rig import records

from embodied.runtime.channel import Kind
from embodied.runtime.plan import train_plan
from embodied.runtime.rollout.schedule import Schedule
from embodied.types import Episode, Start


def lockstep(stages=1):
    return Schedule(lockstep=True, min_batch=1, stages=stages)


def ready_set(min_batch, max_wait_s=float("inf")):
    return Schedule(lockstep=False, min_batch=min_batch, max_wait_s=max_wait_s)


@pytest.mark.parametrize(
    ("rule", "ready", "working", "waited", "due"),
    [
        (ready_set(2), [3], [0, 1], 9.0, []),
        (ready_set(2), [3, 1], [0], 0.0, [3, 1]),
        (ready_set(4), [3, 1], [], 0.0, [3, 1]),  # nobody else will come
        (ready_set(1), [], [0, 1], 9.0, []),
        (ready_set(3, max_wait_s=0.1), [3], [0, 1], 0.09, []),
        (ready_set(3, max_wait_s=0.1), [3], [0, 1], 0.1, [3]),
        (lockstep(), [0, 1, 2], [3], 9.0, []),
        (lockstep(), [2, 0, 1, 3], [], 0.0, [2, 0, 1, 3]),
        (lockstep(), [2, 0], [], 0.0, [2, 0]),  # the other slots run no episode
        (lockstep(2), [0], [1, 2, 3], 0.0, []),
        (lockstep(2), [1, 0], [2, 3], 0.0, [1, 0]),
        (lockstep(2), [3, 1, 2], [0], 0.0, [3, 2]),
        (lockstep(2), [3, 0, 2, 1], [], 0.0, [3, 2]),  # both are whole: the one that was first
        (lockstep(4), [2, 1], [0, 3], 0.0, [2]),
        (lockstep(), [], [0], 0.0, []),
    ],
)
def test_due(rule, ready, working, waited, due):
    assert rule.due(ready, working, waited, num_slots=4) == due


@pytest.mark.parametrize(
    ("rule", "ready", "working", "missing"),
    [
        (ready_set(3), [0], [1, 2, 3], 2),
        (ready_set(3), [], [1], 1),
        (ready_set(3, max_wait_s=9), [], [1, 2, 3], 1),
        (ready_set(3, max_wait_s=9), [0], [1, 2, 3], 2),
        (lockstep(), [0], [1, 2, 3], 3),
        (lockstep(2), [], [0, 1, 2, 3], 2),
        (lockstep(2), [0], [1, 2, 3], 1),
        (lockstep(), [], [], 0),
    ],
)
def test_no_slot_becomes_due_with_fewer_completions_than_are_missing(rule, ready, working, missing):
    assert rule.missing(ready, working, num_slots=4) == missing
    for fewer in range(missing):
        assert rule.due(ready + working[:fewer], working[fewer:], 0.0, num_slots=4) == []


def test_patience_ends_with_the_longest_wait():
    assert ready_set(3, max_wait_s=0.5).patience([1], waited=0.2) == pytest.approx(0.3)
    assert ready_set(3, max_wait_s=0.5).patience([1], waited=0.7) == 0.0
    assert ready_set(3, max_wait_s=0.5).patience([], waited=0.0) is None
    assert ready_set(3).patience([1], waited=0.2) is None


@pytest.mark.parametrize(("workers", "slots"), [(2, 4), (4, 8), (1, 3)])
def test_each_worker_has_slots_in_both_stages(workers, slots):
    for worker in range(workers):
        assert {lockstep(2)._stage(slot, slots) for slot in range(worker, slots, workers)} == {0, 1}


NEAR = {"slots": 4, "step_s": 0.0005, "success_distance": 0.6}


def collect(rig, **schedule):
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=8, group_size=2)
    results, stats = rig.rollout(**schedule).collect(plan, rig.job())
    return records(rig, results), stats


@pytest.fixture(scope="module")
def reference(shared_rig):
    return collect(shared_rig(workers=1, **NEAR), lockstep=True)[0]


SETTINGS = {
    "lockstep": {"lockstep": True},
    "two stages": {"lockstep": True, "stages": 2},
    "four stages": {"lockstep": True, "stages": 4},
    "ready": {"min_batch": 1},
    "ready, bounded wait": {"min_batch": 4, "max_wait_s": 0.001},
}


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_changes_a_bit(shared_rig, reference, workers, setting):
    assert collect(shared_rig(workers=workers, **NEAR), **SETTINGS[setting])[0] == reference


def test_two_stages_answer_halves_while_the_other_half_works(shared_rig):
    rig = shared_rig(workers=2, slots=4)
    answered, send, act = [], rig.pool.send, rig.policy.act

    def sending(command, *rest):
        if command.kind == Kind.STEP:
            answered[-1].add(command.slot)
        send(command, *rest)

    rig.pool.send = sending
    rig.policy.act = lambda *args: (answered.append(set()), act(*args))[1]
    try:
        collect(rig, lockstep=True, stages=2)
    finally:
        del rig.pool.send
        rig.policy.act = act
    assert all(slots <= {0, 1} or slots <= {2, 3} for slots in answered), "a call answers one half"
    assert {0, 1} in answered
    assert {2, 3} in answered


def test_a_slow_slot_does_not_hold_up_the_others_longer_than_the_wait(make_rig, tmp_path):
    """The slot of task 1 waits until a file is there; the floor of two slots would wait for it for ever."""
    rig = make_rig(slots=2, workers=2, target="broken_envs.WaitsForFile", file=str(tmp_path / "go"))
    plan = [Episode(task, task, Start(task, 0, 0)) for task in (0, 1)]
    ended = []

    def let_go(result):
        ended.append(result.episode.start.task_id)
        (tmp_path / "go").touch()

    results, _ = rig.rollout(min_batch=2, max_wait_s=0.01).collect(plan, rig.job(), let_go)
    assert ended == [0, 1]
    assert [result.num_steps for result in results] == [10, 10]
