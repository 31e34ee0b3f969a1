"""Replays a function as CUDA graphs: hundreds of kernel launches become one. For functions that are called very often,
such as the step that gives each text of a batch a token.

A graph reads and writes the tensors that were there when it was captured. So the function keeps its state in tensors
that stay where they are, allocates no others that outlive a call, reads nothing back to the host, and does the same
work for equal keys: of another span of a cache, say, there is another graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

WARM_UP = 2  # calls before a capture: in them libraries choose kernels and allocate what they keep


class Graph(Protocol):
    """Interface of captured work that can be run again."""

    def replay(self) -> None:
        """Runs the captured work again."""


@dataclass
class Replayed:
    """Replays ``function(key)`` as a CUDA graph. The first calls with a key run as they are; from then on a graph of it
    is replayed.

    A result is overwritten by the next call. A state tensor that lies elsewhere than at the call before, because it has
    grown, say, ends all graphs.

    Args:
        function: see the module.
        state: gives every tensor that lives longer than a call.
        device: a GPU.
    """

    function: Callable[[int], Tensor]
    state: Callable[[], Iterable[Tensor]]
    device: torch.device
    captures: int = 0  # graphs that were captured so far
    _calls: dict[int, int] = field(default_factory=dict)
    _graphs: dict[int, tuple[Graph, Tensor]] = field(default_factory=dict)
    _places: list[int] = field(default_factory=list)
    _pool: Any = None  # memory that all graphs share: only one runs at a time

    def __call__(self, key: int) -> Tensor:
        places = [tensor.data_ptr() for tensor in self.state()]
        if places != self._places:
            self._places, self._calls, self._graphs = places, {}, {}
        if key not in self._graphs:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= WARM_UP:
                return beside(self.device, lambda: self.function(key))
            self._pool = self._pool or new_pool()
            self._graphs[key] = capture(lambda: self.function(key), self._pool)
            self.captures += 1
        graph, result = self._graphs[key]
        graph.replay()
        return result


def beside(device: torch.device, function: Callable[[], Tensor]) -> Tensor:
    """Calls a function on a side stream, as CUDA demands of the calls before a capture."""
    side, present = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(present)
    with torch.cuda.stream(side):
        result = function()
    present.wait_stream(side)
    return result


def new_pool() -> Any:
    """Makes a memory pool that CUDA graphs share."""
    return torch.cuda.graph_pool_handle()


def capture(function: Callable[[], Tensor], pool: Any) -> tuple[Graph, Tensor]:
    """Captures a call without running it: the graph, and the tensor in which a replay leaves the result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return graph, result
