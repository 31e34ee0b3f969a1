"""Requests of several weight versions: each version has a port of its own, and the earliest comes first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from embodied.random import Stream
from embodied.runtime.policy.by_version import ByVersion
from embodied.runtime.policy.policy_port import Draw, Request
from embodied.types import Sampling


class Weights:
    """Ports that note with which weights they answer.

    Args:
        polls: calls after which a port answers, two requests at a time.
    """

    def __init__(self, polls: int = 1) -> None:
        self.polls, self.now = polls, -1
        self.calls: list[tuple[int, list[int]]] = []  # weights, slots that were answered
        self.made: list[Two] = []

    def use(self, version: int) -> None:
        self.now = version

    def make(self) -> Two:
        self.made.append(Two(self))
        return self.made[-1]


class Two:
    """Answers two requests at a time, after some calls with the weights with which it began."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._began, self._polled = weights, -1, 0
        self.queue: list[Request] = []
        self.ended: list[bool] = []

    def begin(self, draw: Draw) -> None:
        self.queue, self._began, self._polled, self.draw = [], self._weights.now, 0, draw

    def submit(self, requests: Sequence[Request]) -> None:
        self.queue += requests

    def poll(self) -> list[Request]:
        assert self.queue
        assert {request.version for request in self.queue} == {self._weights.now} == {self._began}
        self._polled += 1
        if self._polled % self._weights.polls:
            return []
        answered, self.queue = self.queue[:2], self.queue[2:]
        self._weights.calls.append((self._weights.now, [request.slot for request in answered]))
        return answered

    def cancel(self, slot: int) -> None:
        self.queue = [request for request in self.queue if request.slot != slot]

    @property
    def pending(self) -> int:
        return len(self.queue)

    def value(self, requests: Sequence[Request]) -> None:
        self._weights.calls.append((self._weights.now, [request.slot for request in requests]))

    def end(self, whole: bool = True) -> None:
        self.queue = []
        self.ended.append(whole)


DRAW = Draw(Sampling(temperature=0.5), 7, Stream.TRAIN_NOISE)


def begun(polls: int = 1) -> tuple[Weights, ByVersion]:
    weights = Weights(polls)
    port = ByVersion(weights.make, weights.use)
    port.begin(DRAW)
    return weights, port


def requests(*versions: int) -> list[Request]:
    return [Request(slot, slot, slot, 0, version) for slot, version in enumerate(versions)]


def test_a_call_has_one_version_and_the_earliest_comes_first():
    weights, port = begun()
    port.submit(requests(5, 4, 5, 4, 4))
    assert port.pending == 5
    answered = [request.slot for _ in range(4) for request in port.poll()]
    assert weights.calls == [(4, [1, 3]), (4, [4]), (5, [0, 2])]
    assert answered == [1, 3, 4, 0, 2]
    assert (port.pending, port.poll()) == (0, [])
    assert [one.draw for one in weights.made] == [DRAW] * 2


def test_later_versions_go_on_while_earlier_ones_work_on_theirs():
    """Ports answer at each third call. None waits until those before it have nothing left."""
    weights, port = begun(polls=3)
    port.submit(requests(4, 4, 4, 5, 6))
    answered = [[request.slot for request in port.poll()] for _ in range(7)]
    assert answered == [[], [], [0, 1], [3], [4], [2], []]
    assert weights.calls == [(4, [0, 1]), (5, [3]), (6, [4]), (4, [2])]


def test_requests_that_come_in_between_join_their_version():
    weights, port = begun()
    port.submit(requests(4, 4, 4, 5))
    port.poll()
    port.submit([Request(7, 7, 7, 0, 4), Request(8, 8, 8, 0, 3)])
    for _ in range(4):
        port.poll()
    assert weights.calls == [(4, [0, 1]), (3, [8]), (4, [2, 7]), (5, [3])]


def test_a_port_of_which_nothing_is_left_takes_a_later_version():
    """It is ended before it begins again: what it keeps was computed with earlier weights."""
    weights, port = begun()
    for version in range(6):
        port.submit([Request(2 * version, 0, 0, 0, version), Request(2 * version + 1, 0, 0, 0, version + 1)])
        port.poll()
    assert len(weights.made) == 2
    assert sum(len(one.ended) for one in weights.made) == 5
    port.submit([Request(99, 0, 0, 0, 3)])
    assert [request.slot for request in port.poll()] == [99], "an earlier version may come back"


@pytest.mark.parametrize("polls", [1, 9])
def test_a_cancelled_request_is_answered_by_nobody_wherever_it_waits(polls):
    _, port = begun(polls)
    port.submit(requests(4, 4, 4, 5, 5))
    port.poll()
    port.cancel(2)
    port.cancel(3)
    left = 5 - 2 - 2 * (polls == 1)
    assert port.pending == left
    assert sorted(request.slot for _ in range(40) for request in port.poll()) == [0, 1, 4][3 - left :]


def test_values_are_those_of_the_requests_version_amid_others():
    weights, port = begun()
    port.submit(requests(5, 5, 5, 4))
    port.poll()
    port.value([Request(-1, 9, 9, 3, 5), Request(-2, 8, 8, 3, 2)])
    port.poll()
    assert weights.calls == [(4, [3]), (5, [-1]), (2, [-2]), (5, [0, 1])]


@pytest.mark.parametrize("how", ["end", "begin"])
def test_an_end_forgets_what_waits(how):
    weights, port = begun()
    port.submit(requests(5, 4))
    port.end(whole=False) if how == "end" else port.begin(DRAW)
    assert (port.pending, port.poll()) == (0, [])
    assert [one.ended for one in weights.made] == [[False], [False]]
    port.submit(requests(6))
    assert len(port.poll()) == 1
    assert len(weights.made) == 2
