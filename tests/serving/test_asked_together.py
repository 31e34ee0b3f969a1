"""A policy behind a server asks about all slots that wait in one frame, where the server takes that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from embodied.models.served import build_policy
from embodied.models.served.dialects import Address, Question
from embodied.models.served.dialects.openpi import connect
from serving_rig import ENV, SlowPolicy, observation, serving
from stub_server import Stub, cut, stub_server

from embodied.client import wire
from embodied.errors import EmbodiedError
from embodied.types import Sampling

GREEDY = Sampling(do_sample=False)
QUICK: dict[str, Any] = {"timeout_s": 2.0, "connect_s": 2.0, "reconnect_s": 3.0}


@contextmanager
def served(url: str, **keys: Any) -> Iterator[Any]:
    policy = build_policy(url=url, **{**QUICK, **keys})
    try:
        policy.bind(ENV)
        yield policy
    finally:
        policy._crew.close()


def put(policy: Any, *numbers: int) -> None:
    for number in numbers:
        obs = {name: observation(number)[name] for name in ("images", "state")}
        policy.ask(number, obs, ENV.tasks[0], np.zeros(2, np.float32), GREEDY)


def taken(policy: Any, count: int) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    until = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < until
        for number, decision in policy.answers(0.5):
            assert number not in found, "each is answered once"
            found[number] = decision["actions"]
    return found


def test_slots_that_wait_share_a_call_and_get_what_they_get_alone():
    policy = SlowPolicy()
    with serving(policy, max_batch=8, fixed_shape=True) as server, served(f"ws://{server.address}") as asks:
        put(asks, 9)  # the connection asks the fixed observations first
        taken(asks, 1)
        policy.batches.clear()
        alone: dict[int, np.ndarray] = {}
        for number in range(6):
            put(asks, number)
            alone |= taken(asks, 1)
        assert policy.batches == [8] * 6, "filled up, each a call"
        policy.batches.clear()
        put(asks, *range(6))
        found = taken(asks, 6)
        assert len(policy.batches) == 1
        assert {number: actions.tobytes() for number, actions in found.items()} == {
            number: actions.tobytes() for number, actions in alone.items()
        }


def described(**more: Any) -> dict[str, Any]:
    """Metadata of a server of ours for the env of the tests."""
    with serving(max_batch=8) as server, server.connect() as socket:
        return {**wire.unpack(socket.recv(timeout=10)), **more}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """A reply that says which state was asked about."""
    actions = np.full((4, 7), np.tanh(np.asarray(request["state"]).sum()), np.float32)
    return {"actions": actions, wire.REQUEST_ID: request[wire.REQUEST_ID]}


def answers(request: Mapping[str, Any], connection: Any = None) -> dict[str, Any]:
    if wire.REQUESTS in request:
        return {wire.REPLIES: [answer(one) for one in request[wire.REQUESTS]]}
    return answer(request)


def expected(number: int) -> np.float32:
    return np.tanh(np.asarray(observation(number)["state"]).sum())


def sizes(stub: Stub) -> list[int]:
    """Requests of each frame; 0 for a frame of one that is no list."""
    return [len(frame.get(wire.REQUESTS, ())) for frame in stub.requests]


@pytest.mark.parametrize(
    ("more", "frames"),
    [
        ({"requests": 8}, [6]),
        ({"requests": 4}, [2, 4]),
        ({"requests": 1}, [0] * 6),
        ({"requests": 8, "limits": {"max_bytes": 2 * observation()["images"].nbytes + 2000}}, [2, 2, 2]),
        ({"requests": 8, "limits": {"max_bytes": 10}}, [0] * 6),
    ],
    ids=["one frame", "as many as it takes", "one by one", "as large as it takes", "too large for any"],
)
def test_a_frame_holds_what_the_server_takes(more, frames):
    with stub_server(answers, metadata=described(**more)) as stub, served(stub.url) as policy:
        assert set(sizes(stub)) == {0}, "the fixed observations are asked one by one, whatever it takes"
        for _ in range(2):  # also over connections that did not stand
            stub.requests.clear()
            put(policy, *range(6))
            assert stub.requests == [], "nothing is sent before all are put"
            found = taken(policy, 6)
            asked = [n for n in sizes(stub) if n or frames[0] == 0]
            assert sorted(asked)[-len(frames) :] == frames
            assert all((found[number] == expected(number)).all() for number in range(6))


def test_frames_that_the_server_takes_side_by_side_are_sent_so():
    """Questions too large for one frame do not wait for each other's answers."""
    all_here = threading.Barrier(3)

    def meeting(request: Mapping[str, Any], connection: Any) -> Any:
        if wire.REQUESTS in request:
            all_here.wait(10)
        return answers(request)

    limits = {"max_bytes": 2 * observation()["images"].nbytes + 2000}
    with stub_server(meeting, metadata=described(limits=limits)) as stub, served(stub.url, timeout_s=20) as policy:
        put(policy, *range(6))
        assert len(taken(policy, 6)) == 6


