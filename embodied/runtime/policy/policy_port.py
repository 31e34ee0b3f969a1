"""The policy port: answers the observations that wait in rows of the slab.

    rollout ── submit(requests) ──▶ │ PolicyPort │ reads the observation of each row
    rollout ◀── poll() ──────────── │            │ writes the decision into the same row

A policy that answers in one forward pass answers a batch at each poll (:class:`OnePass`). One that decodes works on
several requests at a time, and gives back at each poll those that are finished, in any order
(:class:`embodied.runtime.policy.decoder.Decoder`). The rollout between this port and that of the envs knows neither
pixels nor tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from embodied import instructions
from embodied.errors import SpecMismatchError
from embodied.protocols import BASE, Policy
from embodied.random import Stream
from embodied.runtime.plan import noise
from embodied.runtime.policy.capture import fast_act
from embodied.runtime.slab import Slab
from embodied.types import Decision, EnvSpec, Noise, PolicySpec, Sampling


@dataclass(frozen=True)
class Request:
    """An observation that waits for a decision. The decision does not depend on who asks: equal (episode, t) and equal
    observations are answered alike, whichever slot and row they stand in."""

    slot: int
    row: int  # row of the slab: holds the observation and the record's keys; the decision goes there
    episode_id: int
    t: int  # index of the record in its episode
    version: int = 0  # of the weights that answer


@dataclass(frozen=True)
class Draw:
    """Sampling settings and random stream of a rollout's decisions."""

    sampling: Sampling
    seed: int
    stream: Stream  # seed, stream, episode and t key a decision's noise

    def noise_of(self, requests: Sequence[Request], declared: Noise) -> np.ndarray:
        """Returns the noise of their decisions, as a policy's spec declares it: [n, *shape]."""
        return np.stack([noise(self.seed, self.stream, one.episode_id, one.t, declared) for one in requests])

    def noise_of_final(self, requests: Sequence[Request], spec: PolicySpec) -> np.ndarray:
        """Returns the noise for observations that are only judged, [n, *shape]: zeros, as a value reads none. Critics
        that read what a frozen policy does there are given what it would have done."""
        if BASE in spec.decision:
            return self.noise_of(requests, spec.noise)
        return np.zeros((len(requests), *spec.noise.shape), np.float32)


class PolicyPort(Protocol):
    """Answers observations. A slot has at most one request at a time.

    Promises:

    - Each request is returned by one poll, unless it is cancelled. Its decision then stands in its row.
    - A decision is a function of weights, observation, ``Draw`` and ``(episode_id, t)``: neither the order of requests
      nor what else is answered at the same time changes it.
    - :meth:`poll` makes progress: if requests are pending, enough calls answer them.
    """

    def begin(self, draw: Draw) -> None:
        """Begins a rollout with the present weights, instructions and sampling. Nothing is pending."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Accept requests, in the order in which they are best answered."""
        ...

    def poll(self) -> list[Request]:
        """Work for a while; return the requests that were answered since the last call. Returns at once if nothing is
        pending. A port whose work is done elsewhere waits here for an answer, for some milliseconds at most: the
        rollout looks after the envs and asks again."""
        ...

    def cancel(self, slot: int) -> None:
        """Forget the request of a slot whose worker has failed, if it has one: its row may be given to others."""
        ...

    @property
    def pending(self) -> int:
        """Number of requests that are not answered."""
        ...

    def value(self, requests: Sequence[Request]) -> None:
        """Write the ``value`` of the observations of these rows, and nothing else, into the rows; where a record has
        several values, the first is that of its observation. Works in full batches, in the order of ``requests``;
        returns when all are written."""
        ...

    def end(self, whole: bool = True) -> None:
        """Frees what only a rollout needs, such as a cache of keys and values; ``whole`` False: the rollout failed.

        Args:
            whole: False: it failed, or was stopped.
        """
        ...


@runtime_checkable
class OffersPort(Protocol):
    """Interface of a stand-in for a policy that has a policy port of its own; e.g. answers that are read
    from a file."""

    def port(self, slab: Slab) -> PolicyPort:
        """The port that answers observations in the rows of ``slab``."""
        ...


