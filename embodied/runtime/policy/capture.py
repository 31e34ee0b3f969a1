"""Captures one policy call as a CUDA graph: about a thousand kernel launches become one. Launches are most of the time
of a small batch and a few per cent of that of a large one.

A graph reads weights and constants where they were when it was captured. Optimizers write weights in place, so it stays
valid between updates. Anything that gives the policy other tensors (``bind``, loading, a new sentence that makes a
table of prompts larger) needs a new graph. So the rollout captures anew for each ``collect``, and whenever a buffer of
the policy has been replaced. That costs three calls, and it gives the graph's memory back to the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from embodied.protocols import Policy
from embodied.types import Decision, Sampling

WARM_UP = 2  # calls before the capture: in them libraries choose kernels and allocate what they keep


class Act(Protocol):
    """The policy call of a rollout: :meth:`embodied.protocols.Policy.act` or a capture of it."""

    def __call__(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision: ...


class CapturedAct:
    """``policy.act`` at one batch shape and one ``sampling``, captured at the first call.

    The next call overwrites the fields of a decision: read them before it.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        if self._graph is None or self._buffers != buffers_of(self._policy):
            self._capture(obs, noise, sampling)
        assert self._graph is not None
        if sampling != self._sampling or {n: t.shape for n, t in obs.items()} != self._shapes:
            raise ValueError(f"captured for {self._shapes}, {self._sampling}; a graph has one shape and one sampling")
        for name, values in obs.items():
            self._obs[name].copy_(values)
        self._noise.copy_(noise)
        self._graph.replay()
        return self._decision

    def _capture(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> None:
        self._obs, self._noise = {name: values.clone() for name, values in obs.items()}, noise.clone()
        self._sampling, self._shapes = sampling, {name: values.shape for name, values in obs.items()}
        side = torch.cuda.Stream(noise.device)
        side.wait_stream(torch.cuda.current_stream(noise.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._policy.act(self._obs, self._noise, sampling)
        torch.cuda.current_stream(noise.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._decision = self._policy.act(self._obs, self._noise, sampling)
        self._graph, self._buffers = graph, buffers_of(self._policy)


def buffers_of(policy: Policy) -> list[tuple[int, torch.Size]]:
    """Lists addresses and shapes of the policy's buffers: a CUDA graph is captured again when they change. They change
    when the policy replaces a buffer, such as a table of prompts that a new sentence has made larger."""
    assert isinstance(policy, torch.nn.Module)
    return [(buffer.data_ptr(), buffer.shape) for buffer in policy.buffers()]


def fast_act(policy: Policy, device: torch.device, enforce_eager: bool) -> Act:
    """Captures ``policy.act`` as a CUDA graph at its next call; without a GPU, or with ``enforce_eager``, returns
    ``policy.act`` itself."""
    return policy.act if enforce_eager or device.type != "cuda" else CapturedAct(policy)
