"""Keeps what is not needed at the time in host memory; every copy has the same bits.

    optimizer, reference   update ends ─▶ rest: to the host │ rollout, evaluation, save │ wake, before the first use
    weights (an engine)    handed over ─▶ rest │ the engine generates │ it sleeps ─▶ wake ─▶ log-probs, update, save

What lies on a CPU anyway is not touched. Shards of FSDP2 (``DTensor``) move as shards, without a collective.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def on_host(tensor: Tensor) -> bool:
    """Returns whether a tensor lies in host memory."""
    return tensor.device.type == "cpu"


def to_host(tensor: Tensor) -> Tensor:
    """Returns a copy in host memory, pinned if it comes from a GPU; the tensor itself if it lies there."""
    if on_host(tensor):
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a copy on ``device``; the tensor itself if it lies there."""
    return tensor.to(device, non_blocking=True)


def give_back(device: torch.device) -> None:
    """Gives unused memory of torch's allocator back to the GPU, on which simulators and engines take theirs."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class RestingState:
    """Moves an optimizer's state tensors, such as Adam's moments, to host memory and back.

    Args:
        wanted: False: they always stay where they are.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, enabled: bool) -> None:
        self._optimizer, self._wanted = optimizer, enabled
        self._resting: set[tuple[Tensor, str]] = set()  # parameter, name of its state

    def rest(self) -> None:
        """Moves all state tensors on a device to host memory."""
        if not self._wanted:
            return
        for parameter, state in self._optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and not on_host(value):
                    state[name] = to_host(value)
                    self._resting.add((parameter, name))
        for device in {parameter.device for parameter, _ in self._resting}:
            give_back(device)

    def wake(self) -> None:
        """Moves the tensors back to the device of their parameter, as far as they still exist."""
        for parameter, name in self._resting:
            state = self._optimizer.state.get(parameter, {})
            if name in state:
                state[name] = to_device(state[name], parameter.device)
        self._resting.clear()


class RestingWeights:
    """Moves a policy's weights to host memory while an engine acts in its place
    (:class:`embodied.runtime.engine.weights.Weights`). Buffers stay: those of language models are a few numbers.

    Args:
        wanted: False: they always stay where they are.
    """

    def __init__(self, policy: nn.Module, enabled: bool) -> None:
        self._policy, self.rests = policy, enabled
        self._homes: dict[nn.Parameter, torch.device] = {}  # device from which each moved parameter came

    def rest(self) -> None:
        """Moves all weights on a device to host memory."""
        if not self.rests:
            return
        for parameter in self._policy.parameters():
            if not on_host(parameter.data):
                self._homes[parameter] = parameter.device
                if not isinstance(parameter, DTensor):
                    parameter.data = to_host(parameter.data)
        self._move_shards(to_host)
        for device in set(self._homes.values()):
            give_back(device)

    def wake(self) -> None:
        """Moves the moved weights back to their device."""
        try:
            self._move_back()
        except BaseException:  # a stop signal: what is saved then stands on the device
            self._move_back()
            raise

    def _move_back(self) -> None:
        for parameter, device in self._homes.items():
            if not isinstance(parameter, DTensor):
                parameter.data = to_device(parameter.data, device)
        for home in set(self._homes.values()):
            self._move_shards(partial(to_device, device=home))
        self._homes.clear()

    def _move_shards(self, move: Callable[[Tensor], Tensor]) -> None:
        """Moves the shards of FSDP2, which has references of its own to them. It takes new ones in ``Module._apply``;
        setting ``data`` would leave them where they are."""
        if isinstance(self._policy, FSDPModule):
            self._policy._apply(lambda tensor: move(tensor) if isinstance(tensor, DTensor) else tensor)
