"""The observation after the last step of an episode: rendered and valued only where it was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import records

from embodied.runtime.plan import train_plan
from embodied.types import Sampling

VALUED = {"value_head": True}
CLOSE = {"slots": 4, "step_s": 0.0005, "success_distance": 0.6, "policy": VALUED}


def collect(rig, schedule=None, **job):
    plan = train_plan(rig.env.spec, seed=2, iteration=0, episodes=8, group_size=2)
    return rig.rollout(**(schedule or {})).collect(plan, rig.job(**job))[0]


def final_pictures(rig, result):
    cameras = range(len(rig.env.spec.cameras))
    return np.stack([rig.env.picture(result.episode.start, result.num_steps, camera) for camera in cameras])


@pytest.mark.parametrize("max_steps", [10, 8, 3])
def test_only_truncated_episodes_are_observed_at_their_end(shared_rig, max_steps):
    rig = shared_rig(workers=2, **CLOSE)
    results = collect(rig, max_steps=max_steps, value_truncated=True)
    assert {result.truncated for result in results} == {True, False}
    for result in results:
        assert (result.final_row >= 0) == result.truncated
        if result.truncated:
            assert np.array_equal(rig.slab.arrays["images"][result.final_row], final_pictures(rig, result))


def test_terminated_episodes_too_if_that_is_asked_for(shared_rig):
    rig = shared_rig(workers=2, **CLOSE)
    results = collect(rig, value_truncated=True, value_terminated=True)
    assert any(result.terminated for result in results)
    for result in results:
        assert np.array_equal(rig.slab.arrays["images"][result.final_row], final_pictures(rig, result))


def test_nothing_is_observed_at_the_end_unless_asked(shared_rig):
    rig = shared_rig(workers=2, **CLOSE)
    assert {result.final_row for result in collect(rig)} == {-1}


def test_final_rows_carry_a_value_and_no_record(shared_rig):
    rig = shared_rig(workers=2, **CLOSE)
    arrays = rig.slab.arrays
    arrays["actions"][:] = 77
    results = collect(rig, value_truncated=True)
    taken = [row for result in results for row in result.rows]
    finals = [result.final_row for result in results if result.final_row >= 0]
    assert len(set(taken + finals)) == len(taken) + len(finals)
    assert (arrays["num_steps"][finals] == 0).all()
    assert (arrays["actions"][finals] == 77).all()
    ended = [result for result in results if result.final_row >= 0]
    tasks = [result.episode.start.task_id for result in ended]
    assert set(tasks) == {0, 1}
    assert arrays["task_id"][finals].tolist() == tasks
    assert arrays["episode_id"][finals].tolist() == [result.episode.episode_id for result in ended]
    assert arrays["t"][finals].tolist() == [len(result.rows) for result in ended]
    assert (arrays["version"][finals] == 5).all()
    obs = {name: torch.from_numpy(arrays[name][finals]) for name in ("images", "state")}
    obs["task"] = torch.tensor(tasks)
    with torch.no_grad():
        expected = rig.policy.act(obs, torch.zeros(len(finals), 28), Sampling()).fields["value"]
    np.testing.assert_allclose(arrays["value"][finals], expected.numpy(), rtol=1e-5, atol=1e-6)


def test_the_rows_are_just_enough_and_all_come_back(make_rig):
    rig = make_rig(slots=2, workers=1, rows=8 * 4, policy=VALUED)
    for _ in range(2):
        results = collect(rig, max_steps=12, value_truncated=True)
        assert sorted([row for r in results for row in (*r.rows, r.final_row)]) == list(range(32))


def test_records_are_those_of_a_rollout_that_observes_no_end(shared_rig):
    rig = shared_rig(workers=2, **CLOSE)
    assert records(rig, collect(rig)) == records(rig, collect(rig, value_truncated=True))


@pytest.mark.parametrize(
    ("workers", "schedule", "num_slots"),
    [(1, {"lockstep": True}, 4), (2, {"min_batch": 1}, 4), (4, {"min_batch": 2}, 3), (2, {"min_batch": 1}, 1)],
)
def test_no_schedule_changes_a_bit_of_a_final_value(shared_rig, workers, schedule, num_slots):
    def values(rig, **options):
        results = collect(rig, **options, value_truncated=True)
        finals = {r.episode.episode_id: rig.slab.arrays["value"][r.final_row].tobytes() for r in results if r.truncated}
        return records(rig, results), finals

    reference = values(shared_rig(workers=2, **CLOSE), schedule={"lockstep": True})
    assert values(shared_rig(workers=workers, **CLOSE), schedule=schedule, num_slots=num_slots) == reference
