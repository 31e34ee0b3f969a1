"""The client's side of vla-eval's protocol: against our server, and (slow) against vla-eval's own."""

from __future__ import annotations

import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from embodied.models.served.dialects import Address, Gone, Question
from embodied.models.served.dialects.vla_eval import actions_of, connect
from environments import python_with
from serving_rig import ENV, ask, observation, serving

from embodied.errors import ServerRefusedError, WireError
from embodied.testing import FakePolicy

SEEN = replace(ENV, cameras=("front", "robot0_eye_in_hand"))


def fields(seed: int = 0, prompt: str = "go") -> dict:
    given = observation(seed)
    return {
        "images/agentview": given["images"][0], "images/wrist": given["images"][1], "states": given["state"],
        "task_description": prompt,
    }  # fmt: skip


def asked(line, seed: int, place=None, prompt: str = "go") -> np.ndarray:
    return line.infer([Question(fields(seed, prompt), place=place)], time.monotonic() + 30)[0]


def test_episodes_have_chunks_of_their_own_whichever_line_asks():
    policy = FakePolicy()
    policy.bind(SEEN)
    with serving(policy, SEEN) as served:
        address = Address(f"ws://{served.address}/vla-eval")
        with served.connect() as direct:
            direct.recv(timeout=30)
            chunks = [ask(direct, {**observation(seed), "prompt": "go"})["actions"] for seed in (0, 1)]
        one, other = (connect(address, time.monotonic() + 30) for _ in range(2))
        assert np.array_equal(asked(one, 0, (5, 0)), chunks[0][0])
        assert np.array_equal(asked(one, 1, (6, 0)), chunks[1][0])
        assert np.array_equal(asked(other, 1, (5, 1)), chunks[0][1])
        assert np.array_equal(asked(other, 0, (6, 1)), chunks[1][1])
        assert np.array_equal(asked(one, 1), chunks[1][0])
        assert np.array_equal(asked(one, 1, (5, 0)), chunks[1][0]), "an episode that begins again"
        one.close()
        other.close()


def test_errors_are_told():
    policy = FakePolicy()
    policy.bind(SEEN)
    with serving(policy, SEEN) as served:
        line = connect(Address(f"ws://{served.address}/vla-eval"), time.monotonic() + 30)
        with pytest.raises(ServerRefusedError, match="no picture of the camera"):
            line.infer([Question({"task_description": "go", "states": np.zeros(8)})], time.monotonic() + 30)
        with pytest.raises(WireError):  # openpi's protocol is spoken there
            connect(Address(f"ws://{served.address}"), time.monotonic() + 30)
        line.close()


@pytest.mark.parametrize("value", [None, "x", [], [[1], [1, 2]], {"__ndarray__": True}, ["a"], np.zeros((2, 2, 2))])
def test_actions_that_are_none(value):
    with pytest.raises(WireError):
        actions_of({"actions": value}, "ws://x")


@pytest.mark.slow
def test_its_own_model_server(pytestconfig: pytest.Config):
    assert pytestconfig.cache is not None
    python = python_with(("vla-eval==0.8.0",), pytestconfig.cache.mkdir("vla-eval") / "venv")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([python, Path(__file__).parent / "vla_eval_model.py", str(port)])
    try:
        line, until = None, time.monotonic() + 60
        while line is None:
            try:
                line = connect(Address(f"ws://127.0.0.1:{port}"), time.monotonic() + 30)
            except Gone:
                assert time.monotonic() < until
                time.sleep(0.2)
        first = asked(line, 0, (1, 0))
        other = asked(line, 1, (2, 0))
        assert first.shape == (7,)
        assert not np.array_equal(first, other)
        second = asked(line, 3, (1, 1))
        assert np.array_equal(second[:4], first[:4]), "from the chunk before"
        assert second[4] == np.float32(0.1)
        with pytest.raises(ServerRefusedError, match="no such task"):
            asked(line, 0, prompt="break")
        line.close()
    finally:
        process.kill()
        process.wait()
