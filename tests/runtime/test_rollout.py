"""The scheduler on real workers: whatever the order in which they finish, the records are those of the plan."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from rig import records

from embodied.errors import ConfigError
from embodied.random import Stream
from embodied.runtime.channel import Kind
from embodied.runtime.plan import noise, train_plan
from embodied.runtime.rollout import rollout
from embodied.runtime.rollout.rollout import RolloutStats
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import EpisodeResult, Noise, Sampling

STEP_S = 0.0005


def make_plan(rig, episodes=8, group_size=2, iteration=0):
    return train_plan(rig.env.spec, seed=23, iteration=iteration, episodes=episodes, group_size=group_size)


@pytest.fixture
def rig(shared_rig):
    """4 slots on 2 workers, success within reach, steps of random length."""
    return shared_rig(slots=4, workers=2, step_s=STEP_S, success_distance=0.6)


def pictures(rig, result):
    """What FakeEnv draws at the start of each chunk of an episode."""
    start, cameras = result.episode.start, range(len(rig.env.spec.cameras))
    return [
        np.stack([rig.env.picture(start, 4 * t, camera) for camera in cameras])
        for t in range(-(-result.num_steps // 4))
    ]


def test_every_episode_of_the_plan_is_run_once_and_in_its_order(rig):
    plan = make_plan(rig)
    seen: list[EpisodeResult] = []
    results, stats = rig.rollout().collect(plan, rig.job(), seen.append)
    assert [result.episode for result in results] == plan
    assert sorted(result.episode.episode_id for result in seen) == list(range(8))
    assert stats.env_steps == sum(result.num_steps for result in results)
    assert stats.chunks == sum(len(result.rows) for result in results)
    assert stats.chunks / 4 <= stats.policy_calls <= stats.chunks
    assert stats.policy_rows == stats.chunks, "each observation is answered once"
    assert stats.step_s >= stats.env_steps * STEP_S / 2


def test_counts_begin_at_nothing():
    assert set(asdict(RolloutStats()).values()) == {0}


def test_rows_are_unique_and_keys_say_whose_they_are(rig):
    results, _ = rig.rollout().collect(make_plan(rig), rig.job(version=9))
    rows = [row for result in results for row in result.rows]
    assert len(rows) == len(set(rows))
    arrays = rig.slab.arrays
    for result in results:
        own = list(result.rows)
        assert arrays["t"][own].tolist() == list(range(len(own)))
        assert set(arrays["episode_id"][own]) == {result.episode.episode_id}
        assert set(arrays["task_id"][own]) == {result.episode.start.task_id}
        assert set(arrays["version"][own]) == {9}


def test_records_hold_the_observations_of_their_start_and_step(rig):
    results, _ = rig.rollout().collect(make_plan(rig), rig.job())
    assert any(len(result.rows) > 1 for result in results)
    for result in results:
        expected = pictures(rig, result)
        assert len(result.rows) == len(expected)
        assert np.array_equal(rig.slab.arrays["images"][list(result.rows)], expected)


def test_actions_executed_are_the_tokens_drawn_from_the_keyed_noise(rig):
    import torch

    results, _ = rig.rollout().collect(make_plan(rig), rig.job())
    arrays = rig.slab.arrays
    chunks = [(result.episode.episode_id, t, row) for result in results for t, row in enumerate(result.rows)]
    assert max(t for _, t, _ in chunks) == 2
    for episode_id, t, row in chunks:
        uniform = torch.from_numpy(noise(7, Stream.TRAIN_NOISE, episode_id, t, Noise((28,))))[None]
        obs = {name: torch.from_numpy(arrays[name][[row]]) for name in ("images", "state")}
        obs["task"] = torch.from_numpy(arrays["task_id"][[row]]).long()
        fields = rig.policy.act(obs, uniform, Sampling()).fields
        assert fields["action_tokens"][0].tolist() == arrays["action_tokens"][row].tolist()
        assert np.array_equal(fields["actions"][0].numpy(), arrays["actions"][row])


def test_success_ends_an_episode_early_and_rewards_stop_with_it(rig):
    results, _ = rig.rollout().collect(make_plan(rig), rig.job(max_steps=14))
    arrays = rig.slab.arrays
    done = [result for result in results if result.success]
    assert done, "this seed has successes"
    assert any(result.num_steps < 14 for result in done)
    for result in results:
        own = list(result.rows)
        steps = arrays["num_steps"][own]
        assert steps.sum() == result.num_steps
        assert (steps[:-1] == 4).all()
        executed = np.arange(4) < steps[:, None]
        assert (arrays["rewards"][own][~executed] == 0).all()
        assert (arrays["rewards"][own][executed] > 0).all()
        assert result.episode_return == pytest.approx(arrays["rewards"][own].sum(dtype=np.float64))
        assert result.terminated == result.success
        assert result.truncated == (result.num_steps == 14 and not result.success)
        assert arrays["terminated"][own].tolist() == [False] * (len(own) - 1) + [result.terminated]
        assert arrays["truncated"][own].tolist() == [False] * (len(own) - 1) + [result.truncated]


@pytest.mark.parametrize(("max_steps", "lengths"), [(10, [4, 4, 2]), (8, [4, 4]), (3, [3]), (1, [1])])
def test_truncation_comes_at_the_step_limit(shared_rig, max_steps, lengths):
    rig = shared_rig(slots=2, workers=2)
    results, _ = rig.rollout().collect(make_plan(rig, episodes=4), rig.job(max_steps=max_steps))
    for result in results:
        assert rig.slab.arrays["num_steps"][list(result.rows)].tolist() == lengths
        assert (result.truncated, result.terminated, result.num_steps) == (True, False, max_steps)


def test_ignored_terminations_run_to_the_limit_and_remember_success(rig):
    plan = make_plan(rig)
    usual, _ = rig.rollout().collect(plan, rig.job())
    results, _ = rig.rollout().collect(plan, rig.job(ignore_terminations=True))
    assert {result.num_steps for result in results} == {10}
    assert not any(result.terminated for result in results)
    assert any(result.success for result in usual)
    assert all(result.success for result, early in zip(results, usual, strict=True) if early.success)


def test_evaluation_recycles_two_rows_a_slot(make_rig):
    rig = make_rig(slots=2, workers=1, rows=4)
    plan = make_plan(rig, episodes=10)
    results, stats = rig.rollout().collect(plan, rig.job(keep_records=False, max_steps=30, stream=Stream.EVAL_NOISE))
    assert [result.episode for result in results] == plan
    assert {result.rows for result in results} == {()}
    assert stats.chunks == 10 * 8
    with pytest.raises(ConfigError, match="10 episodes of 30 control steps need 80 rows and the slab has 4"):
        rig.rollout().collect(plan, rig.job(max_steps=30))


def test_evaluation_and_training_give_the_same_episodes(rig):
    plan = make_plan(rig)
    kept, _ = rig.rollout().collect(plan, rig.job())
    recycled, _ = rig.rollout().collect(plan, rig.job(keep_records=False))
    assert [(r.episode_return, r.num_steps) for r in kept] == [(r.episode_return, r.num_steps) for r in recycled]


def spans(rig, plan, job):
    """For each episode of the plan, the commands of the run between which it ran, from what was sent to the pool."""
    sent, send = [], rig.pool.send
    rig.pool.send = lambda command, *rest: (sent.append(command), send(command, *rest))
    try:
        rig.rollout().collect(plan, job)
    finally:
        del rig.pool.send
    return sent


def test_num_slots_limits_the_slots_in_use(rig):
    for limit, expected in ((1, {0}), (3, {0, 1, 2}), (9, {0, 1, 2, 3})):
        sent = spans(rig, make_plan(rig), rig.job(num_slots=limit))
        assert {command.slot for command in sent} == expected


def test_without_auto_reset_slots_start_together(rig):
    sent = spans(rig, make_plan(rig, episodes=12), rig.job(auto_reset=False))
    resets = [i for i, command in enumerate(sent) if command.kind == 1]
    assert len(resets) == 12
    waves = [resets[i : i + 4] for i in range(0, 12, 4)]
    for wave in waves:
        assert wave == list(range(wave[0], wave[0] + 4)), "no chunk is sent between the resets of a wave"


def test_with_auto_reset_a_slot_goes_on_at_once(rig):
    sent = spans(rig, make_plan(rig, episodes=12), rig.job())
    resets = [i for i, command in enumerate(sent) if command.kind == 1]
    assert any(later - earlier > 1 for earlier, later in pairwise(resets[4:]))


@pytest.mark.parametrize("schedule", [{}, {"lockstep": True}, {"lockstep": True, "stages": 2}])
def test_a_slot_whose_episode_ended_is_being_reset_while_the_policy_answers_others(rig, monkeypatch, schedule):
    given = announced = ended = meanwhile = 0
    send, flush, recv, act = rig.pool.send, rig.pool.flush, rig.pool.recv, rig.policy.act

    def sends(command, *rest):
        nonlocal given
        given += command.kind == Kind.RESET
        send(command, *rest)

    def flushes():
        nonlocal announced
        announced = given
        flush()

    def receives(*args):
        nonlocal ended
        events = recv(*args)
        ended += sum(event.ended for event in events)
        return events

    def acts(*args):
        nonlocal meanwhile
        assert announced == min(12, 4 + ended), "so many resets were to be under way"
        meanwhile += announced > 4
        return act(*args)

    for owner, name, new in ((rig.pool, "send", sends), (rig.pool, "flush", flushes), (rig.pool, "recv", receives)):
        monkeypatch.setattr(owner, name, new)
    monkeypatch.setattr(rig.policy, "act", acts)
    rig.rollout(**schedule).collect(make_plan(rig, episodes=12), rig.job(max_steps=14))
    assert meanwhile > 0


def test_a_min_batch_is_kept_while_enough_slots_run(rig):
    seen = []
    rollout = rig.rollout(min_batch=3, policy_batch=4)
    act = rig.policy.act
    rig.policy.act = lambda obs, uniform, sampling: (seen.append(len(uniform)), act(obs, uniform, sampling))[1]
    try:
        _, stats = rollout.collect(make_plan(rig, episodes=4), rig.job())
    finally:
        rig.policy.act = act
    assert set(seen) == {4}, "short batches are filled up to one fixed shape"
    assert stats.policy_calls == len(seen)


def test_unfixed_shapes_are_as_large_as_what_is_ready(rig):
    seen, act = [], rig.policy.act
    rig.policy.act = lambda obs, uniform, sampling: (seen.append(len(uniform)), act(obs, uniform, sampling))[1]
    try:
        _, stats = rig.rollout(lockstep=True, policy_batch=3, fixed_shape=False).collect(make_plan(rig), rig.job())
    finally:
        rig.policy.act = act
    assert seen[:2] == [3, 1]
    assert sum(seen) == stats.chunks


@pytest.fixture(scope="module")
def reference(shared_rig):
    """One worker, lockstep: the order in which everything happens is fixed."""
    rig = shared_rig(slots=4, workers=1, step_s=STEP_S, success_distance=0.6)
    results, _ = rig.rollout(lockstep=True).collect(make_plan(rig), rig.job())
    return records(rig, results)


@pytest.mark.parametrize(
    ("workers", "schedule", "num_slots"),
    [
        (1, {"lockstep": True}, 4),
        (1, {"min_batch": 1}, 4),
        (2, {"lockstep": True}, 4),
        (2, {"min_batch": 1}, 4),
        (2, {"min_batch": 3}, 4),
        (2, {"min_batch": 1}, 2),
        (4, {"lockstep": True}, 4),
        (4, {"min_batch": 1}, 4),
        (4, {"min_batch": 2}, 1),
    ],
)
def test_no_schedule_changes_a_bit_of_any_record(shared_rig, reference, workers, schedule, num_slots):
    rig = shared_rig(slots=4, workers=workers, step_s=STEP_S, success_distance=0.6)
    results, _ = rig.rollout(**schedule).collect(make_plan(rig), rig.job(num_slots=num_slots))
    got = records(rig, results)
    assert got.keys() == reference.keys()
    differing = {(key, name) for key in got for name in got[key] if got[key][name] != reference[key][name]}
    assert not differing


@pytest.mark.parametrize("policy_batch", [1, 2, 3])
def test_no_schedule_changes_a_bit_with_small_policy_batches(shared_rig, policy_batch):
    """MKL has kernels of their own for few rows."""
    rig = shared_rig(slots=4, workers=2, step_s=STEP_S, success_distance=0.6)
    runs = []
    for schedule in ({"lockstep": True}, {"min_batch": 1}, {"min_batch": 3}):
        results, _ = rig.rollout(policy_batch=policy_batch, **schedule).collect(make_plan(rig), rig.job())
        runs.append(records(rig, results))
    assert runs[0] == runs[1] == runs[2]


def test_another_seed_version_of_noise_or_iteration_changes_records(rig, reference):
    changed = [
        rig.rollout().collect(make_plan(rig), rig.job(seed=8)),
        rig.rollout().collect(make_plan(rig), rig.job(stream=Stream.EVAL_NOISE)),
        rig.rollout().collect(make_plan(rig, iteration=1), rig.job()),
    ]
    tokens = {key: record["action_tokens"] for key, record in reference.items()}
    for results, _ in changed:
        assert {key: record["action_tokens"] for key, record in records(rig, results).items()} != tokens


def test_the_reward_rule_is_that_of_the_pool(make_rig):
    rig = make_rig(slots=2, workers=1, success_distance=0.6, reward=ShapedReward("sparse", reward_coef=3.0))
    results, _ = rig.rollout().collect(make_plan(rig), rig.job())
    assert {result.episode_return for result in results} == {0.0, 3.0}
    assert all((result.episode_return == 3.0) == result.success for result in results)


def test_the_reward_rule_of_an_evaluation_is_its_own(make_rig):
    rewards = {"reward": ShapedReward("dense"), "pool": {"eval_reward": ShapedReward("sparse", reward_coef=3.0)}}
    rig = make_rig(slots=2, workers=1, success_distance=0.6, **rewards)
    (trained, _), (evaluated, _) = (
        rig.rollout().collect(make_plan(rig), rig.job(stream=stream, keep_records=False))
        for stream in (Stream.TRAIN_NOISE, Stream.EVAL_NOISE)
    )
    assert {result.episode_return for result in evaluated} == {0.0, 3.0}
    assert not {result.episode_return for result in trained} & {0.0, 3.0}


def test_a_recorded_episode_leaves_a_video(make_rig, tmp_path):
    from embodied.runtime.plan import with_videos

    rig = make_rig(slots=2, workers=2)
    plan = with_videos(make_plan(rig, episodes=4), tmp_path / "videos", 2)
    results, stats = rig.rollout().collect(plan, rig.job())
    made = sorted(path.name for path in (tmp_path / "videos").iterdir())
    assert made == sorted(str(r.episode.video).rpartition("/")[2] for r in results if r.episode.video)
    assert len(made) == 2
    assert stats.video_s > 0


def test_the_share_that_is_done_is_told_while_it_goes_on(rig, monkeypatch):
    monkeypatch.setattr(rollout, "SHARE_INTERVAL_S", 0.0)
    shares: list[float] = []
    rig.rollout().collect(make_plan(rig), rig.job(), on_share=shares.append)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.5 < shares[-1] <= 1
