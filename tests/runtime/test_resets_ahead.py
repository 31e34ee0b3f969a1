"""Slots that are reset before their episodes are asked for: the same records, the same counts, sooner."""

from __future__ import annotations

import time

import pytest
from rig import records
from robot_envs import Helped, resets

from embodied.errors import WorkerError
from embodied.runtime.plan import train_plan


def plan_of(rig, iteration, episodes=4):
    return train_plan(rig.env.spec, seed=0, iteration=iteration, episodes=episodes, group_size=2)


@pytest.mark.parametrize(("slots", "workers"), [(2, 2), (3, 1)])
def test_the_records_are_those_without(make_rig, slots, workers):
    plain, ahead = (make_rig(slots=slots, workers=workers, horizon=8) for _ in range(2))
    expected, usual = plain.rollout().collect(plan_of(plain, 1), plain.job(num_slots=slots))
    rollout = ahead.rollout()
    rollout.collect(plan_of(ahead, 0), ahead.job(num_slots=slots))
    rollout.keep([])
    rollout.reset_ahead(plan_of(ahead, 1), ahead.job(num_slots=slots))
    assert not ahead.slab.arrays["t"][0] or not rollout.records.leased, "no row is taken yet"
    found, stats = rollout.collect(plan_of(ahead, 1), ahead.job(num_slots=slots))
    assert records(ahead, found) == records(plain, expected)
    assert (stats.env_steps, stats.chunks) == (usual.env_steps, usual.chunks)


def test_a_slot_whose_episode_is_not_asked_for_takes_another(make_rig):
    plain, ahead = make_rig(), make_rig()
    expected, _ = plain.rollout().collect(plan_of(plain, 2), plain.job())
    rollout = ahead.rollout()
    rollout.reset_ahead(plan_of(ahead, 1), ahead.job())
    found, _ = rollout.collect(plan_of(ahead, 2), ahead.job())
    assert records(ahead, found) == records(plain, expected)


def test_a_reset_goes_on_while_something_else_is_done_and_is_not_made_twice(make_rig, tmp_path):
    rig = make_rig(
        slots=1, workers=1, target="robot_envs.Helped", kind=Helped, folder=str(tmp_path), pool={"safe_stop_s": 20.0},
        num_tasks=1, horizon=8, reset_s=0.5, helped=0,
    )  # fmt: skip
    rollout, plan = rig.rollout(), plan_of(rig, 0, episodes=2)
    rollout.reset_ahead(plan, rig.job(retry_safe=False))
    time.sleep(0.7)
    waited = time.monotonic()
    rollout.collect(plan, rig.job(retry_safe=False))
    made = resets(tmp_path)
    assert [line[:3] for line in made] == [
        (episode.start.task_id, episode.start.init_state_id, episode.start.seed) for episode in plan
    ]
    assert made[0][4] <= waited <= made[1][3], "the first one was over before it was waited for"


def test_a_robot_that_is_lost_on_its_way_ends_the_rollout(make_rig, tmp_path):
    rig = make_rig(
        slots=1, workers=1, target="robot_envs.Robot", folder=str(tmp_path), pool={"safe_stop_s": 20.0}, num_tasks=1,
        horizon=8, refuses=True,
    )  # fmt: skip
    rollout = rig.rollout()
    rollout.reset_ahead(plan_of(rig, 0, 2), rig.job(retry_safe=False))
    with pytest.raises(Exception, match="the gripper is not mounted") as failed:
        rollout.collect(plan_of(rig, 0, 2), rig.job(retry_safe=False))
    assert not isinstance(failed.value, WorkerError)
    assert not rollout.records.leased
