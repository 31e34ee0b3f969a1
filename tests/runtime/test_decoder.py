"""A policy that decodes in lanes: lanes, order and failures of workers change no record."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch
from rig import CPU, records
from test_chaos import PATIENT, disturbed

from embodied import instructions
from embodied.errors import SpecMismatchError
from embodied.observe.timing import Sections
from embodied.random import Stream
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.decoder import Decoder
from embodied.runtime.policy.policy_port import Draw, OnePass, Request
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Rollout, Schedule
from embodied.testing import FakeTextEnv, FakeTextPolicy, check_env, check_policy
from embodied.types import Sampling

TURNS = 3
TEXT = {"target": "embodied.testing.FakeTextEnv", "kind": FakeTextEnv, "turns": TURNS, "slots": 6, "rows": 128}


def text_rig(make, **changes):
    return make(net=FakeTextPolicy(), **{**TEXT, **changes})


def plan_of(rig, episodes=12):
    return train_plan(rig.env.spec, seed=3, iteration=0, episodes=episodes, group_size=2)


def collect(rig, port, lockstep=False, **job):
    rollout = Rollout(rig.pool, port, RecordStore(rig.slab), 1, Schedule(lockstep, min_batch=1), Sections())
    results, stats = rollout.collect(plan_of(rig), rig.job(max_steps=TURNS, **job))
    return records(rig, results), stats


def decoder(rig, lanes):
    return Decoder(rig.policy, rig.slab, rig.env.spec, CPU, lanes)


@pytest.fixture(scope="module")
def reference(shared_rig):
    rig = text_rig(shared_rig, workers=1)
    return collect(rig, OnePass(rig.policy, rig.slab, rig.env.spec, CPU, 1), lockstep=True)[0]


def test_the_fakes_are_what_they_declare():
    check_env(FakeTextEnv(turns=2), steps=1)
    check_policy(FakeTextPolicy(), FakeTextEnv().spec)


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize(("workers", "lanes"), [(1, 1), (1, 4), (3, 2), (3, 6)])
def test_lanes_change_no_bit(shared_rig, reference, workers, lanes, lockstep):
    rig = text_rig(shared_rig, workers=workers)
    got, stats = collect(rig, decoder(rig, lanes), lockstep)
    assert got == reference
    assert stats.policy_rows == stats.chunks == 12 * TURNS


def test_an_answer_is_in_the_next_observation_and_its_length_says_what_counts(reference):
    for (episode, t), record in reference.items():
        length = int(np.frombuffer(record["length"], np.int32)[0])
        logprobs = np.frombuffer(record["logprobs"], np.float32)
        assert (logprobs[:length] < 0).all()
        assert (logprobs[length:] == 0).all()
        if t:
            answer = instructions.read(np.frombuffer(reference[episode, t - 1]["actions"], np.uint8))
            assert instructions.read(np.frombuffer(record["instruction"], np.uint8)).split("\n")[-1] == answer
    assert len(reference) == 12 * TURNS


def test_failures_of_workers_change_no_bit(make_rig, reference):
    rig = text_rig(make_rig, workers=3, max_restarts=1000, deadlines=PATIENT, think_s=0.002)
    restarts = 0
    with disturbed(rig, seed=1, signals=(signal.SIGKILL,)):
        for _ in range(3):
            got, stats = collect(rig, decoder(rig, 3))
            assert got == reference
            restarts += stats.worker_restarts
    assert restarts


def test_a_cancelled_request_frees_its_lane(shared_rig):
    rig = text_rig(shared_rig, workers=1)
    for row in range(3):
        instructions.write("#0 a", rig.slab.arrays["instruction"][row])
    port = decoder(rig, 2)
    port.begin(Draw(Sampling(), 1, Stream.TRAIN_NOISE))
    port.submit([Request(slot, slot, slot, 0) for slot in range(3)])
    assert port.poll() == []  # each of these texts is longer than a letter
    port.cancel(0)  # in a lane
    port.cancel(2)  # in the queue
    assert port.pending == 1
    assert [request.slot for _ in range(20) for request in port.poll()] == [1]
    assert (port.pending, port.poll()) == (0, [])


@pytest.mark.parametrize("polls", [0, 1])
def test_no_request_is_left_from_a_rollout_that_was_broken_off(shared_rig, polls):
    rig = text_rig(shared_rig, workers=1)
    for row in range(4):
        instructions.write("#0 a", rig.slab.arrays["instruction"][row])
    port = decoder(rig, 2)
    port.begin(Draw(Sampling(), 1, Stream.TRAIN_NOISE))
    port.submit([Request(slot, slot, slot, 0) for slot in range(3)])
    for _ in range(polls):
        port.poll()
    assert port.pending == 3
    port.begin(Draw(Sampling(), 1, Stream.TRAIN_NOISE))
    assert (port.pending, [port.poll() for _ in range(20)]) == (0, [[]] * 20)
    port.submit([Request(slot, slot, 9, 0) for slot in (1, 3)])
    assert sorted(request.slot for _ in range(20) for request in port.poll()) == [1, 3], "both lanes are free"


def test_a_decision_that_is_not_what_the_spec_declares_is_refused(make_rig):
    rig = text_rig(make_rig, workers=1)
    port = decoder(rig, 2)
    take = port._decoding.take

    def short(lanes):
        made = take(lanes)
        return type(made)({**made.fields, "logprobs": made.fields["logprobs"][:, :2]})

    port._decoding.take = short
    with pytest.raises(SpecMismatchError, match="logprobs"):
        collect(rig, port)


def test_greedy_answers_do_not_depend_on_the_noise(shared_rig):
    rig = text_rig(shared_rig, workers=1)
    greedy = [
        collect(rig, decoder(rig, 4), sampling=Sampling(do_sample=False), seed=seed)[0] for seed in (1, 2)
    ]  # fmt: skip
    same = [one["tokens"] == two["tokens"] for one, two in zip(*(g.values() for g in greedy), strict=True)]
    assert all(same)
    assert torch.is_inference_mode_enabled() is False
