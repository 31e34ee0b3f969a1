"""The policy port: answers come late and out of order, and no record knows it."""

from __future__ import annotations

import signal

import pytest
import torch
from rig import CPU, records
from test_chaos import PATIENT, disturbed
from test_policy_schedule import NEAR, SETTINGS

from embodied.errors import SpecMismatchError
from embodied.random import Stream
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.policy_port import Draw, OnePass, Request
from embodied.testing import DecoderPort
from embodied.types import Decision, Sampling


def plan_of(rig, episodes=8):
    return train_plan(rig.env.spec, seed=23, iteration=0, episodes=episodes, group_size=2)


def collect(rig, **settings):
    results, stats = rig.rollout(**settings).collect(plan_of(rig), rig.job())
    return records(rig, results), stats


@pytest.fixture(scope="module")
def reference(shared_rig):
    return collect(shared_rig(workers=1, **NEAR), lockstep=True, policy_batch=1)[0]


@pytest.mark.parametrize(("workers", "lanes"), [(1, 1), (1, 4), (2, 2), (4, 3), (4, 4)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_decoder_changes_no_bit_whatever_the_schedule(shared_rig, reference, workers, lanes, setting):
    rig = shared_rig(workers=workers, **NEAR)
    got, stats = collect(rig, lanes=lanes, policy_batch=1, **SETTINGS[setting])
    assert got == reference
    assert stats.policy_rows == stats.chunks


def test_lanes_are_used_together_and_answers_overtake_each_other(shared_rig):
    rig = shared_rig(workers=2, **NEAR)
    rollout = rig.rollout(lanes=3, policy_batch=1, lockstep=True)  # all slots ask at once, whatever the machine does
    rollout.collect(plan_of(rig), rig.job())
    decoder = rollout._policy
    assert decoder.most_busy == 3
    assert decoder.overtaken > 0
    assert decoder.pending == 0


def test_failures_of_workers_change_no_bit_of_a_decoders_records(make_rig):
    shape = {"slots": 6, "workers": 3, "rows": 256, "step_s": 0.002, "success_distance": 0.5}
    calm = make_rig(**shape)
    plan, job = plan_of(calm, 24), {"max_steps": 20}
    expected = records(calm, calm.rollout(policy_batch=1).collect(plan, calm.job(**job))[0])
    calm.pool.close()
    rig = make_rig(**shape, max_restarts=1000, deadlines=PATIENT)
    restarts = 0
    with disturbed(rig, seed=1, signals=(signal.SIGKILL,)):
        for _ in range(3):
            results, stats = rig.rollout(lanes=4, policy_batch=1).collect(plan, rig.job(**job))
            assert records(rig, results) == expected
            restarts += stats.worker_restarts
    assert restarts >= 2


def test_a_cancelled_request_is_not_answered(shared_rig):
    rig = shared_rig(workers=1, **NEAR)
    for port in (OnePass(rig.policy, rig.slab, rig.env.spec, CPU, 2), rig.rollout(lanes=1)._policy):
        port.begin(Draw(Sampling(), 0, Stream.TRAIN_NOISE))
        port.submit([Request(slot, slot, slot, 0) for slot in range(3)])
        port.cancel(1)
        assert port.pending == 2
        answered = [request.slot for _ in range(60) for request in port.poll()]
        assert sorted(answered) == [0, 2]
        assert (port.pending, port.poll()) == (0, [])


@pytest.mark.parametrize("polls", [0, 1])
def test_no_request_is_left_from_a_rollout_that_was_broken_off(shared_rig, polls):
    """Its slots have other episodes in the next one; an answer would be written into their rows."""
    rig = shared_rig(workers=1, **NEAR)
    for port in (OnePass(rig.policy, rig.slab, rig.env.spec, CPU, 2), rig.rollout(lanes=2)._policy):
        port.begin(Draw(Sampling(), 0, Stream.TRAIN_NOISE))
        port.submit([Request(slot, slot, slot, 0) for slot in range(5)])
        for _ in range(polls):
            port.poll()
        assert port.pending
        port.begin(Draw(Sampling(), 1, Stream.TRAIN_NOISE))
        assert (port.pending, [port.poll() for _ in range(60)]) == (0, [[]] * 60)
        port.submit([Request(1, 1, 9, 0)])
        assert [request.episode_id for _ in range(60) for request in port.poll()] == [9]


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda fields: fields.pop("actions"), "gave nothing for 'actions'"),
        (lambda fields: fields.update(action_tokens=torch.zeros(4, 28)), r"gave float32 \(4, 28\) for 'action_tokens'"),
        (lambda fields: fields.update(logprobs=torch.zeros(4, 3)), r"float32 \(4, 3\) for 'logprobs'"),
    ],
)
def test_a_decision_that_breaks_its_spec_is_named(shared_rig, monkeypatch, alter, message):
    rig = shared_rig(workers=1, **NEAR)
    act = rig.policy.act

    def broken(obs, noise, sampling):
        fields = dict(act(obs, noise, sampling).fields)
        alter(fields)
        return Decision(fields)

    monkeypatch.setattr(rig.policy, "act", broken)
    port = OnePass(rig.policy, rig.slab, rig.env.spec, CPU, 4)
    port.begin(Draw(Sampling(), 0, Stream.TRAIN_NOISE))
    port.submit([Request(0, 0, 0, 0)])
    with pytest.raises(SpecMismatchError, match=message):
        port.poll()


def test_a_decoders_answer_depends_on_the_episode_alone(shared_rig):
    rig = shared_rig(workers=1, **NEAR)
    inner = OnePass(rig.policy, rig.slab, rig.env.spec, CPU, 1)
    one, other = DecoderPort(inner, lanes=1), DecoderPort(inner, lanes=2)
    polls = [port._polls(Request(slot, row, 5, 3)) for port in (one, other) for slot, row in ((0, 1), (2, 3))]
    assert len(set(polls)) == 1
    assert {one._polls(Request(0, 0, episode, 0)) for episode in range(200)} == set(range(1, 21))