class PolicyRows:
    """Reads a policy's observations from slab rows, and writes its decisions into them."""

    def __init__(self, policy: Policy, slab: Slab, env: EnvSpec, device: torch.device) -> None:
        self._policy, self._slab, self._env, self._device = policy, slab, env, device

    def observations(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """The observations of B rows on the device, with their encoded instructions: [B, …].

        Raises:
            SpecMismatchError: the policy encodes another number of instructions.
        """
        arrays = self._slab.arrays
        obs = {
            name: torch.from_numpy(arrays[name][rows]).to(self._device) for name in instructions.fields_of(self._env)
        }
        texts = instructions.of_rows(self._env, arrays, rows)
        encoded = self._policy.encode_instructions(texts)
        if wrong := [name for name, values in encoded.items() if len(values) != len(texts)]:
            raise SpecMismatchError(
                f"the policy's encode_instructions() gave {len(encoded[wrong[0]])} rows of '{wrong[0]}' for "
                f"{len(texts)} texts",
                "correct the policy; embodied.testing.check_policy drives it and says what does not fit",
            )
        return obs | {name: values.to(self._device) for name, values in encoded.items()}

    def write(self, rows: list[int], decision: Decision, fill: int = 0, only: str | None = None) -> None:
        """Writes decisions into ``rows``: all fields, or ``only`` one; ``fill`` decisions at the end belong to no row.

        Args:
            fill: decisions beyond those of ``rows``, which are not written.

        Raises:
            SpecMismatchError: the decision is not what the policy's spec declares.
        """
        for name in self._policy.spec.decision if only is None else (only,):
            self._slab.arrays[name][rows] = self._read(decision, name, len(rows) + fill)[: len(rows)]

    def _read(self, decision: Decision, name: str, rows: int) -> np.ndarray:
        declared, got = self._policy.spec.decision[name], decision.fields.get(name)
        shown = "nothing" if got is None else f"{str(got.dtype).removeprefix('torch.')} {tuple(got.shape)}"
        wanted = f"{declared.dtype} {(rows, *declared.shape)}"
        if got is None or shown != wanted:
            raise not_declared("act", name, shown, wanted)
        return got.cpu().numpy()


def not_declared(call: str, name: str, shown: str, wanted: str) -> SpecMismatchError:
    """Returns the error of a decision that is not what the policy's spec declares.

    Args:
        call: the policy's method that gave it.
        name: the field.
        shown: what it is.
        wanted: what is declared.
    """
    return SpecMismatchError(
        f"the policy's {call}() gave {shown} for '{name}', and its spec declares {wanted}",
        "correct the policy; embodied.testing.check_policy drives it and says what does not fit",
    )


class OnePass(PolicyPort):
    """A policy port that answers a batch in one call of :meth:`embodied.protocols.Policy.act`.

    Args:
        env: the policy is bound to its instructions when a rollout begins.
        batch: most rows of one call.
        fixed_shape: shorter batches are filled up by repeating a row, so that a record's numbers do not depend on how
            many others were ready with it.
        enforce_eager: False: calls are replayed as a CUDA graph.
        before_act: given the observations of each call before it is made.

    Raises:
        SpecMismatchError: (from ``poll``) the policy's decision is not what its spec declares.
    """

    def __init__(
        self,
        policy: Policy,
        slab: Slab,
        env: EnvSpec,
        device: torch.device,
        batch: int,
        fixed_shape: bool = True,
        enforce_eager: bool = True,
        before_act: Callable[[Mapping[str, torch.Tensor]], None] = lambda obs: None,
    ) -> None:
        self._policy, self._env, self._device = policy, env, device
        self._rows = PolicyRows(policy, slab, env, device)
        self._batch, self._fixed_shape, self._enforce_eager = batch, fixed_shape, enforce_eager
        self._before_act, self._noise = before_act, policy.spec.noise
        self._queue: deque[Request] = deque()
        self._act = fast_act(policy, device, enforce_eager)
        self._draw = Draw(Sampling(), 0, Stream.TRAIN_NOISE)

    def begin(self, draw: Draw) -> None:
        self._policy.bind(self._env)  # another env's task ids index other instructions
        self._draw, self._queue = draw, deque()
        self._act = fast_act(self._policy, self._device, self._enforce_eager)

    def submit(self, requests: Sequence[Request]) -> None:
        self._queue.extend(requests)

    def poll(self) -> list[Request]:
        requests = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
        if requests:
            self._answer(requests, self._draw.noise_of(requests, self._noise))
        return requests

    def cancel(self, slot: int) -> None:
        self._queue = deque(request for request in self._queue if request.slot != slot)

    @property
    def pending(self) -> int:
        return len(self._queue)

    def value(self, requests: Sequence[Request]) -> None:
        # Without a value head, critics read other fields of the decision there: embodied.protocols.ActorCritic.
        only = "value" if "value" in self._policy.spec.decision else None
        for first in range(0, len(requests), self._batch):
            part = requests[first : first + self._batch]
            self._answer(part, self._draw.noise_of_final(part, self._policy.spec), only)

    def end(self, whole: bool = True) -> None:
        """Frees nothing: the policy's calls leave nothing behind."""

    def _answer(self, requests: Sequence[Request], drawn: np.ndarray, only: str | None = None) -> None:
        """Write what the policy decides (or one field of it) into the rows.

        Args:
            drawn: noise of the decisions, float32 [n, *noise.shape].
        """
        rows = [request.row for request in requests]
        fill = self._batch - len(rows) if self._fixed_shape else 0
        obs = self._rows.observations(rows + rows[-1:] * fill)
        self._before_act(obs)
        draws = torch.from_numpy(np.concatenate([drawn, drawn[-1:].repeat(fill, axis=0)])).to(self._device)
        with torch.inference_mode():
            decision = self._act(obs, draws, self._draw.sampling)
        self._rows.write(rows, decision, fill, only)
