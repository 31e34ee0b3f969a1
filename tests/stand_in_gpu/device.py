"""A CUDA device without one: tensors that say they are on ``cuda:0`` and whose numbers lie in the host's memory.

Under :class:`Device` every operator is looked at before its kernel of the CPU runs. Tensors of two devices in one
operator are an error, as on a GPU. What makes the host wait for the device, and what is copied between the two, is
counted under the function of ours that asked for it. Results have the numbers of a CPU, so whatever a program does with
them goes on.

What torch's core asks a device for beside kernels is answered by ``backend.cpp``, ``torch.cuda``'s functions by
:mod:`runtime`. This needs a torch without CUDA of its own.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(str(ROOT / name) + "/" for name in ("embodied", "models", "envs"))
CUDA = torch.device("cuda", 0)

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
FROM_HOST, TO_HOST, WAITS = "from the host", "to the host", "waits"
COPIES = {"_to_copy", "copy_", "copy", "_pin_memory", "set_"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
MASKS = (torch.bool, torch.uint8)
READ_INSIDE = {"histc", "multinomial", "unique2", "bincount"}  # their kernels of a GPU read a number back


class WrongDevice(RuntimeError):
    """What a GPU would refuse."""


class OnDevice(Tensor):
    """A tensor on the device. ``held`` has its numbers, with the same sizes and strides. Parameters that ``Module.to``
    has moved are such tensors, too, though their class is another: what counts is ``held``."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=CUDA
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a tensor on the device, which is closed")


