"""A flow policy behind a server: greedy answers begin with noise of the session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from serving_rig import ENV, ask, observation, serving

from embodied.client import ChunkQueue, Client, wire
from embodied.errors import WireError
from embodied.random import Stream
from embodied.runtime.plan import noise
from embodied.testing import FlowPolicy
from embodied.types import Sampling


class BeginsAnew(FlowPolicy):
    """Does not go on from a chunk before."""

    act_after = None  # type: ignore[assignment]


class Halves(FlowPolicy):
    """Goes on with half of each action that is left."""

    def act_after(self, obs, noise, sampling, left_over, left, delay):
        return super().act_after(obs, noise, sampling, left_over / 2, left, delay)


def flow(kind: type[FlowPolicy] = FlowPolicy) -> FlowPolicy:
    policy = kind(one_step=True)
    policy.bind(ENV)
    return policy


def wanted(message: dict[str, Any], drawn: np.ndarray, greedy: bool = True) -> np.ndarray:
    policy = flow()
    obs = {"state": torch.from_numpy(message["state"])[None], **policy.encode_instructions([message["prompt"]])}
    return policy.act(obs, torch.from_numpy(drawn)[None], Sampling(do_sample=not greedy)).fields["actions"][0].numpy()


def test_greedy_answers_have_the_noise_of_session_and_request():
    declared, message = flow().spec.noise, observation()
    drawn = [noise(3, Stream.SERVED_NOISE, 5, count, declared) for count in range(2)]
    with serving(flow(), seed=3) as served, served.connect() as socket:
        socket.recv(timeout=10)
        for _ in range(2):  # a session begins anew, with the same numbers
            for count in range(2):
                answer = ask(socket, {**message, wire.GREEDY: True, wire.SESSION: 5})
                np.testing.assert_allclose(answer["actions"], wanted(message, drawn[count]), atol=1e-6)
            ask(socket, {**message, wire.SESSION: 6})
    assert not np.allclose(wanted(message, drawn[0]), wanted(message, 0 * drawn[0]), atol=1e-2)


def test_a_chunk_goes_on_from_what_is_left_of_the_one_before():
    policy, asked = flow(), []
    act_after = policy.act_after

    def noted(obs, noise, sampling, left_over, left, delay):
        asked.append((left_over.clone(), left.tolist(), delay.tolist()))
        return act_after(obs, noise, sampling, left_over, left, delay)

    policy.act_after = noted
    message, left = observation(), np.linspace(-1, 1, 14, dtype=np.float32).reshape(2, 7)
    with serving(policy, fixed_shape=True, max_batch=2) as served, served.connect() as socket:
        assert wire.unpack(socket.recv(timeout=10))["continues"] is True
        plain = ask(socket, message)["actions"]
        assert not asked, "nothing is left of a first chunk"
        answer = ask(socket, {**message, wire.LEFT_OVER: left, wire.DELAY_STEPS: 9})["actions"]
        assert np.array_equal(answer[:2], left)
        assert not np.array_equal(plain[:2], left)
        left_over, count, delay = asked[0]
        assert (count, delay) == ([2, 2], [2, 2]), "the row that fills the batch is the same"
        assert np.array_equal(left_over[0], np.concatenate([left, 0 * left]))
        for wrong in (left[:, :3], np.zeros((5, 7), np.float32), np.full((1, 7), np.nan), np.zeros(7), "left"):
            error = ask(socket, {**message, wire.LEFT_OVER: wrong})["error"]
            assert error["kind"] == "request"
            assert wire.LEFT_OVER in error["message"]


@pytest.mark.parametrize("offers", [True, False])
def test_the_queue_of_a_robot_sends_what_is_left_to_a_server_that_goes_on_from_it(offers):
    policy = flow(Halves if offers else BeginsAnew)
    before = np.zeros((0, 7), np.float32)
    with serving(policy) as served, Client(f"ws://{served.address}") as client:
        assert client.continues is offers
        queue = ChunkQueue(client, execute=2, mode="realtime")
        for step in range(6):
            queue.action(observation())
            if queue._pending is not None:
                queue._pending.result()
                before = queue._plan.left  # planned, and still to be executed when the answer is there
                queue._collect(wait=True)
                same = np.array_equal(queue._plan.left[: len(before)], before / 2)  # nothing is blended into it
                assert same == (offers or not len(before)), step
    assert len(before)


def test_a_server_that_begins_anew_answers_as_before():
    message, left = observation(), np.zeros((2, 7), np.float32)
    with serving(flow(BeginsAnew)) as served, served.connect() as socket:
        assert wire.unpack(socket.recv(timeout=10))["continues"] is False
        plain, told = (ask(socket, {**message, wire.SESSION: 1, **own}) for own in ({}, {wire.LEFT_OVER: left}))
        with Client(f"ws://{served.address}") as client, pytest.raises(WireError, match="begins each chunk anew"):
            client.infer(message, left_over=left)
    declared = flow().spec.noise
    for count, answer in enumerate((plain, told)):
        drawn = noise(0, Stream.SERVED_NOISE, 1, count, declared)
        np.testing.assert_allclose(answer["actions"], wanted(message, drawn), atol=1e-6)
