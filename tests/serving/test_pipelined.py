"""A client that does not wait for an answer before it asks the next question."""

from __future__ import annotations

import pytest
from serving_rig import Served, SlowPolicy, ask, observation

from embodied.client import wire


def questions(count: int, **more: object) -> list[bytes]:
    return [wire.pack({**observation(k), wire.REQUEST_ID: k, **more}) for k in range(count)]


def test_frames_that_come_at_once_are_answered_one_after_the_other(served: Served):
    with served.connect() as socket:
        socket.recv()
        alone = [ask(socket, wire.unpack(frame)) for frame in questions(6, **{wire.GREEDY: True})]
    with served.connect() as socket:
        socket.recv()
        for frame in questions(6, **{wire.GREEDY: True}):
            socket.send(frame)
        answers = [wire.unpack(socket.recv(timeout=30)) for _ in range(6)]
        assert [answer[wire.REQUEST_ID] for answer in answers] == [*range(6)]
        for answer, expected in zip(answers, alone, strict=True):
            assert (answer[wire.ACTIONS] == expected[wire.ACTIONS]).all()
        assert ask(socket, {**observation(9), wire.REQUEST_ID: 9})[wire.REQUEST_ID] == 9


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_bad_frame_among_them_costs_the_others_nothing(served: Served, bad: int):
    frames = questions(3)
    frames[bad] = wire.pack({**observation(), wire.REQUEST_ID: bad, "prompt": ""})
    with served.connect() as socket:
        socket.recv()
        for frame in frames:
            socket.send(frame)
        answers = [wire.unpack(socket.recv(timeout=30)) for _ in range(3)]
    assert [answer[wire.REQUEST_ID] for answer in answers] == [0, 1, 2]
    assert [wire.ERROR in answer for answer in answers] == [k == bad for k in range(3)]


def test_a_frame_waits_while_the_one_before_is_under_way(serve):
    policy = SlowPolicy(paced=True)
    with serve(policy).connect() as socket:
        socket.recv()
        policy.batches.clear()
        for frame in questions(3):
            socket.send(frame)
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.3)
        assert len(policy.batches) == 1, "no client has two requests in a queue"
        policy.go.set()
        assert [wire.unpack(socket.recv(timeout=30))[wire.REQUEST_ID] for _ in range(3)] == [0, 1, 2]
        assert policy.batches == [1, 1, 1]
