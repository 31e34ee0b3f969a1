"""The policy port of a policy that decodes: requests in lanes, which are refilled as they end.

    queue ──▶ lane 0 │ prompt │ token │ token │ end ──▶ row of the request
              lane 1 │ prompt │ token │ …
              lane 2 │ end of one, prompt of the next │ token …

Each poll admits what fits into free lanes, advances all lanes by a token, and gives back what is whole. So env workers
verify texts while others are still written. Lanes and order change no token (:class:`embodied.protocols.Decoding`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch

from embodied.protocols import Decodes, Policy
from embodied.random import Stream
from embodied.runtime.policy.policy_port import Draw, PolicyPort, PolicyRows, Request
from embodied.runtime.slab import Slab
from embodied.types import Decision, EnvSpec, Sampling


class Decoder(PolicyPort):
    """A policy port that answers observations by decoding token by token, ``lanes`` at a time.

    Args:
        policy: a policy that is :class:`embodied.protocols.Decodes`.
        env: the policy is bound to it when a rollout begins.
        before_act: given the observations of each admission before it is made.
        enforce_eager: False: the step that advances all lanes is replayed as a CUDA graph, where there is a GPU.

    Raises:
        SpecMismatchError: (from ``poll``) the policy's decision is not what its spec declares.
    """

    def __init__(
        self,
        policy: Policy,
        slab: Slab,
        env: EnvSpec,
        device: torch.device,
        lanes: int,
        before_act: Callable[[Mapping[str, torch.Tensor]], None] = lambda obs: None,
        enforce_eager: bool = True,
    ) -> None:
        assert isinstance(policy, Decodes)
        self._policy, self._env, self._device, self._before_act = policy, env, device, before_act
        self._rows = PolicyRows(policy, slab, env, device)
        self._decoding, self._lanes = policy.decoding(lanes, enforce_eager), lanes
        self._noise, self._value = policy.spec.noise, policy.spec.decision.get("value")
        self._draw = Draw(Sampling(), 0, Stream.TRAIN_NOISE)
        self._queue: deque[Request] = deque()
        self._busy: dict[int, Request] = {}  # lane → what it answers

    def begin(self, draw: Draw) -> None:
        self._policy.bind(self._env)
        self._draw, self._queue, self._busy = draw, deque(), {}
        self._decoding.begin(draw.sampling)

    def submit(self, requests: Sequence[Request]) -> None:
        self._queue.extend(requests)

    def poll(self) -> list[Request]:
        self._admit()
        if not self._busy:
            return []
        with torch.inference_mode():
            whole = list(self._decoding.step())
            if not whole:
                return []
            decision = self._decoding.take(whole)
        answered = [self._busy.pop(lane) for lane in whole]
        self._rows.write([request.row for request in answered], decision)
        return answered

    def _admit(self) -> None:
        """Give free lanes the requests that have waited longest."""
        free = [lane for lane in range(self._lanes) if lane not in self._busy][: len(self._queue)]
        if not free:
            return
        requests = [self._queue.popleft() for _ in free]
        drawn = self._draw.noise_of(requests, self._noise)
        obs = self._rows.observations([request.row for request in requests])
        self._before_act(obs)
        with torch.inference_mode():
            self._decoding.admit(free, obs, torch.from_numpy(drawn).to(self._device))
        self._busy |= dict(zip(free, requests, strict=True))

    def cancel(self, slot: int) -> None:
        self._queue = deque(request for request in self._queue if request.slot != slot)
        for lane in [lane for lane, request in self._busy.items() if request.slot == slot]:
            del self._busy[lane]
            self._decoding.free(lane)

    @property
    def pending(self) -> int:
        return len(self._queue) + len(self._busy)

    def value(self, requests: Sequence[Request]) -> None:
        for first in range(0, len(requests), self._lanes):
            assert self._value is not None
            rows = [request.row for request in requests[first : first + self._lanes]]
            obs = self._rows.observations(rows)
            self._before_act(obs)
            values = torch.zeros(len(rows), *self._value.shape, device=self._device)
            with torch.inference_mode():
                values[:, 0] = self._decoding.value(obs)
            self._rows.write(rows, Decision({"value": values}), only="value")

    def end(self, whole: bool = True) -> None:
        self._queue, self._busy = deque(), {}
        self._decoding.end()
