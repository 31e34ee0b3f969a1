"""Counts the bytes of live tensors, one by one, as operations make them and as they are freed.

It sees what torch allocates for tensors on any device, also for tensors without memory
(``torch._subclasses.FakeTensorMode``). It does not see what a kernel allocates within itself, nor Python's own memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embodied.lib.memory import trim


class TooLargeError(Exception):
    """The tensors of a counted block take more than its limit."""


class LiveBytes(TorchDispatchMode):
    """Counts the tensors that are made within it. May be entered again; what lives then is still counted.

    Args:
        limit: bytes beyond which a block ends with :class:`TooLargeError`; None = no limit.
        widths: lengths of a last axis whose tensors are also counted apart (``wide``), e.g. those of logits.

    Example:
        >>> with (counted := LiveBytes()):
        ...     kept = torch.zeros(1000) + 1
        >>> counted.now, counted.peak
        (4000, 8000)
    """

    def __init__(self, limit: int | None = None, widths: Iterable[int] = ()) -> None:
        super().__init__()
        self.now = self.peak = self.wide = self.most_wide = 0
        self.exceeded = False  # the limit: code of torch may hide the error behind one of its own
        self._limit, self._widths = limit, frozenset(widths)
        self._known: dict[int, Any] = {}

    def restart(self) -> int:
        """Forgets the highest values so far; returns the bytes that live now."""
        self.peak, self.most_wide = self.now, self.wide
        return self.now

    def watch(self, *widths: int) -> None:
        """Counts tensors whose last axis has one of these lengths separately from now on."""
        self._widths = frozenset(widths)

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in out if type(out) is tuple else (out,):
            for one in (made,) if isinstance(made, Tensor) else tree_leaves(made):
                if isinstance(one, Tensor) and one.device.type != "meta":  # meta: sizes alone, until they are filled
                    self._add(one)
        return out

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        if not isinstance(size, int):  # of a graph that is read, whose sizes are symbols: it has no memory
            return
        wide = size if tensor.shape and tensor.shape[-1] in self._widths else 0
        self._known[key] = weakref.ref(storage, lambda _: self._remove(key, size, wide))
        self.now, self.wide = self.now + size, self.wide + wide
        self.peak, self.most_wide = max(self.peak, self.now), max(self.most_wide, self.wide)
        if self._limit is not None and self.now > self._limit:
            self.exceeded = True
            raise TooLargeError(f"more than {self._limit} bytes of tensors")

    def _remove(self, key: int, size: int, wide: int) -> None:
        del self._known[key]
        self.now, self.wide = self.now - size, self.wide - wide


def resident() -> int:
    """Bytes of this process that are in memory, once the C library has given back what it only keeps."""
    trim()
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * 4096


def reset_highest() -> None:
    """Resets the peak of this process's memory."""
    trim()
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")


def highest() -> int:
    """Returns the peak of this process's memory, bytes."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
