"""A rollout that flows over the border of iterations: the same episodes and bits, and nobody waits for stragglers."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from rig import CPU, Rig, records

from embodied.errors import ConfigError
from embodied.observe.timing import Sections
from embodied.random import Stream
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.by_version import ByVersion
from embodied.runtime.policy.policy_port import OnePass
from embodied.runtime.pool.pool import Deadlines
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.flowing import Flowing
from embodied.runtime.rollout.rollout import Schedule
from embodied.testing import FakePolicy
from embodied.types import EpisodeResult

EPISODES, MAX_STEPS, ITERATIONS = 8, 10, 6
ROWS = EPISODES * 3
PATIENT = Deadlines(init=120.0, reset=60.0, step=60.0)


class Weights:
    """Gives the policy weights that are a function of their version."""

    def __init__(self, policy: FakePolicy) -> None:
        self._policy, self._first = policy, policy.head.weight.detach().clone()
        self.used: list[int] = []

    def __call__(self, version: int) -> None:
        self._policy.head.weight.data = self._first * (1 + version)
        self.used.append(version)


def flowing(rig: Rig, weights: Weights, kind: type[Flowing] = Flowing, **schedule: Any) -> Flowing:
    port = ByVersion(lambda: OnePass(rig.policy, rig.slab, rig.env.spec, CPU, 4), weights)
    rule = Schedule(**{"lockstep": False, "min_batch": 1, **schedule})
    return kind(rig.pool, port, RecordStore(rig.slab), 4, rule, Sections())


def plan_of(rig: Rig, iteration: int) -> list[Any]:
    return train_plan(rig.env.spec, seed=3, iteration=iteration, episodes=EPISODES, group_size=2)


def job_of(rig: Rig, iteration: int, lag: int, **more: Any) -> Any:
    return rig.job(version=max(0, iteration - lag), max_steps=MAX_STEPS, iteration=iteration, **more)


def collected(rig: Rig, lag: int, rollout: Flowing, **more: Any) -> Iterator[list[EpisodeResult]]:
    """Yields the episodes of each iteration while those of ``lag`` later ones may run."""
    for iteration in range(ITERATIONS):
        for ahead in range(iteration, min(iteration + lag, ITERATIONS - 1) + 1):
            rollout.plan_ahead(plan_of(rig, ahead), job_of(rig, ahead, lag, **more))
        seen: list[EpisodeResult] = []
        results, stats = rollout.collect(plan_of(rig, iteration), job_of(rig, iteration, lag, **more), seen.append)
        assert [result.episode for result in results] == plan_of(rig, iteration)
        assert sorted(one.episode.episode_id for one in seen) == [one.episode.episode_id for one in results]
        assert stats.env_steps == sum(result.num_steps for result in results)
        yield results
        rollout.keep([])


def apart(rig: Rig, lag: int, **more: Any) -> list[dict[tuple[int, int], dict[str, bytes]]]:
    """Records of the iterations, each run by itself."""
    weights, found = Weights(rig.policy), []
    for iteration in range(ITERATIONS):
        job = job_of(rig, iteration, lag, **more)
        weights(job.version)
        rollout = rig.rollout()
        results, _ = rollout.collect(plan_of(rig, iteration), job)
        found.append(records(rig, results))
        rollout.records.keep()
    weights(0)
    return found


class Killing(Flowing):
    """Kills a worker now and then, amid episodes of several iterations. As often on a slow machine as on a fast one."""

    choose = random.Random(5)

    def _turn(self) -> None:
        super()._turn()
        if self.choose.random() < 0.02:
            with suppress(ProcessLookupError, IndexError):  # it is being replaced
                os.kill(self.choose.choice(self._envs.pids), signal.SIGKILL)  # type: ignore[attr-defined]


@pytest.fixture
def start_method() -> str:
    return "forkserver"


@pytest.fixture
def calm(shared_rig) -> Rig:
    return shared_rig(slots=2, workers=1, rows=4 * ROWS, success_distance=0.5, deadlines=PATIENT)


@pytest.mark.parametrize(("slots", "workers"), [(1, 1), (5, 2)])
def test_killed_workers_slots_and_timing_change_no_bit_and_each_episode_is_run_once(calm, make_rig, slots, workers):
    shape = {"rows": 4 * ROWS, "success_distance": 0.5, "deadlines": PATIENT, "target": "uneven_envs.Erratic"}
    rig = make_rig(slots=slots, workers=workers, max_restarts=1000, **shape)
    for lag in range(4):
        expected = apart(calm, lag)
        assert len({record["logprobs"] for found in expected for record in found.values()}) > 40
        weights = Weights(rig.policy)
        found = [records(rig, results) for results in collected(rig, lag, flowing(rig, weights, Killing))]
        weights(0)
        assert found == expected
        versions = [{int.from_bytes(record["version"], "little") for record in one.values()} for one in found]
        assert versions == [{max(0, iteration - lag)} for iteration in range(ITERATIONS)]
    assert rig.pool.restarts


@pytest.mark.parametrize("schedule", [{"lockstep": True, "stages": 2}, {"min_batch": 3}], ids=["lockstep", "batches"])
def test_every_schedule_flows(calm, schedule):
    expected = apart(calm, 2)
    weights = Weights(calm.policy)
    assert [records(calm, one) for one in collected(calm, 2, flowing(calm, weights, **schedule))] == expected
    weights(0)


def test_values_of_final_observations_are_those_of_the_plans_weights(make_rig):
    rig = make_rig(slots=3, workers=1, rows=4 * EPISODES * 4, policy={"value_head": True}, deadlines=PATIENT)

    def finals(results: list[EpisodeResult]) -> list[bytes]:
        return [rig.slab.arrays["value"][result.final_row].tobytes() for result in results]

    class Heads(Weights):
        def __call__(self, version: int) -> None:
            super().__call__(version)
            torch.nn.init.constant_(rig.policy.value_head.bias, float(version))

    weights, more = Heads(rig.policy), {"value_truncated": True}
    found = [finals(results) for results in collected(rig, 2, flowing(rig, weights), **more)]
    expected = []
    for iteration in range(ITERATIONS):
        weights(max(0, iteration - 2))
        rollout = rig.rollout()
        expected.append(finals(rollout.collect(plan_of(rig, iteration), job_of(rig, iteration, 2, **more))[0]))
        rollout.records.keep()
    assert found == expected
    assert len({one for values in found for one in values}) > ITERATIONS * 6


def straggling(make_rig, folder, **env: Any) -> Rig:
    shape = {"rows": 4 * ROWS, "target": "uneven_envs.Straggles", "deadlines": PATIENT, "max_restarts": 0}
    return make_rig(slots=3, workers=3, folder=str(folder), starts=EPISODES // 2, **shape, **env)


def test_slots_go_on_with_the_next_iteration_while_stragglers_run(make_rig, tmp_path):
    """Episodes of iterations 0 to 3 wait until one of the next iteration is stepped."""
    rig = straggling(make_rig, tmp_path, until=ITERATIONS - 3)
    weights = Weights(rig.policy)
    assert len([*collected(rig, 2, flowing(rig, weights))]) == ITERATIONS
    assert not (tmp_path / "in-vain").exists()


def test_without_a_plan_ahead_the_slots_wait_for_stragglers(make_rig, tmp_path):
    """The proof of the test before: with one plan at a time, the same episode waits in vain."""
    rig = straggling(make_rig, tmp_path, patience_s=0.3)
    rollout = flowing(rig, Weights(rig.policy))
    rollout.collect(plan_of(rig, 0), job_of(rig, 0, 1))
    assert (tmp_path / "in-vain").exists()


def test_slots_go_on_while_processes_wait_for_each_other(make_rig, tmp_path):
    """What is waited for comes once two later iterations have begun; nobody else makes them begin."""
    rig = straggling(make_rig, tmp_path, until=-1)
    rollout = flowing(rig, Weights(rig.policy))
    for ahead in range(3):
        rollout.plan_ahead(plan_of(rig, ahead), job_of(rig, ahead, 2))

    def waited() -> bool:
        until = time.monotonic() + 60
        while not (tmp_path / "stepped-2").exists() and time.monotonic() < until:
            time.sleep(0.001)
        return (tmp_path / "stepped-2").exists()

    rollout.collect(plan_of(rig, 0), job_of(rig, 0, 2))
    assert rollout.meanwhile(waited)
    for iteration in (1, 2):
        results, _ = rollout.collect(plan_of(rig, iteration), job_of(rig, iteration, 2))
        assert [result.episode for result in results] == plan_of(rig, iteration)
    with pytest.raises(ZeroDivisionError):
        rollout.meanwhile(lambda: 1 // 0)


def test_an_evaluation_waits_for_running_episodes_and_changes_none(calm):
    """It needs all slots, and rows that no plan has."""
    expected, weights = apart(calm, 2), Weights(calm.policy)
    rollout, found = flowing(calm, weights), []
    evaluation = calm.job(stream=Stream.EVAL_NOISE, keep_records=False, version=0, max_steps=MAX_STEPS)
    for results in collected(calm, 2, rollout):
        rollout.drain()
        assert rollout._several is not None
        assert bool(rollout._several.pending) == (len(found) < ITERATIONS - 1), "what has not begun waits"
        evaluated, stats = rollout.collect(plan_of(calm, 50), evaluation)
        assert len(evaluated) == EPISODES
        assert stats.env_steps == sum(result.num_steps for result in evaluated)
        found.append(records(calm, results))
    weights(0)
    assert found == expected


def test_rows_that_an_update_reads_stay_until_it_has_ended(calm):
    weights = Weights(calm.policy)
    rollout = flowing(calm, weights)
    first = rollout.collect(plan_of(calm, 0), job_of(calm, 0, 2))[0]
    rollout.hold(first)
    held = records(calm, first)
    for ahead in (1, 2):
        rollout.plan_ahead(plan_of(calm, ahead), job_of(calm, ahead, 2))
    second = rollout.collect(plan_of(calm, 1), job_of(calm, 1, 2))[0]
    rollout.keep(second)
    rollout.records.check(lease for result in (*first, *second) for lease in result.leases)
    assert records(calm, first) == held
    rollout.hold()
    with pytest.raises(LookupError):
        rollout.records.check(first[0].leases)
    rollout.records.check(lease for result in second for lease in result.leases)
    rollout.collect(plan_of(calm, 2), job_of(calm, 2, 2))
    rollout.records.keep()
    weights(0)


def test_rows_are_given_back_once_also_if_a_signal_comes_between_two(calm, monkeypatch):
    weights = Weights(calm.policy)
    rollout = flowing(calm, weights)
    rollout.hold(rollout.collect(plan_of(calm, 0), job_of(calm, 0, 2))[0])
    give_back, given = rollout.records.give_back, []

    def stopped(lease: Any) -> None:
        given.append(lease)
        give_back(lease)
        if len(given) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(rollout.records, "give_back", stopped)
    with pytest.raises(KeyboardInterrupt):
        rollout.hold()
    rollout.hold()
    assert len(given) == len(set(given)) == 2
    rollout.records.keep()
    weights(0)


def test_a_plan_for_which_no_rows_will_be_free_is_refused(make_rig):
    rig = make_rig(slots=2, workers=1, rows=ROWS)
    rollout = flowing(rig, Weights(rig.policy))
    rollout.hold(rollout.collect(plan_of(rig, 0), job_of(rig, 0, 2))[0])
    with pytest.raises(ConfigError, match="need 24 rows and the slab has"):
        rollout.collect(plan_of(rig, 1), job_of(rig, 1, 2))
    assert rollout.records.free < ROWS, "rows that are held stay"


def test_an_error_leaves_no_row_behind(make_rig):
    rig = make_rig(slots=2, workers=1, rows=3 * ROWS)
    rollout = flowing(rig, Weights(rig.policy))
    rollout.plan_ahead(plan_of(rig, 1), job_of(rig, 1, 2))

    def fail(result: EpisodeResult) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        rollout.collect(plan_of(rig, 0), job_of(rig, 0, 2), fail)
    assert rollout.records.free == 3 * ROWS


def test_what_is_waited_for_is_asked_for_and_may_plan_ahead(calm):
    weights = Weights(calm.policy)
    rollout, asked = flowing(calm, weights), list[bool]()

    def look(idle: bool) -> bool:
        asked.append(idle)
        if idle and len(asked) > 3:
            rollout.plan_ahead(plan_of(calm, 1), job_of(calm, 1, 2))
        return idle and len(asked) > 3

    rollout.watch(look)
    rollout.collect(plan_of(calm, 0), job_of(calm, 0, 2))
    rollout.go_on()
    assert (asked[0], asked[-1]) == (False, True)
    results, _ = rollout.collect(plan_of(calm, 1), job_of(calm, 1, 2))
    assert [result.episode for result in results] == plan_of(calm, 1)
    rollout.records.keep()
    weights(0)
