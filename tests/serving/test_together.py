"""Several requests in one frame of openpi's protocol, at our server."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from serving_rig import FAST, Served, SlowPolicy, ask, observation

from embodied.client import wire
from embodied.serving.wire import pictures
from embodied.serving.wire.requests import Draft, Question


def together(*requests: Mapping[str, Any]) -> dict[str, Any]:
    return {wire.REQUESTS: [*requests]}


@contextmanager
def talking(served: Served) -> Iterator[Callable[[Mapping[str, Any]], Any]]:
    """A connection whose metadata were read; asks."""
    with served.connect() as socket:
        socket.recv(timeout=10)
        yield lambda message: ask(socket, message)


def test_they_share_a_call_and_are_answered_as_alone(serve):
    policy = SlowPolicy()
    served = serve(policy, max_batch=4, fixed_shape=True)
    requests = [observation(k) | {wire.GREEDY: k != 2, wire.DRAW: k, wire.REQUEST_ID: f"r{k}"} for k in range(4)]
    with talking(served) as asked:
        alone = [asked(one) for one in requests]
        policy.batches.clear()
        replies = asked(together(*requests[:2], requests[3]))[wire.REPLIES]
        assert len(policy.batches) == 1
        assert [reply[wire.REQUEST_ID] for reply in replies] == ["r0", "r1", "r3"]
        assert [reply["server_timing"]["batch"] for reply in replies] == [3, 3, 3]
        for reply, expected in zip(replies, (alone[0], alone[1], alone[3]), strict=True):
            assert reply["actions"].tobytes() == expected["actions"].tobytes()
        mixed = asked(together(*requests))[wire.REPLIES]  # a drawn one among greedy ones has a call of its own
        assert [one["actions"].tobytes() for one in mixed] == [one["actions"].tobytes() for one in alone]
    assert served.metric("requests_total", {"protocol": "openpi"}) == 4 + 3 + 4


def test_drawn_ones_count_in_the_session_in_their_order(serve):
    served = serve(fixed_shape=True)
    drawn = [observation(k) | {wire.GREEDY: False} for k in range(4)]
    with talking(served) as asked:
        alone = [asked(one)["actions"] for one in drawn]
    with talking(served) as asked:
        first = asked(drawn[0])["actions"]
        rest = [reply["actions"] for reply in asked(together(*drawn[1:]))[wire.REPLIES]]
    assert all(np.array_equal(*pair) for pair in zip((first, *rest), alone, strict=True))


def test_one_that_fails_costs_the_others_nothing(serve):
    served = serve(SlowPolicy())
    bad = {**observation(1), "state": np.zeros(3, np.float32), wire.REQUEST_ID: 7}
    fine = observation(0) | {wire.REQUEST_ID: 6}
    with talking(served) as asked:
        expected = asked(fine)["actions"]
        for failing, kind in (
            (bad, "request"), ({**bad, "prompt": ""}, "request"), (observation() | {"prompt": "fail"}, "policy"),
            (observation() | {wire.NOISE: np.zeros(1, np.float32)}, "request"), (7, "request"),
            (together(fine), "request"),
        ):  # fmt: skip
            first, second, third = asked(together(fine, failing, fine))[wire.REPLIES]
            assert second["error"]["kind"] == kind
            assert np.allclose(first["actions"], expected, atol=1e-6)
            assert np.allclose(third["actions"], expected, atol=1e-6)
        replies = asked(together(bad, bad | {wire.REQUEST_ID: 8}))[wire.REPLIES]
        assert [reply["error"]["kind"] for reply in replies] == ["request", "request"], "none is left to ask about"
        assert [reply[wire.REQUEST_ID] for reply in replies] == [7, 8]


def test_an_unforeseen_error_is_that_of_its_request(serve, monkeypatch, caplog):
    question = Draft.question

    def breaks(draft: Draft) -> Question:
        if (found := question(draft)).prompt == "break":
            raise RuntimeError("nobody expects it")
        return found

    monkeypatch.setattr(Draft, "question", breaks)
    with talking(serve()) as asked:
        replies = asked(together(observation(), {**observation(), "prompt": "break"}, observation()))[wire.REPLIES]
    assert "RuntimeError" in replies[1]["error"]["message"]
    assert all("actions" in replies[place] for place in (0, 2))
    assert "nobody expects it" in caplog.text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({wire.REQUESTS: []}, "0 requests"),
        ({wire.REQUESTS: [observation()] * 5}, "5 requests"),
        ({wire.REQUESTS: observation()}, "a dict"),
        ({wire.REQUESTS: None}, "a NoneType"),
        ({wire.REQUESTS: [observation()], "prompt": "go"}, "a map of 2 keys"),
    ],
)
def test_frames_that_are_none(serve, message, said):
    with talking(serve(max_batch=4)) as asked:
        error = asked(message)["error"]
        assert error["kind"] == "request"
        assert said in error["message"]
        assert "a list of 1 to 4 requests" in error["message"]
        assert len(asked(together(observation()))[wire.REPLIES]) == 1, "the connection goes on"


def test_pictures_of_all_are_decoded_before_the_policy_is_asked(serve, monkeypatch):
    read, last = pictures.read, threading.Event()

    def slow(value: bytes, *others: Any) -> Any:
        if value == files[-1]:
            assert last.wait(10)
        return read(value, *others)

    monkeypatch.setattr(pictures, "read", slow)
    files = []
    for seed in range(3):
        file = io.BytesIO()
        Image.fromarray(observation(seed)["images"][0]).save(file, "PNG")
        files.append(file.getvalue())
    policy = SlowPolicy()
    served = serve(policy)
    with talking(served) as asked, ThreadPoolExecutor(1) as thread:
        alone = [asked(observation(seed) | {"images": [observation(seed)["images"][0]] * 2}) for seed in range(3)]
        policy.batches.clear()
        answer = thread.submit(asked, together(*(observation(k) | {"images": [files[k]] * 2} for k in range(3))))
        time.sleep(0.2)
        assert policy.batches == [], "two are read, and wait for the third"
        last.set()
        replies = answer.result(30)[wire.REPLIES]
    assert policy.batches == [3]
    for reply, expected in zip(replies, alone, strict=True):
        assert np.allclose(reply["actions"], expected["actions"], atol=1e-6)


def test_a_full_queue_takes_none_of_them(serve):
    policy = SlowPolicy(paced=True)
    served = serve(policy, limits=replace(FAST, max_waiting=3), max_batch=8)
    calls = len(policy.batches)
    with talking(served) as asked, talking(served) as other, talking(served) as third, ThreadPoolExecutor(2) as threads:
        first = threads.submit(asked, observation())
        while len(policy.batches) == calls:
            time.sleep(0.005)
        waits = threads.submit(other, observation())
        while served.metric("waiting") < 1:
            time.sleep(0.005)
        refused = third(together(*[observation()] * 3))[wire.REPLIES]
        assert [reply["error"]["kind"] for reply in refused] == ["busy"] * 3
        assert served.metric("waiting") == 1
        policy.go.set()
        assert "actions" in first.result(30)
        assert "actions" in waits.result(30)
        assert all("actions" in reply for reply in third(together(*[observation()] * 3))[wire.REPLIES])
        assert "1 to 3 requests" in third(together(*[observation()] * 4))["error"]["message"], "no more ever fit"


def test_nothing_is_computed_for_a_client_that_has_gone(serve):
    policy = SlowPolicy(paced=True)
    served = serve(policy, max_batch=4)
    calls = len(policy.batches)
    with talking(served) as asked, ThreadPoolExecutor(1) as thread:
        first = thread.submit(asked, observation())
        while len(policy.batches) == calls:
            time.sleep(0.005)
        leaving = served.opened()
        leaving.recv(timeout=10)
        leaving.send(wire.pack(together(*[observation()] * 3)))
        while served.metric("waiting") < 3:
            time.sleep(0.005)
        leaving.close()
        while served.metric("waiting"):
            time.sleep(0.005)
        policy.go.set()
        assert "actions" in first.result(30)
    assert len(policy.batches) == calls + 1


def test_each_counts_towards_the_rate(serve):
    served = serve(limits=replace(FAST, rate=20.0, burst=4))
    with talking(served) as asked:
        asked(together(*[observation()] * 8))
        began = time.monotonic()
        asked(observation())
        assert time.monotonic() - began > 0.15, "four beyond the burst, at 20 a second"
    assert served.metric("slowed_total") == 1
