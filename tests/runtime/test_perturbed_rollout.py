"""Perturbed episodes through real workers: the same numbers whoever runs them, and nothing of it in other episodes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from rig import records

from embodied.perturbations import Condition, Perturbation
from embodied.random import Stream
from embodied.runtime.plan import randomised, train_plan, under_conditions, with_videos

BY = {
    "cameras": Perturbation(camera_move=0.05, camera_turn=3.0),
    "pictures": Perturbation(brightness=0.3, contrast=0.2, blur=0.1, noise=0.1, dropped_frames=0.4),
    "late": Perturbation(latency=3),
    "actions": Perturbation(action_delay=2, action_noise=0.3, gripper_delay=3),
    "all": Perturbation(noise=0.05, latency=5, dropped_frames=0.3, action_delay=1, action_noise=0.1, gripper_delay=1),
}
CONDITIONS = [Condition(kind, "some", by) for kind, by in BY.items()]
STILL = [condition for condition in CONDITIONS if condition.kind != "cameras"]  # for envs that cannot move them
NEAR = {"success_distance": 0.6, "rows": 128}


def plan(rig, conditions=CONDITIONS, starts=3):
    base = train_plan(rig.env.spec, seed=3, iteration=0, episodes=starts, group_size=1)
    return under_conditions(base, conditions)


def collect(rig, episodes, job=None, **schedule):
    """``(records, returns and lengths, final observations)`` under episode ids."""
    results, _ = rig.rollout(**schedule).collect(episodes, rig.job(**(job or {})))
    found = [(r.episode.episode_id, r.episode_return, r.success, r.num_steps) for r in results]
    ends = {r.episode.episode_id: r.final_row for r in results if r.final_row >= 0}
    finals = {e: [rig.slab.arrays[name][row].tobytes() for name in rig.env.spec.obs] for e, row in ends.items()}
    return records(rig, results), found, finals


@pytest.fixture(scope="module")
def expected(shared_rig):
    rig = shared_rig(slots=2, workers=1, **NEAR)
    return collect(rig, plan(rig))


@pytest.mark.parametrize(
    ("slots", "workers", "schedule"),
    [(3, 3, {"min_batch": 1}), (3, 3, {"min_batch": 3}), (4, 2, {"lockstep": True}), (1, 1, {"min_batch": 1})],
    ids=str,
)
def test_records_do_not_depend_on_workers_or_order(shared_rig, expected, slots, workers, schedule):
    rig = shared_rig(slots=slots, workers=workers, **NEAR)
    assert collect(rig, plan(rig), **schedule) == expected
    assert collect(rig, plan(rig)[::-1], **schedule)[0] == expected[0]


@pytest.mark.parametrize("schedule", [{"min_batch": 1}, {"lockstep": True}], ids=str)
def test_a_batch_of_slots_gives_what_single_envs_give(shared_rig, schedule):
    options = {"policy": {"value_head": True}, **NEAR}
    single = shared_rig(slots=2, workers=1, **options)
    batch = shared_rig(slots=4, workers=1, target="embodied.testing.FakeBatchEnv", pool={"batch": True}, **options)
    for job in ({}, {"value_truncated": True, "value_terminated": True}, {"max_steps": 7, "value_truncated": True}):
        found = collect(batch, plan(batch, STILL), job, **schedule)
        assert found == collect(single, plan(single, STILL), job)
        assert bool(found[2]) == bool(job)


def test_unperturbed_episodes_beside_perturbed_ones_are_those_of_a_plan_without(shared_rig, expected):
    rig = shared_rig(slots=2, workers=1, **NEAR)
    alone, outcome, _ = collect(rig, plan(rig, []))
    assert {key: expected[0][key] for key in alone} == alone
    assert expected[1][: len(outcome)] == outcome


def test_what_the_policy_sees_and_what_is_executed(shared_rig):
    """The fake env's second colour is the control step, its state the way to the goal."""
    rig = shared_rig(slots=2, workers=2, rows=64)
    seen = {}
    for condition in [None, *CONDITIONS]:
        episodes = plan(rig, [condition] if condition else [], 1)[-1:]
        results, _ = rig.rollout().collect(episodes, rig.job(max_steps=16))
        seen[condition.kind if condition else "none"] = [
            {name: rig.slab.arrays[name][row].copy() for name in ("images", "state", "actions")}
            for row in results[0].rows
        ]
    steps = {kind: [int(one["images"][0, 0, 0, 1]) for one in rows] for kind, rows in seen.items()}
    assert steps["none"] == steps["cameras"] == steps["actions"] == [0, 4, 8, 12]
    assert steps["late"] == [0, 1, 5, 9]
    moved, still = (seen[kind][0]["images"][:, 0, 0, 2].astype(int) for kind in ("cameras", "none"))
    assert (moved != still).all()
    assert len(np.unique(seen["pictures"][0]["images"])) > 50
    points = [row["state"][:2] for row in seen["actions"]]  # the way to the goal
    decided = np.concatenate([row["actions"][:, :2] for row in seen["actions"]])
    made = (points[0] - points[1]) / 0.1  # of the first chunk: two neutral actions, then the first two decided ones
    assert np.abs(made - decided[:2].clip(-1, 1).sum(axis=0)).max() < 3  # the rest is noise of 0.3
    assert np.abs(made - decided[:4].clip(-1, 1).sum(axis=0)).max() > 1e-3


