"""A policy port whose answers take a while: to the rollout it looks like a decoder with lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied.runtime.policy.policy_port import Draw, PolicyPort, Request


@dataclass
class _Lane:
    request: Request
    left: int  # polls until it is answered


class DecoderPort:
    """Answers each request after 1 … ``longest`` polls, by another port.

    How long a request takes is a function of (seed, episode, t), like the length of a text. Requests that were
    submitted together are answered one after another, later ones overtake earlier ones, and requests that do not fit
    into the lanes wait.

    Args:
        inner: makes the decisions, one request at a time.
        lanes: requests that are worked on at the same time.
        longest: most polls of a request.
    """

    def __init__(self, inner: PolicyPort, lanes: int, longest: int = 20) -> None:
        self._inner, self._lanes, self._longest = inner, lanes, longest
        self._waiting: deque[Request] = deque()
        self._busy: list[_Lane] = []
        self._seed = 0
        self.most_busy = 0  # lanes that were busy at once
        self.overtaken = 0  # answers that came before that of an earlier request

    def begin(self, draw: Draw) -> None:
        self._inner.begin(draw)
        self._seed, self._waiting, self._busy = draw.seed, deque(), []

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)

    def poll(self) -> list[Request]:
        while self._waiting and len(self._busy) < self._lanes:
            request = self._waiting.popleft()
            self._busy.append(_Lane(request, self._polls(request)))
        self.most_busy = max(self.most_busy, len(self._busy))
        for lane in self._busy:
            lane.left -= 1
        finished = [lane for lane in self._busy if lane.left == 0]
        self.overtaken += sum(
            any(other.left > 0 for other in self._busy[: self._busy.index(lane)]) for lane in finished
        )
        self._busy = [lane for lane in self._busy if lane.left > 0]
        answered: list[Request] = []
        for lane in finished:
            self._inner.submit([lane.request])
            answered += self._inner.poll()
        return answered

    def cancel(self, slot: int) -> None:
        self._waiting = deque(request for request in self._waiting if request.slot != slot)
        self._busy = [lane for lane in self._busy if lane.request.slot != slot]

    @property
    def pending(self) -> int:
        return len(self._waiting) + len(self._busy)

    def value(self, requests: Sequence[Request]) -> None:
        self._inner.value(requests)

    def end(self, whole: bool = True) -> None:
        self._inner.end(whole)

    def _polls(self, request: Request) -> int:
        drawn = np.random.default_rng([self._seed, request.episode_id, request.t, 1])
        return int(drawn.integers(1, self._longest + 1))
