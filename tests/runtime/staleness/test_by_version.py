"""Requests of several weight versions: each call of the policy has those of one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from embodied.random import Stream
from embodied.runtime.policy.by_version import ByVersion
from embodied.runtime.policy.policy_port import Draw, Request
from embodied.types import Sampling


class Two:
    """Answers two requests a call, and notes with which weights."""

    def __init__(self) -> None:
        self.weights = -1
        self.calls: list[tuple[int, list[int]]] = []
        self.queue: list[Request] = []
        self.ended: list[bool] = []

    def use(self, version: int) -> None:
        self.weights = version

    def begin(self, draw: Draw) -> None:
        self.queue = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.queue += requests

    def poll(self) -> list[Request]:
        now, self.queue = self.queue[:2], self.queue[2:]
        if now:
            assert {request.version for request in now} == {self.weights}
            self.calls.append((self.weights, [request.slot for request in now]))
        return now

    def cancel(self, slot: int) -> None:
        self.queue = [request for request in self.queue if request.slot != slot]

    @property
    def pending(self) -> int:
        return len(self.queue)

    def value(self, requests: Sequence[Request]) -> None:
        self.calls.append((self.weights, [request.slot for request in requests]))

    def end(self, whole: bool = True) -> None:
        self.ended.append(whole)


@pytest.fixture
def both() -> tuple[Two, ByVersion]:
    inner = Two()
    port = ByVersion(inner, inner.use)
    port.begin(Draw(Sampling(), 0, Stream.TRAIN_NOISE))
    return inner, port


def requests(*versions: int) -> list[Request]:
    return [Request(slot, slot, slot, 0, version) for slot, version in enumerate(versions)]


def test_a_call_has_one_version_and_the_earliest_comes_first(both):
    inner, port = both
    port.submit(requests(5, 4, 5, 4, 4))
    assert port.pending == 5
    answered = [request.slot for _ in range(4) for request in port.poll()]
    assert inner.calls == [(4, [1, 3]), (4, [4]), (5, [0, 2])]
    assert answered == [1, 3, 4, 0, 2]
    assert (port.pending, port.poll()) == (0, [])


def test_requests_that_come_in_between_join_their_version(both):
    inner, port = both
    port.submit(requests(4, 4, 4, 5))
    port.poll()
    port.submit([Request(7, 7, 7, 0, 4), Request(8, 8, 8, 0, 3)])
    for _ in range(4):
        port.poll()
    assert inner.calls == [(4, [0, 1]), (4, [2, 7]), (3, [8]), (5, [3])]


def test_a_cancelled_request_is_answered_by_nobody_wherever_it_waits(both):
    inner, port = both
    port.submit(requests(4, 4, 4, 5, 5))
    port.poll()
    port.cancel(2)
    port.cancel(3)
    assert port.pending == 1
    port.poll()
    assert inner.calls == [(4, [0, 1]), (5, [4])]


def test_values_are_those_of_the_requests_version_amid_others(both):
    inner, port = both
    port.submit(requests(5, 5, 5))
    port.poll()
    port.value([Request(-1, 9, 9, 3, 2)])
    port.poll()
    assert inner.calls == [(5, [0, 1]), (2, [-1]), (5, [2])]


def test_an_end_forgets_what_waits(both):
    inner, port = both
    port.submit(requests(5, 4))
    port.end(whole=False)
    assert (port.pending, inner.ended) == (0, [False])
