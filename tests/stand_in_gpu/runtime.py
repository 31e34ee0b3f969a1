"""``torch.cuda``'s functions for :class:`device.Device`: streams that do nothing, graphs that are tapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from device import CUDA, Device, Functions, Tape
from torch import Tensor


class Stream:
    """Work is done at once, so one stream has nothing to wait for; the host that waits for one is counted."""

    device = CUDA
    opened: Device

    def __init__(self, *args: Any, **keys: Any) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Stream:
        return self

    def record(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None:
        self.opened.waited()


@contextmanager
def opened() -> Iterator[Device]:
    """The device, and ``torch.cuda`` as if it were there. Backward runs in the thread that asks for it, so that what it
    does is seen."""
    device, patch = Device(), pytest.MonkeyPatch()
    patch.setattr(Stream, "opened", device, raising=False)
    lifts = torch._C._only_lift_cpu_tensors()  # type: ignore[attr-defined]

    class Graph:
        def __init__(self, *args: Any, **keys: Any) -> None:
            self.tape = Tape()

        def replay(self) -> None:
            self.tape.replay()

    @contextmanager
    def graph(of: Graph, pool: Any = None, stream: Any = None, **keys: Any) -> Iterator[None]:
        device.tape = of.tape
        try:
            yield
        finally:
            device.tape = None
        of.tape.close()

    answers = {
        "_lazy_init": lambda: None, "is_available": lambda: True, "is_initialized": lambda: True,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": lambda device: None,
        "is_bf16_supported": lambda *args, **keys: True, "synchronize": lambda *args: device.waited(),
        "Stream": Stream, "current_stream": Stream, "stream": lambda stream: nullcontext(),
        "Event": Stream, "CUDAGraph": Graph, "graph": graph, "graph_pool_handle": lambda: (0, 1),
        "get_rng_state": lambda *args: torch.get_rng_state(), "memory_allocated": lambda *args: 0,
        "set_rng_state": lambda state, *args: torch.set_rng_state(state), "manual_seed_all": lambda seed: None,
        "max_memory_allocated": lambda *args: 0, "reset_peak_memory_stats": lambda *args: None,
        "mem_get_info": lambda *args: (1 << 36, 1 << 36), "get_device_capability": lambda *args: (9, 0),
        "get_device_name": lambda *args: "stand-in", "empty_cache": lambda: None,
    }  # fmt: skip
    storage = Tensor.untyped_storage
    patch.setattr(Tensor, "untyped_storage", lambda tensor: storage(getattr(tensor, "held", tensor)))
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, answer)
    patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]
    try:
        with torch.autograd.set_multithreading_enabled(False), Functions(), device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)  # type: ignore[attr-defined]
        patch.undo()