def test_a_server_that_does_not_say_that_it_takes_several_is_asked_one_by_one():
    metadata = described()
    del metadata["requests"]
    with stub_server(answers, metadata=metadata) as stub, served(stub.url) as policy:
        put(policy, *range(6))
        assert len(taken(policy, 6)) == 6
        assert set(sizes(stub)) == {0}


def test_a_lone_slot_waits_for_nobody():
    """Neither for others, nor for an answer that is under way."""
    held = threading.Event()

    def holding(request: Mapping[str, Any], connection: Any) -> Any:
        if wire.REQUESTS in request:
            assert held.wait(10)
        return answers(request)

    with stub_server(holding, metadata=described()) as stub, served(stub.url) as policy:
        put(policy, 0, 1)
        assert policy.answers(0.0) == []
        while max(sizes(stub)) < 2:
            time.sleep(0.005)
        put(policy, 2)
        found = dict(policy.answers(5.0))
        assert [*found] == [2]
        assert stub.requests[-1].keys() >= {"state", wire.DRAW}, "a frame of its own"
        held.set()
        assert taken(policy, 2).keys() == {0, 1}


@pytest.mark.parametrize("fewer", [8, 2, 1])
def test_a_server_that_dies_within_a_frame_leaves_nothing_mixed(fewer):
    """The whole frame is asked again; also if the server that comes again takes fewer at once."""
    metadata = described()
    died = threading.Event()

    def dying(request: Mapping[str, Any], connection: Any) -> Any:
        if wire.REQUESTS in request and not died.is_set():
            died.set()
            stub.metadata = {**metadata, "requests": fewer}
            cut(connection)
            return None
        return answers(request)

    with stub_server(dying, metadata=metadata) as stub, served(stub.url, connections=2) as policy:
        put(policy, *range(5))
        found = taken(policy, 5)
        assert died.is_set()
        assert {number: float(actions[0, 0]) for number, actions in found.items()} == {
            number: float(expected(number)) for number in range(5)
        }
        assert max(sizes(stub)[-5:]) == (5 if fewer == 8 else 2 if fewer == 2 else 0)
        assert policy.answers(0.2) == [], "and each once"


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        (lambda right: {wire.REPLIES: right[:-1]}, "expected a list of 3"),
        (lambda right: {wire.REPLIES: right[::-1]}, "expected the one to"),
        (lambda right: right[0], "expected a list of 3"),
        (lambda right: {wire.REPLIES: [*right[:2], {"error": {"kind": "policy", "message": "no"}}]}, "no"),
    ],
)
def test_answers_that_are_not_those_to_the_questions(replies, error):
    def wrong(request: Mapping[str, Any], connection: Any) -> Any:
        right = answers(request)
        return replies(right[wire.REPLIES]) if wire.REQUESTS in request else right

    with stub_server(wrong, metadata=described()) as stub, served(stub.url) as policy:
        put(policy, 0, 1, 2)
        with pytest.raises(EmbodiedError, match=error):
            taken(policy, 3)


def test_a_busy_server_is_asked_again_about_all():
    asked: list[int] = []

    def busy(request: Mapping[str, Any], connection: Any) -> Any:
        right = answers(request)
        if wire.REQUESTS in request:
            asked.append(len(request[wire.REQUESTS]))
            if len(asked) == 1:
                right[wire.REPLIES][1] = {"error": {"kind": "busy", "message": "wait"}}
        return right

    with stub_server(busy, metadata=described()) as stub, served(stub.url) as policy:
        put(policy, 0, 1, 2)
        found = taken(policy, 3)
    assert asked == [3, 3]
    assert all((found[number] == expected(number)).all() for number in range(3))


def test_a_request_is_never_larger_than_was_said():
    noise = np.zeros((3, 4, 7), np.float32)
    for fields in (
        {**observation(), "images": observation()["images"]},
        {"prompt": "ü" * 500, "state": np.zeros(8, np.float32)},
        {"prompt": "\U0001f916" * 50, "a key": 1.5},
    ):
        question = Question(fields, session=1 << 61, noise=noise)
        with stub_server(answers, metadata=described()) as stub:
            line = connect(Address(stub.url), time.monotonic() + 5)
            request = line._request(question, 1 << 40)  # type: ignore[attr-defined]
            line.close()
        assert len(wire.pack(request)) <= question.most_bytes
