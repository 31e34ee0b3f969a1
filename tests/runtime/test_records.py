"""Rows are leased, carry owner and version, and are given back once; who holds an old lease is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig import records

from embodied.errors import ConfigError, WorkerDiedError
from embodied.runtime.plan import train_plan
from embodied.runtime.records import RecordStore
from embodied.runtime.slab import Slab
from embodied.types import ArraySpec, Episode, EpisodeResult, Start


@pytest.fixture
def store():
    slab = Slab.create({"state": ArraySpec((1,), "float32")}, 5)
    yield RecordStore(slab)
    slab.close()


def result_of(*leases) -> EpisodeResult:
    rows = tuple(lease.row for lease in leases)
    return EpisodeResult(Episode(0, 0, Start(0, 0, 0)), rows, 0.0, False, 1, False, True, leases=leases)


@given(st.lists(st.booleans(), max_size=60))
def test_rows_are_never_leased_twice(takes):
    slab = Slab.create({"state": ArraySpec((1,), "float32")}, 5)
    store, held = RecordStore(slab), []
    for take in takes:
        if take and store.free:
            lease = store.lease(owner=7, version=3)
            assert lease.row not in {other.row for other in held}
            held.append(lease)
        elif held:
            store.give_back(held.pop())
        assert store.free == 5 - len(held)
        assert set(store.leased) == set(held)
    slab.close()


def test_a_lease_says_whose_the_row_is_and_which_weights_act(store):
    lease = store.lease(owner=12, version=4)
    assert (lease.owner, lease.version) == (12, 4)


def test_without_a_free_row_there_is_none_to_lease(store):
    for _ in range(5):
        store.lease(0, 0)
    with pytest.raises(LookupError, match="all 5 rows are leased"):
        store.lease(0, 0)


def test_an_old_lease_is_not_taken_for_the_new_one_of_its_row(store):
    old = store.lease(owner=1, version=0)
    store.give_back(old)
    with pytest.raises(LookupError, match="to episode 1 has ended: the row is free"):
        store.check([old])
    new = store.lease(owner=2, version=0)
    assert new.row == old.row
    with pytest.raises(LookupError, match="the row is leased to episode 2"):
        store.check([new, old])
    with pytest.raises(LookupError, match="has ended"):
        store.give_back(old)
    store.check([new])


def test_the_lease_of_an_episode_that_is_redone_is_another_one(store):
    """Owner, row and weights are the same, and what the row holds is not."""
    old = store.lease(owner=1, version=0)
    store.give_back(old)
    new = store.lease(owner=1, version=0)
    assert (new.row, new.owner, new.version) == (old.row, old.owner, old.version)
    with pytest.raises(LookupError, match="has ended"):
        store.check([old])
    store.check([new])


def test_all_but_what_is_kept_is_given_back(store):
    kept, dropped = [store.lease(1, 0), store.lease(1, 0)], store.lease(2, 0)
    store.keep([result_of(*kept)])
    assert (store.free, set(store.leased)) == (3, set(kept))
    with pytest.raises(LookupError):
        store.keep([result_of(dropped)])
    store.keep()
    assert store.free == 5


SHAPE = {"slots": 2, "workers": 1, "rows": 12, "success_distance": 0.6}


def plan_of(rig, iteration=0):
    return train_plan(rig.env.spec, seed=23, iteration=iteration, episodes=4, group_size=2)


def test_rows_of_a_rollout_stay_until_they_are_given_back(make_rig):
    rig = make_rig(**SHAPE)
    rollout = rig.rollout()
    first, _ = rollout.collect(plan_of(rig), rig.job(version=3))
    leases = [lease for result in first for lease in result.leases]
    assert [lease.row for lease in leases] == [row for result in first for row in result.rows]
    assert {(lease.owner, lease.version) for lease in leases} == {(result.episode.episode_id, 3) for result in first}
    before = records(rig, first)
    with pytest.raises(ConfigError, match="give back the rows of earlier ones"):
        rollout.collect(plan_of(rig, 1), rig.job())
    rollout.records.check(leases)
    assert records(rig, first) == before
    rollout.records.keep()
    second, _ = rollout.collect(plan_of(rig, 1), rig.job())
    rollout.records.check(lease for result in second for lease in result.leases)
    with pytest.raises(LookupError, match="has ended"):
        rollout.records.check(leases)


def test_an_evaluation_leaves_no_row_leased(make_rig):
    rig = make_rig(**SHAPE)
    rollout = rig.rollout()
    rollout.collect(plan_of(rig), rig.job(keep_records=False, max_steps=30))
    assert rollout.records.free == 12


def test_a_rollout_that_fails_gives_its_rows_back(make_rig):
    rig = make_rig(**SHAPE, fault="exception", fault_step=2, fault_task=1)
    rollout = rig.rollout()
    with pytest.raises(WorkerDiedError):
        rollout.collect(plan_of(rig), rig.job())
    assert rollout.records.free == 12