@pytest.mark.parametrize("target", ["broken_envs.SlowToDraw", "broken_batches.SlowToDrawTogether"])
def test_what_is_rendered_for_later_counts_as_rendering(shared_rig, target):
    rig = shared_rig(slots=2, workers=1, target=target, pool={"batch": "Together" in target})
    condition = Condition("late", "1", Perturbation(latency=1))
    _, stats = rig.rollout().collect(plan(rig, [condition], 2)[-2:], rig.job(max_steps=16))
    assert stats.render_s >= 2 * 4 * 0.005  # the first observation, and one in each chunk but the last
    assert stats.step_s < stats.render_s / 2


def test_delayed_actions_move_the_point_exactly_as_later_ones(shared_rig):
    rig = shared_rig(slots=1, workers=1, rows=64)
    condition = Condition("delay", "3", Perturbation(action_delay=3))
    results, _ = rig.rollout().collect(plan(rig, [condition], 1)[-1:], rig.job(max_steps=16))
    rows = list(results[0].rows)
    decided = np.concatenate([rig.slab.arrays["actions"][row][:, :2] for row in rows]).clip(-1, 1)
    ways = np.stack([rig.slab.arrays["state"][row][:2] for row in rows])
    executed = np.concatenate([np.zeros((3, 2)), decided])[:12].reshape(3, 4, 2).sum(axis=1)
    assert (ways[:-1] - ways[1:]) / 0.1 == pytest.approx(executed, abs=1e-4)


@pytest.mark.parametrize("interval", [1, None])
def test_a_video_shows_the_scene_and_no_effect_of_pictures(make_rig, tmp_path: Path, interval: int | None):
    """It is drawn from the env, whose camera may have been moved; light, noise and latency are not in it."""
    rig = make_rig(slots=1, workers=1, size=32)
    conditions = [CONDITIONS[1], CONDITIONS[4], CONDITIONS[0]]
    episodes = with_videos(plan(rig, conditions, 1), tmp_path, 4)
    results, _ = rig.rollout().collect(episodes, rig.job(info_on_video=False, frame_interval=interval))
    clean, pictures, everything, moved = (iio.imread(result.episode.video) for result in results)
    assert len(clean) == (11 if interval else 4)
    assert np.array_equal(clean, pictures)
    assert np.array_equal(clean, everything)
    assert np.abs(clean.astype(int) - moved).max() > 8


def test_a_redone_episode_is_perturbed_in_the_same_way(make_rig):
    """Its worker is killed once in its midst."""
    rig = make_rig(slots=2, workers=2, max_restarts=3, **NEAR)
    undisturbed = collect(rig, plan(rig))
    chosen, killed = rig.pool.pids[0], []

    def kill(result):
        if not killed:
            killed.append(result)
            os.kill(chosen, signal.SIGKILL)

    results, stats = rig.rollout().collect(plan(rig), rig.job(), kill)
    assert stats.worker_restarts == 1
    assert records(rig, results) == undisturbed[0]


def test_the_episodes_of_a_group_share_their_condition_and_its_draws(shared_rig):
    rig = shared_rig(slots=2, workers=1, **NEAR)
    base = train_plan(rig.env.spec, seed=3, iteration=0, episodes=80, group_size=4)
    drawn = randomised(base, CONDITIONS, 0.25, seed=9)
    assert [(e.episode_id, e.group_id, e.start) for e in drawn] == [(e.episode_id, e.group_id, e.start) for e in base]
    groups = [drawn[i : i + 4] for i in range(0, 80, 4)]
    assert all(len({episode.perturbed for episode in group}) == 1 for group in groups)
    kinds = [group[0].perturbed.condition.kind if group[0].perturbed else None for group in groups]
    assert None in kinds
    assert len(set(kinds)) > 3
    assert drawn == randomised(base, CONDITIONS, 0.25, seed=9) != randomised(base, CONDITIONS, 0.25, seed=10)
    later = train_plan(rig.env.spec, seed=3, iteration=1, episodes=80, group_size=4)
    assert kinds != [e.perturbed and e.perturbed.condition.kind for e in randomised(later, CONDITIONS, 0.25, 9)[::4]]


def test_a_share_of_the_groups_stays_as_it_is(shared_rig):
    rig = shared_rig(slots=2, workers=1, **NEAR)
    base = train_plan(rig.env.spec, seed=3, iteration=0, episodes=2000, group_size=1)
    stay = [episode.perturbed is None for episode in randomised(base, CONDITIONS, 0.2, seed=9)]
    assert np.mean(stay) == pytest.approx(0.2, abs=0.03)
    assert not any(episode.perturbed is None for episode in randomised(base, CONDITIONS, 0.0, seed=9))


def test_evaluations_and_trainings_draw_other_numbers(shared_rig):
    rig = shared_rig(slots=2, workers=1, **NEAR)
    episodes = plan(rig, CONDITIONS[1:2], 1)[-1:]
    of_training, of_evaluation = (
        collect(rig, episodes, {"stream": stream}) for stream in (Stream.TRAIN_NOISE, Stream.EVAL_NOISE)
    )
    first = next(iter(of_training[0]))
    assert of_training[0][first]["images"] != of_evaluation[0][first]["images"]
