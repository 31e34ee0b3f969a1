"""Small constant tensors, made once per device: a copy from the host at every call would wait for the device, and is
not allowed while a CUDA graph is captured."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

P = ParamSpec("P")
MOST = 256  # tensors that a function keeps


def cached(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorator that caches the tensors which a function makes. One that was made without memory (``runner.dry_run``)
    is only given to calls in the same mode, and never to a policy that computes."""
    found: dict[Hashable, Tensor] = {}

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        key = (args, *kwargs.items())
        tensor = found.get(key)
        if tensor is None or (isinstance(tensor, FakeTensor) and tensor.fake_mode is not _mode()):
            found.pop(key, None)
            tensor = found[key] = make(*args, **kwargs)
            if len(found) > MOST:
                del found[next(iter(found))]
        return tensor

    return call


def _mode() -> Any:
    """The mode in which tensors are made without memory; None outside of one."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


@cached
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns ``values`` (nested tuples) as a cached tensor. Callers must not write to it."""
    with torch.inference_mode(False):  # the first caller may be a rollout, a later one needs gradients
        return torch.tensor(values, dtype=dtype, device=device)