class Functions(TorchFunctionMode):
    """Methods of tensors that are no operators."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = getattr(args[0], "held", None) if args and isinstance(args[0], Tensor) else None
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            value = getattr(args[1], "held", None)
            func(*args)
            args[0].__dict__.pop("held", None)
            if value is not None:
                args[0].held = value
            return None
        if held is None:
            return func(*args, **(kwargs or {}))
        if func is Tensor.data_ptr:
            return held.data_ptr()
        if func is Tensor.tolist:  # which torch refuses of tensors like these
            return args[0].cpu().tolist()
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        return func(*args, **(kwargs or {}))


class Device(TorchDispatchMode):
    """The device while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, str]] = Counter()  # (kind, function of ours) → times
        self.operators: Counter[str] = Counter()  # those that ran on the device
        self.tape: Tape | None = None  # of the graph that is being captured

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.has_kernel_for_dispatch_key(COMPOSITE):  # in inference mode such operators come as they were called
            with self:
                return func.decompose(*args, **kwargs)
        there = self._device(func, args, kwargs)
        if str(func) == "aten._fused_sdp_choice.default":
            return 0  # which of its attention kernels a GPU takes is not known here: the formula itself
        inner_args, inner_kwargs = tree_map(_held, (args, kwargs))
        if there and inner_kwargs.get("device") is not None:
            inner_kwargs["device"] = torch.device("cpu")
        if inner_kwargs.get("pin_memory"):
            inner_kwargs["pin_memory"] = False
        if there and self.tape is not None:
            self.tape.before(func, inner_args, inner_kwargs)
        found = func(*inner_args, **inner_kwargs)
        if not there:
            return found
        self.operators[str(func)] += 1
        if self.tape is not None:
            self.tape.after(func, inner_args, inner_kwargs, found)
        with torch.inference_mode(_inference(func, args)):
            wrapped = tree_map(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, found)
        if any(_on_device(one) for one in tree_leaves((args, kwargs))):
            return return_and_correct_aliasing(func, args, kwargs, wrapped)
        return wrapped

    def _device(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether the result is on the device. Counts what crosses over.

        Raises:
            WrongDevice: the operands are on two devices, and no GPU would take them.
        """
        name = func.overloadpacket.__name__
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        ours = [one for one in tensors if _on_device(one)]
        others = [one for one in tensors if not _on_device(one) and one.device.type != "meta"]
        asked = kwargs.get("device")
        there = bool(ours) if asked is None else torch.device(asked).type == "cuda"
        if name in COPIES:
            there = _on_device(args[0]) if name == "copy_" else there
            if there and others:
                self._count(FROM_HOST, func)
            elif ours and not there:
                self._count(TO_HOST, func)
            return there
        if ours and others:
            self._mixed(func, name, args, others)
        if ours and _reads_back(func, name, args, kwargs):
            self._count(WAITS, func)
        _check_generator(func, args, kwargs, there)
        return there

    def _mixed(self, func: Any, name: str, args: Any, others: Sequence[Tensor]) -> None:
        numbers = all(not one.dim() for one in others)
        if name in INDEXED and _on_device(args[0]):
            values = args[2] if len(args) > 2 else args[0]
            if _on_device(values) or not values.dim():
                if not _fills(args):
                    self._count(FROM_HOST, func)  # indices of the host may be used, and are copied
                return
        if numbers and (torch.Tag.pointwise in func.tags or name in ("where", "fill_", "masked_fill", "masked_fill_")):
            if self.tape is not None:
                raise WrongDevice(f"{func} in a graph takes a number of the host, which stays that of the capture")
            return
        shapes = ", ".join(f"{one.dtype} {list(one.shape)}" for one in others)
        raise WrongDevice(f"expected all tensors on one device: {func} got {shapes} on the cpu beside others on cuda")

    def _count(self, kind: str, func: Any) -> None:
        place = _place()
        if self.tape is not None:
            raise WrongDevice(f"{func} in a graph: {kind} ({place})")
        self.seen[kind, place] += 1

    def waited(self) -> None:
        """What else makes the host wait, such as ``synchronize``."""
        self._count(WAITS, "synchronize")


class Tape:
    """Operators of one call, with what they read and wrote: what a CUDA graph would hold.

    A GPU runs nothing while it captures. The tape has to, so what was written is put back, and what was made is spoilt.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # of storages that were written
        self._made: dict[int, Tensor] = {}  # storages made by the call

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        for argument, value in _named(func, args, kwargs):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tree_leaves(value):
                place = _place_of(tensor)
                if place not in self._before and place not in self._made:
                    whole = _whole(tensor)
                    self._before[place] = whole, whole.clone()

    def after(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        inputs = {_place_of(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_leaves(found):
            if isinstance(one, Tensor) and _place_of(one) not in inputs:
                self._made[_place_of(one)] = _whole(one)
        self._calls.append((func, args, kwargs, found))

    def close(self) -> None:
        for now, before in self._before.values():
            now.copy_(before)
        for made in self._made.values():
            made.fill_(0x7B)

    def replay(self) -> None:
        for func, args, kwargs, found in self._calls:
            inputs = {_place_of(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and _place_of(old) not in inputs:  # else a view, or in place
                    old.copy_(new)


def _on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "held")


def _held(value: Any) -> Any:
    return value.held if _on_device(value) else value


def _inference(func: Any, args: Sequence[Any]) -> bool:
    """Whether a result belongs to inference mode. A view does if its base does, anything else if the mode is on."""
    view = any(one.alias_info is not None for one in func._schema.returns)
    return args[0].is_inference() if view and isinstance(args[0], Tensor) else torch.is_inference_mode_enabled()


def _place_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _whole(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # type: ignore[call-overload]


def _named(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for number, argument in enumerate(func._schema.arguments):
        if number < len(args):
            yield argument, args[number]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _reads_back(func: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Whether the kernel of a GPU reads numbers of its operands back, for a result or for its shape."""
    if name in INDEXED:
        return not _fills(args) and any(_on_device(one) and one.dtype in MASKS for one in args[1])
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False
    tags = func.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags or name in READ_INSIDE


def _fills(args: Any) -> bool:
    """Whether an ``index_put_`` writes one number where a mask is True, which is done without looking at the mask."""
    indices = [one for one in args[1] if one is not None]
    return len(args) > 2 and args[2].numel() == 1 and len(indices) == 1 and indices[0].dtype in MASKS


def _check_generator(func: Any, args: Any, kwargs: Any, there: bool) -> None:
    wanted = "cuda" if there else "cpu"
    for one in tree_leaves((args, kwargs)):
        if isinstance(one, torch.Generator) and one.device.type != wanted:
            raise WrongDevice(f"{func} on {wanted} with a generator of {one.device.type}")


def _place() -> str:
    """The innermost function of ours that is running: ``embodied/learn/score/score.py Scorer._with_proximal``."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(OURS):
            return f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname.replace('.<locals>', '')}"
        frame = frame.f_back
    return "elsewhere"
