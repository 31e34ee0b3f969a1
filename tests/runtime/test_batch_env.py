"""An env that hosts all slots of a worker: its episodes are those of single envs, whoever waits for whom."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from rig import BOTH_STARTS, records

from embodied.errors import WorkerDiedError
from embodied.random import Stream
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.plan import train_plan, with_videos
from embodied.runtime.pool.placement import slots_of
from embodied.runtime.pool.pool import Deadlines, Lost
from embodied.runtime.worker.reward import ShapedReward

BATCH = {"target": "embodied.testing.FakeBatchEnv", "pool": {"batch": True}}
NEAR = {"step_s": 0.0005, "success_distance": 0.6}
SCHEDULES = {
    "ready": {"min_batch": 1},
    "a floor": {"min_batch": 3},
    "all": {"min_batch": 8},
    "a wait": {"min_batch": 8, "max_wait_s": 0.001},
    "lockstep": {"lockstep": True},
    "two stages": {"lockstep": True, "stages": 2},
    "three stages": {"lockstep": True, "stages": 3},
}


@pytest.fixture(autouse=True)
def limit():
    """Slots that wait for each other in a circle would wait for ever."""

    def too_long(*_):
        raise TimeoutError("a test of batches has not ended within 60 s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_plan(rig, episodes=16, iteration=0):
    return train_plan(rig.env.spec, seed=3, iteration=iteration, episodes=episodes, group_size=2)


def collect(rig, job=None, plan=None, **schedule):
    """``(records, returns and lengths, counts)``: what must depend neither on who hosts the slots nor on failures."""
    results, stats = rig.rollout(**schedule).collect(plan or make_plan(rig), rig.job(**(job or {})))
    outcome = [(r.episode.episode_id, r.episode_return, r.success, r.num_steps, r.truncated) for r in results]
    return records(rig, results), outcome, (stats.env_steps, stats.chunks)


@pytest.fixture(scope="module")
def single(shared_rig):
    """4 slots with an env each, on 2 workers."""
    return shared_rig(slots=4, workers=2, rows=128, **NEAR)


@pytest.fixture(scope="module")
def expected(single):
    return collect(single, lockstep=True)


# -- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize(("slots", "workers"), [(1, 1), (4, 1), (6, 1), (6, 2), (8, 3), (4, 4)])
def test_records_are_those_of_single_envs(shared_rig, expected, slots, workers, schedule):
    rig = shared_rig(slots=slots, workers=workers, rows=128, **BATCH, **NEAR)
    assert len({steps for *_, steps, _ in expected[1]}) > 2, "episodes end at different steps of a chunk"
    assert collect(rig, **schedule) == expected


@pytest.mark.parametrize(
    "job",
    [
        {"num_slots": 3},
        {"num_slots": 1},
        {"auto_reset": False},
        {"ignore_terminations": True},
        {"max_steps": 3},
        {"keep_records": False, "stream": Stream.EVAL_NOISE, "max_steps": 30},
    ],
    ids=str,
)
def test_every_setting_of_a_rollout_gives_what_single_envs_give(shared_rig, single, job):
    rig = shared_rig(slots=6, workers=2, rows=128, **BATCH, **NEAR)
    usual = collect(single, job)
    for schedule in ({"min_batch": 2}, {"lockstep": True, "stages": 2}):
        assert collect(rig, job, **schedule) == usual


@pytest.mark.parametrize("reward", [ShapedReward("sparse", 3.0), ShapedReward("dense", 2.0, use_rel_reward=True)])
def test_rewards_are_counted_as_in_single_envs(shared_rig, reward):
    one = shared_rig(slots=2, workers=2, reward=reward, **NEAR)
    rig = shared_rig(slots=4, workers=1, reward=reward, **BATCH, **NEAR)
    assert collect(rig, plan=make_plan(rig, 8)) == collect(one, plan=make_plan(one, 8))


@pytest.mark.parametrize("job", [{"value_truncated": True}, {"value_truncated": True, "value_terminated": True}])
def test_final_observations_are_those_of_the_step_that_ended_the_episode(shared_rig, job):
    """Also where the others of the batch go on to the end of the chunk."""
    options = {"rows": 128, "policy": {"value_head": True}, **NEAR}
    rig = shared_rig(slots=4, workers=1, **BATCH, **options)
    one = shared_rig(slots=4, workers=2, **options)
    found = []
    for each in (rig, one):
        results, _ = each.rollout().collect(make_plan(each), each.job(**job))
        arrays = each.slab.arrays
        ends = {r.episode.episode_id: r.final_row for r in results if r.final_row >= 0}
        assert any(r.num_steps % 4 and r.final_row >= 0 for r in results)
        names = (*each.env.spec.obs, "value")
        found.append({e: [arrays[name][row].tobytes() for name in names] for e, row in ends.items()})
    assert found[0] == found[1]


def test_videos_are_of_their_slots(make_rig, tmp_path):
    import imageio.v3 as iio

    rig = make_rig(slots=4, workers=2, size=32, success_distance=0.6, **BATCH)
    plan = with_videos(make_plan(rig, episodes=8), tmp_path / "videos", 8)
    results, stats = rig.rollout().collect(plan, rig.job())
    assert len(list((tmp_path / "videos").iterdir())) == 8
    for result in results:
        assert len(iio.imread(result.episode.video)) == 1 + result.num_steps
    assert stats.video_s > 0


def test_seconds_are_shares_of_the_rounds(make_rig):
    """Summed over the slots they are those of the worker, which steps all of them at the same time."""
    rig = make_rig(slots=4, workers=1, step_s=0.004, **BATCH)
    _, stats = rig.rollout(lockstep=True).collect(make_plan(rig, episodes=4), rig.job())
    assert stats.step_s >= 10 * 0.002
    assert stats.slot_s / 4 >= stats.step_s + stats.render_s + stats.reset_s
    assert 0 < stats.slot_idle_s < stats.slot_s


# -- rounds ----------------------------------------------------------------------------------------------------------


def told(log_dir: Path):
    """What the env of worker 0 was asked for, one line each."""
    return (log_dir / "worker-00.log").read_text(encoding="utf-8").split("\n")[:-1]


def reset(rig, slot, row, max_steps=9):
    rig.pool.send(Command(Kind.RESET, slot, next_row=row, task_id=0, init_state_id=0, seed=slot, max_steps=max_steps))


def step(rig, slot, row, next_row):
    rig.pool.send(Command(Kind.STEP, slot, row=row, next_row=next_row))


def slots_done(rig, count):
    events = rig.pool.recv(count)
    assert all(isinstance(event, Completion) for event in events)
    return [event.slot for event in events]


@pytest.fixture
def counted(make_rig, tmp_path):
    return make_rig(slots=3, workers=1, target="broken_batches.CountedEnv", pool={"batch": True}), tmp_path / "logs"


def test_a_round_steps_all_and_renders_once(counted):
    rig, logs = counted
    for slot in range(3):
        reset(rig, slot, slot, max_steps=6)
    assert slots_done(rig, 3) == [0, 1, 2]
    for slot in range(3):
        step(rig, slot, slot, 3 + slot)
    assert slots_done(rig, 3) == [0, 1, 2]
    assert told(logs) == ["reset 0 1 2", "observe 0 1 2", *["step 0 1 2"] * 4, "observe 0 1 2"]


def test_slots_that_are_not_active_get_the_neutral_action(make_rig):
    rig = make_rig(slots=4, workers=1, rows=128, target="broken_batches.WantsNeutralEnv", pool={"batch": True}, **NEAR)
    _, outcome, _ = collect(rig)
    assert any(steps % 4 for *_, steps, _ in outcome), "some episodes end inside a chunk"


def test_steps_wait_for_every_slot_in_the_middle_of_its_episode(counted):
    rig, logs = counted
    reset(rig, 0, 0)
    reset(rig, 1, 1)
    assert slots_done(rig, 2) == [0, 1]
    step(rig, 0, 0, 3)
    assert rig.pool.moving == set()
    reset(rig, 2, 2)  # goes ahead alone
    assert rig.pool.moving == {2}
    assert slots_done(rig, 1) == [2]
    step(rig, 2, 2, 5)
    assert rig.pool.recv(1, timeout=0.05) == []
    step(rig, 1, 1, 4)
    assert rig.pool.moving == {0, 1, 2}
    assert sorted(slots_done(rig, 3)) == [0, 1, 2]
    assert told(logs)[:4] == ["reset 0 1", "observe 0 1", "reset 2", "observe 2"]
    assert told(logs)[4:] == [*["step 0 1 2"] * 4, "observe 0 2 1"]


def test_resets_go_along_with_steps_that_are_whole(counted):
    rig, logs = counted
    reset(rig, 0, 0)
    assert slots_done(rig, 1) == [0]
    reset(rig, 1, 1)
    step(rig, 0, 0, 3)  # announced together
    assert sorted(slots_done(rig, 2)) == [0, 1]
    assert told(logs)[2:] == [*["step 0"] * 4, "reset 1", "observe 0 1"]


def test_a_slot_that_has_ended_is_not_active_and_nobody_waits_for_it(counted):
    rig, logs = counted
    reset(rig, 0, 0, max_steps=2)
    reset(rig, 1, 1, max_steps=9)
    slots_done(rig, 2)
    step(rig, 0, 0, -1)
    step(rig, 1, 1, 3)
    slots_done(rig, 2)
    assert told(logs)[2:] == ["step 0 1", "step 0 1", "step 1", "step 1", "observe 1"]
    step(rig, 1, 3, 4)
    assert slots_done(rig, 1) == [1]


def test_a_worker_hosts_neighbours():
    assert [slots_of(worker, slots=7, workers=3, batch=True) for worker in range(3)] == [(0, 1), (2, 3), (4, 5, 6)]


def test_two_stages_are_two_workers(make_rig):
    """While one simulates the policy answers the other: no policy call mixes their slots."""
    rig = make_rig(slots=4, workers=2, **BATCH)
    calls, answer = [], rig.policy.act
    rig.policy.act = lambda obs, uniform, sampling: (calls.append(len(uniform)), answer(obs, uniform, sampling))[1]
    sent, send = [], rig.pool.send
    rig.pool.send = lambda command, *rest: (sent.append((len(calls), command)), send(command, *rest))
    rig.rollout(lockstep=True, stages=2, policy_batch=2).collect(make_plan(rig, episodes=4), rig.job())
    together: dict[int, set[int]] = {}
    for call, command in sent:
        if command.kind == Kind.STEP:
            together.setdefault(call, set()).add(command.slot)
    assert set(map(frozenset, together.values())) == {frozenset({0, 1}), frozenset({2, 3})}


# -- failures --------------------------------------------------------------------------------------------------------


def kill_at(rig, number):
    """Kill worker 0 after the n-th command of the rollout."""
    send, count = rig.pool.send, 0

    def sending(command, *rest):
        nonlocal count
        send(command, *rest)
        count += 1
        if count == number:
            os.kill(rig.pool.pids[0], signal.SIGKILL)

    rig.pool.send = sending


@pytest.mark.parametrize("schedule", [{"min_batch": 3}, {"lockstep": True}, {"lockstep": True, "stages": 2}], ids=str)
@pytest.mark.parametrize("number", [1, 7, 23])
@BOTH_STARTS
def test_all_slots_of_a_killed_worker_are_redone(make_rig, expected, number, schedule):
    said: list[str] = []
    rig = make_rig(slots=6, workers=2, rows=128, max_restarts=3, say=said.append, **BATCH, **NEAR)
    kill_at(rig, number)
    results, stats = rig.rollout(**schedule).collect(make_plan(rig), rig.job())
    assert records(rig, results) == expected[0]
    assert stats.worker_restarts == 1
    assert re.search(r"env worker 0 \(pid \d+, slots \[0, 1, 2\]\) was killed by SIGKILL", said[0])


@pytest.mark.parametrize("fault", ["exception", "kill", "hang"])
def test_a_fault_in_a_round_is_redone(make_rig, tmp_path, expected, fault):
    said: list[str] = []
    rig = make_rig(
        slots=6, workers=2, rows=128, max_restarts=3, say=said.append, deadlines=Deadlines(30.0, 1.0, 1.0),
        target="broken_batches.FailsOnceTogether", pool={"batch": True}, marker=str(tmp_path / "failed"), fault=fault,
        **NEAR,
    )  # fmt: skip
    assert collect(rig, min_batch=2) == expected
    assert len(said) == 1
    assert {"exception": "told to fail in step", "kill": "SIGKILL", "hang": "in _misbehave"}[fault] in said[0]


def test_a_fault_that_comes_again_ends_the_run_with_its_traceback(make_rig):
    rig = make_rig(slots=3, workers=1, max_restarts=2, fault="exception", fault_step=1, **BATCH)
    with pytest.raises(WorkerDiedError, match="worker 0 has failed 3 times in a row") as failed:
        collect(rig)
    assert "told to fail in step" in failed.value.detail


def test_an_episode_that_ends_every_worker_ends_the_run(make_rig):
    """The others of its batch finish theirs in between."""
    rig = make_rig(slots=4, workers=2, rows=256, max_restarts=2, fault="kill", fault_task=1, fault_step=9, **BATCH)
    bad = next(e for e in make_plan(rig) if e.start.task_id == 1)
    good = [e for e in make_plan(rig, 64) if e.start.task_id == 0 and e.episode_id != bad.episode_id]
    with pytest.raises(WorkerDiedError, match=r"has ended 3 workers|failed 3 times in a row"):
        collect(rig, plan=[*good[:4], bad, *good[4:]])


def test_all_that_were_in_the_round_are_suspects(make_rig):
    rig = make_rig(slots=3, workers=1, max_restarts=1, fault="kill", fault_step=1, **BATCH)
    for slot in range(2):
        reset(rig, slot, slot)
    slots_done(rig, 2)
    for slot in range(2):
        step(rig, slot, slot, slot + 2)
    lost = [(event.slot, event.suspects) for event in rig.pool.recv(1) if isinstance(event, Lost)]
    assert lost == [(0, 2), (1, 2), (2, 0)]


def test_none_is_a_suspect_of_a_round_that_was_not_made(make_rig):
    rig = make_rig(slots=3, workers=1, max_restarts=1, **BATCH)
    for slot in range(2):
        reset(rig, slot, slot)
    slots_done(rig, 2)
    rig.pool.send(Command(Kind.STEP, 1, row=1, next_row=2))
    os.kill(rig.pool.pids[0], signal.SIGKILL)
    lost = [(event.slot, event.suspects) for event in rig.pool.recv(1) if isinstance(event, Lost)]
    assert lost == [(0, 0), (1, 0), (2, 0)], "it waited for slot 0"


def test_while_it_waits_for_the_policy_no_deadline_passes(make_rig):
    rig = make_rig(slots=2, workers=1, deadlines=Deadlines(30.0, 1.0, 1.0), **BATCH)
    for slot in range(2):
        reset(rig, slot, slot)
    slots_done(rig, 2)
    step(rig, 0, 0, 2)
    assert rig.pool.recv(1, timeout=2.2) == []
    step(rig, 1, 1, 3)
    assert sorted(slots_done(rig, 2)) == [0, 1]
    assert np.array_equal(rig.slab.arrays["num_steps"][:2], [4, 4])
