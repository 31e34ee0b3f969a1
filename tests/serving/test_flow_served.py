"""A flow policy behind a server: greedy answers begin with noise of the session."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from serving_rig import ENV, ask, observation, serving

from embodied.client import wire
from embodied.random import Stream
from embodied.runtime.plan import noise
from embodied.testing import FlowPolicy
from embodied.types import Sampling


def flow() -> FlowPolicy:
    policy = FlowPolicy(one_step=True)
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
