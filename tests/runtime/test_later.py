"""The policy port of a policy that answers later: neither order nor delay of its answers is seen in a record."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rig import CPU, records
from test_chaos import PATIENT
from test_policy_schedule import NEAR, SETTINGS

from embodied.errors import PolicyChangedError, SpecMismatchError
from embodied.observe.timing import Sections
from embodied.protocols import AnswersLater
from embodied.random import Stream
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.later import Later
from embodied.runtime.policy.policy_port import Draw, Request
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Rollout, Schedule
from embodied.testing import FakePolicy
from embodied.types import Sampling


class LatePolicy(FakePolicy):
    """The fake policy, whose answers come some at a time, in any order."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.waiting: dict[int, Mapping[str, np.ndarray]] = {}
        self.random, self.checked, self.changed, self.most = random.Random(3), 0, False, 0
        self.places: list[tuple[int, int] | None] = []

    def ask(
        self, number: int, obs: Mapping[str, np.ndarray], instruction: str, noise: np.ndarray, sampling: Sampling,
        place: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        batch = {name: torch.from_numpy(np.array(array))[None] for name, array in obs.items()}
        encoded = self.encode_instructions([instruction])
        with torch.inference_mode():
            decision = self.act(batch | dict(encoded), torch.from_numpy(np.array(noise))[None], sampling)
        self.waiting[number] = {name: values[0].numpy() for name, values in decision.fields.items()}
        self.most = max(self.most, len(self.waiting))
        self.places.append(place)

    def answers(self, timeout_s: float) -> Sequence[tuple[int, Mapping[str, np.ndarray]]]:
        taken = [number for number in self.waiting if self.random.random() < 0.3]
        self.random.shuffle(taken)
        return [(number, self.waiting.pop(number)) for number in taken]

    def forget(self, number: int) -> None:
        self.waiting.pop(number, None)

    def check(self) -> None:
        assert not self.waiting
        self.checked += 1
        if self.changed:
            raise PolicyChangedError("another", "serve the first")


def late(rig: Any) -> Any:
    policy = LatePolicy()
    policy.bind(rig.env.spec)
    assert isinstance(policy, AnswersLater)
    return policy


def collect(rig: Any, policy: Any, plan: Any = None, job: Any = None, **schedule: Any) -> Any:
    rule = Schedule(schedule.pop("lockstep", False), schedule.pop("min_batch", 1), **schedule)
    port = Later(policy, rig.slab, rig.env.spec, CPU)
    rollout = Rollout(rig.pool, port, RecordStore(rig.slab), policy.spec.num_action_chunks, rule, Sections())
    results, stats = rollout.collect(plan or plan_of(rig), job or rig.job())
    return records(rig, results), stats


def plan_of(rig: Any, episodes: int = 8) -> Any:
    return train_plan(rig.env.spec, seed=23, iteration=0, episodes=episodes, group_size=2)


@pytest.mark.parametrize("setting", SETTINGS)
def test_records_are_those_of_a_policy_that_answers_at_once(shared_rig, setting):
    rig = shared_rig(workers=2, **NEAR)
    results, _ = rig.rollout(policy_batch=1).collect(plan_of(rig), rig.job())
    expected = records(rig, results)
    policy = late(rig)
    options = {name: value for name, value in SETTINGS[setting].items() if name != "policy_batch"}
    got, stats = collect(rig, policy, **options)
    assert got == expected
    assert stats.policy_rows == stats.chunks
    assert policy.checked == 2, "before the rollout and after it"
    assert sorted(set(policy.places)) == sorted(got), "it is told which decision of which episode it makes"


def test_a_worker_that_dies_changes_no_bit(make_rig, monkeypatch):
    shape = {"slots": 4, "workers": 2, "rows": 256, "success_distance": 0.5}
    calm = make_rig(**shape)
    plan, job = plan_of(calm, 12), {"max_steps": 20}
    expected = records(calm, calm.rollout(policy_batch=1).collect(plan, calm.job(**job))[0])
    calm.pool.close()
    rig = make_rig(**shape, max_restarts=9, deadlines=PATIENT)
    policy, asked = late(rig), itertools.count()
    ask = policy.ask

    def then_kill(*arguments: Any) -> None:
        ask(*arguments)
        if next(asked) == 9:  # its questions are under way
            os.kill(rig.pool.pids[0], signal.SIGKILL)

    monkeypatch.setattr(policy, "ask", then_kill)
    got, stats = collect(rig, policy, plan, rig.job(**job))
    assert got == expected
    assert stats.worker_restarts == 1


def opened(rig: Any, policy: Any, requests: Sequence[Request]) -> Later:
    port = Later(policy, rig.slab, rig.env.spec, CPU)
    port.begin(Draw(Sampling(), 0, Stream.TRAIN_NOISE))
    port.submit(requests)
    return port


def test_a_cancelled_request_is_not_answered(shared_rig):
    rig = shared_rig(workers=1, **NEAR)
    policy = late(rig)
    port = opened(rig, policy, [Request(slot, slot, slot, 0) for slot in range(3)])
    port.cancel(1)
    assert (port.pending, len(policy.waiting)) == (2, 2)
    assert sorted(request.slot for _ in range(80) for request in port.poll()) == [0, 2]
    assert (port.pending, port.poll()) == (0, [])


@pytest.mark.parametrize("polls", [0, 1])
def test_no_request_is_left_from_a_rollout_that_was_broken_off(shared_rig, polls):
    rig = shared_rig(workers=1, **NEAR)
    policy = late(rig)
    port = opened(rig, policy, [Request(slot, slot, slot, 0) for slot in range(5)])
    for _ in range(polls):
        port.poll()
    port.begin(Draw(Sampling(), 1, Stream.TRAIN_NOISE))
    assert (port.pending, policy.waiting) == (0, {})
    port.submit([Request(1, 1, 9, 0)])
    assert [request.episode_id for _ in range(80) for request in port.poll()] == [9]


def test_values_are_written_alone_and_other_requests_go_on(make_rig):
    policy = LatePolicy(value_head=True)
    rig = make_rig(workers=1, net=policy, **NEAR)
    for name in ("value", "actions"):
        rig.slab.arrays[name][:4] = -9
    port = opened(rig, policy, [Request(0, 0, 0, 0), Request(1, 1, 1, 0)])
    port.value([Request(2, 2, 2, 0), Request(3, 3, 3, 0)])
    assert (rig.slab.arrays["value"][2:4] != -9).all()
    assert (rig.slab.arrays["actions"][2:4] == -9).all()
    assert port.pending == 2
    assert sorted(request.slot for _ in range(80) for request in port.poll()) == [0, 1]
    assert (rig.slab.arrays["actions"][:2] != -9).all()


def test_a_decision_that_breaks_its_spec_is_named(shared_rig, monkeypatch):
    rig = shared_rig(workers=1, **NEAR)
    policy = late(rig)
    answers = policy.answers
    broken = {"actions": np.zeros((3, 7), np.float32)}
    monkeypatch.setattr(policy, "answers", lambda wait: [(number, {**one, **broken}) for number, one in answers(wait)])
    port = opened(rig, policy, [Request(0, 0, 0, 0)])
    with pytest.raises(SpecMismatchError, match=r"gave float32 \(3, 7\) for 'actions'"):
        [port.poll() for _ in range(80)]


def test_a_rollout_whose_policy_was_another_does_not_count(shared_rig):
    rig = shared_rig(workers=1, **NEAR)
    policy = late(rig)
    port = opened(rig, policy, [Request(0, 0, 0, 0)])
    policy.changed = True
    port.end(whole=False)  # it failed already, and nothing of it counts
    with pytest.raises(PolicyChangedError):
        port.end()
    with pytest.raises(PolicyChangedError):
        port.begin(Draw(Sampling(), 0, Stream.TRAIN_NOISE))
