"""The books of a rollout, entry by entry: no worker, no policy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from embodied.instructions import FAILURES
from embodied.random import Stream
from embodied.runtime.channel import Completion, Kind
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.episodes import Episodes, Job
from embodied.runtime.slab import INFO, Slab, info_fields, runtime_fields
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import Episode, Sampling, Start

K = 4  # actions of a record
PLAN = [Episode(number, number // 2, Start(number % 2, number, 7)) for number in range(4)]


@pytest.fixture
def store() -> Iterator[RecordStore]:
    told = info_fields({FAILURES: "verdicts that failed"})
    slab = Slab.create({**FakeEnv().spec.obs, **FakePolicy().spec.decision, **runtime_fields(K), **told}, 16)
    yield RecordStore(slab)
    slab.close()


def books(store: RecordStore, **more: object) -> Episodes:
    job = {"sampling": Sampling(), "seed": 7, "stream": Stream.TRAIN_NOISE, "version": 5, "max_steps": 8,
           "keep_records": True, "num_slots": 2, **more}  # fmt: skip
    return Episodes(PLAN, Job(**job), store, K)  # type: ignore[arg-type]


def begin(episodes: Episodes, slot: int = 0, index: int = 0) -> None:
    episodes.start(slot, index)
    assert episodes.book(Completion(Kind.RESET, slot, reset_s=1.0)) is None


def chunk(episodes: Episodes, rewards: list[float], slot: int = 0, ended: bool = False, success: bool = False):
    row = episodes.request(slot).row
    episodes.step(slot)
    arrays = episodes._records.arrays
    arrays["rewards"][row] = np.array(rewards, np.float32)
    arrays["success"][row], arrays["terminated"][row], arrays["truncated"][row] = success, ended, False
    return episodes.book(
        Completion(Kind.STEP, slot, num_steps=len(rewards), ended=ended, observed=not ended, step_s=2.0)
    )


def test_a_return_is_summed_in_float64(store):
    """2²⁴ + 1 is no float32; the return is what advantages make of the same rewards."""
    episodes = books(store)
    begin(episodes)
    chunk(episodes, [2.0**24, 1.0, 1.0, 1.0])
    result = chunk(episodes, [1.0, 1.0, 0.0, 0.0], ended=True)
    assert result.episode_return == 2.0**24 + 5
    assert len(result.rows) == 2


def test_an_episode_has_succeeded_if_one_of_its_chunks_has(store):
    episodes = books(store)
    begin(episodes)
    chunk(episodes, [0.0] * K, success=True)
    assert chunk(episodes, [0.0] * K, ended=True).success
    begin(episodes)
    chunk(episodes, [0.0] * K)
    assert not chunk(episodes, [0.0] * K, ended=True).success


def test_the_share_counts_steps_of_those_that_run_and_whole_episodes_that_ended_early(store):
    episodes = books(store)
    assert episodes.share == 0.0
    begin(episodes)
    chunk(episodes, [0.0] * K)
    assert episodes.share == pytest.approx(0.5 / 4)
    begin(episodes, slot=1)
    chunk(episodes, [0.0] * K, slot=1, ended=True)
    assert episodes.share == pytest.approx(1.5 / 4)


def test_an_episode_whose_worker_failed_comes_next_and_leaves_nothing(store):
    episodes = books(store)
    free = store.free
    begin(episodes, index=2)
    chunk(episodes, [0.0] * K)
    assert episodes.requeue(0) == PLAN[2]
    assert episodes.pending == [PLAN[2], PLAN[0], PLAN[1], PLAN[3]]
    assert store.free == free
    assert (episodes.stats.chunks, episodes.stats.reset_s) == (0, 0.0), "only attempts that ran to their end count"
    begin(episodes)
    result = chunk(episodes, [1.0] * K, ended=True)
    assert (result.episode, result.episode_return) == (PLAN[2], 4.0)
    assert (episodes.stats.chunks, episodes.stats.env_steps, episodes.stats.reset_s) == (1, K, 1.0)
    assert episodes.requeue(1) is None


def test_no_episode_begins_whose_rows_another_may_still_take(store):
    """Sixteen rows, and two records of an episode; of eight that have begun each has taken one."""
    episodes = Episodes([Episode(k, k, Start(0, k, 0)) for k in range(9)], books(store).job, store, K)
    for slot in range(8):
        assert episodes.may_start
        begin(episodes, slot=slot)
    assert store.free == 8
    assert not episodes.may_start
    assert chunk(episodes, [0.0] * K, ended=True).rows
    assert not episodes.may_start, "its record stays; the row that it did not need is one, and an episode needs two"
    chunk(episodes, [0.0] * K, slot=1, ended=True)
    assert episodes.may_start


def test_the_rewards_of_an_evaluation_are_asked_for_by_its_noise(store):
    for stream, asked in ((Stream.TRAIN_NOISE, False), (Stream.EVAL_NOISE, True)):
        command, _, _ = books(store, stream=stream, keep_records=False).start(0, 0)
        assert command.evaluation is asked


def test_verdicts_that_failed_are_counted_of_attempts_that_ran_to_their_end(store):
    episodes = books(store)
    store.arrays[f"{INFO}{FAILURES}"][:] = 1
    begin(episodes)
    chunk(episodes, [0.0] * K)
    episodes.requeue(0)
    assert episodes.stats.failures == 0
    begin(episodes)
    chunk(episodes, [0.0] * K)
    result = chunk(episodes, [0.0] * K, ended=True)
    assert (episodes.stats.failures, result.info) == (2, {FAILURES: 1})
