"""Errors that nobody has thought of: each request still gets one answer, and the next one its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from serving_rig import FAST, Served, SlowPolicy, ask, observation
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from embodied.client import wire
from embodied.serving.metrics import BufferedValues


def fails(*_: Any) -> Any:
    raise RuntimeError("/secret/path is broken")


def check_failed(socket: ClientConnection, number: int, **bad: Any) -> None:
    refused = ask(socket, observation() | bad | {wire.REQUEST_ID: number})
    assert refused[wire.REQUEST_ID] == number
    assert refused["error"]["message"] == "the server failed with RuntimeError"
    assert "secret" not in str(refused)


def check_answered(socket: ClientConnection, *numbers: int) -> None:
    for number in numbers:
        answer = ask(socket, observation() | {wire.REQUEST_ID: number})
        assert answer[wire.REQUEST_ID] == number
        assert "actions" in answer


def test_two_pictures_that_fail_are_answered_once(served: Served, monkeypatch, caplog):
    with served.connect() as socket:
        socket.recv(timeout=10)
        with monkeypatch.context() as patch:
            patch.setattr("embodied.serving.wire.pictures.read", fails)
            check_failed(socket, 1, images=[b"no picture"] * 2)
        check_answered(socket, 2, 3)
    assert "/secret/path is broken" in caplog.text, "the log has the traceback"


def test_a_failure_on_the_event_loop_is_answered_also_when_the_request_was_held_back(serve, monkeypatch, caplog):
    served = serve(limits=replace(FAST, rate=20.0, burst=1))
    with served.connect() as socket:
        socket.recv(timeout=10)
        with monkeypatch.context() as patch:
            patch.setattr("embodied.serving.wire.requests.QuestionReader.draft", fails)
            for number in range(3):
                check_failed(socket, number)
        check_answered(socket, 4, 5)
    assert served.metric("slowed_total") >= 2
    assert "/secret/path is broken" in caplog.text


def test_a_request_that_fails_after_it_was_handed_over_is_answered_once(serve, monkeypatch):
    policy = SlowPolicy(paced=True)
    served = serve(policy)
    submit = served.server.service.submit

    def fails_late(*arguments: Any) -> None:
        submit(*arguments)
        fails()

    with served.connect() as socket:
        socket.recv(timeout=10)
        with monkeypatch.context() as patch:
            patch.setattr(served.server.service, "submit", fails_late)
            check_failed(socket, 1)
        policy.go.set()
        check_answered(socket, 2, 3)


def test_an_answer_that_could_not_be_written_at_once_ends_the_connection(served: Served, monkeypatch, caplog):
    send = web.WebSocketResponse.send_bytes

    async def waits(self: web.WebSocketResponse, frame: bytes) -> None:
        await asyncio.sleep(0)
        await send(self, frame)

    monkeypatch.setattr(web.WebSocketResponse, "send_bytes", waits)
    with served.connect() as socket:
        socket.recv(timeout=10)
        socket.send(wire.pack(observation()))
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)
    assert "was not answered" in caplog.text


def test_values_are_worked_into_their_metrics_a_few_at_a_time():
    worked_in: list[float] = []
    noted = BufferedValues(most=10)
    counts = [noted(worked_in.append, number) or len(worked_in) for number in range(30)]
    assert max(np.diff(counts)) <= 2
    assert 30 - counts[-1] <= 10
    noted.collect()
    assert worked_in == [*range(30)]
