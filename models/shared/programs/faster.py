"""Makes a program of torch.export run faster in Python; its numbers stay the same bit by bit.

At each call torch's own module compares every size with its expression, and looks up every weight through the tree of
modules. Its graph repeats what is checked already, converts what has the type already, and calls each operator in a way
that costs several microseconds. It also draws tokens where all rows are greedy. At the size of a small policy these are
an eighth of a decision.

Here weights are arguments of one generated function, sizes are compared with a short table, and there is a second and a
third function for calls whose rows are all greedy, or all sampled. Each function is generated at its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.export import ExportedProgram

from embodied.errors import SpecMismatchError

aten = torch.ops.aten
TO_THE_END = 2**63 - 1  # how a slice without an end is traced
# The same operators as functions of C.
PLAIN: Mapping[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.cat.default: torch.cat,
    aten.div.Tensor: torch.div,
    aten.expand.default: Tensor.expand,
    aten.flatten.using_ints: torch.flatten,
    aten.gelu.default: F.gelu,
    aten.layer_norm.default: torch.layer_norm,
    aten.linear.default: F.linear,
    aten.mean.dim: torch.mean,
    aten.mul.Tensor: torch.mul,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.reshape.default: torch.reshape,
    aten.rsqrt.default: torch.rsqrt,
    aten.scaled_dot_product_attention.default: F.scaled_dot_product_attention,
    aten.silu.default: F.silu,
    aten.sub.Tensor: torch.sub,
    aten.transpose.int: torch.transpose,
    aten.unbind.int: torch.unbind,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: Tensor.view,
}


class FastProgram:
    """Runs a program of torch.export, as functions of tensors alone, faster than its interpreter."""

    def __init__(self, program: ExportedProgram) -> None:
        module: Any = program.module(check_guards=False)  # guards are code, which the file must not have
        graph = module.graph
        self._inputs = _inputs(graph, program.range_constraints)
        _simplify(graph)
        self._weights = _weights_as_arguments(module)
        self._graph = graph
        self._functions: dict[bool | None, Callable[..., Sequence[Tensor]]] = {}  # key: ``greedy`` of _function

    def __call__(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Run it.

        Args:
            inputs: in the order in which they were traced.

        Raises:
            SpecMismatchError: a tensor has a type or a size that the program was not made for.
        """
        _check(self._inputs, inputs)
        greedy = inputs.get("greedy")
        run = self._function(None if greedy is None else _of_all(greedy))
        return run(*self._weights, *inputs.values())

    def _function(self, greedy: bool | None) -> Callable[..., Sequence[Tensor]]:
        """Makes a function when it is needed first: most programs are asked in one way alone."""
        if greedy not in self._functions:
            self._functions[greedy] = _function(self._graph, greedy)
        return self._functions[greedy]


def _of_all(flags: Tensor) -> bool | None:
    """The flag that all rows have; None if they differ."""
    count = int(flags.sum())
    if count == len(flags):
        return True
    return None if count else False


# -- what comes in ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Size:
    """A size that may vary."""

    name: str  # sizes of one name are equal
    least: float
    most: float


@dataclass(frozen=True)
class _Input:
    dtype: torch.dtype
    sizes: Sequence[int | _Size]


def _inputs(graph: fx.Graph, ranges: Mapping[Any, Any]) -> Sequence[_Input]:
    def size(value: Any) -> int | _Size:
        if isinstance(value, int):
            return value
        allowed = ranges.get(value.node.expr)
        least, most = (0, torch.inf) if allowed is None else (int(allowed.lower), float(allowed.upper))
        return _Size(str(value), least, most)

    given = (node.meta["val"] for node in graph.nodes if node.op == "placeholder")
    return [_Input(value.dtype, [size(one) for one in value.shape]) for value in given]


def _check(wanted: Sequence[_Input], inputs: Mapping[str, Tensor]) -> None:
    if len(wanted) != len(inputs):
        raise _unfit(f"it takes {len(wanted)} inputs, not {', '.join(inputs)}")
    varying: dict[str, int] = {}
    for (name, tensor), one in zip(inputs.items(), wanted, strict=True):
        if tensor.dtype != one.dtype or tensor.ndim != len(one.sizes):
            raise _unfit(f"'{name}' is {tensor.dtype} {list(tensor.shape)}, not {one.dtype} of {len(one.sizes)} axes")
        for axis, (found, size) in enumerate(zip(tensor.shape, one.sizes, strict=True)):
            if isinstance(size, int):
                if found != size:
                    raise _unfit(f"'{name}' has {found} along axis {axis}, not {size}")
            elif varying.setdefault(size.name, found) != found:
                raise _unfit(f"'{name}' has {found} along axis {axis}, another input {varying[size.name]}")
            elif not size.least <= found <= size.most:
                raise _unfit(f"'{name}' has {found} along axis {axis}, not {size.least} … {size.most}")


def _unfit(what: str) -> SpecMismatchError:
    return SpecMismatchError(
        f"the program was made for other inputs: {what}", "give the inputs that docs/export.md lists, in that order"
    )


# -- its graph -------------------------------------------------------------------------------------------------------


def _simplify(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)
        elif _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in PLAIN:
            node.target = PLAIN[node.target]
    graph.eliminate_dead_code()


def _changes_nothing(node: fx.Node) -> bool:
    if node.target is aten.to.dtype:
        source = node.args[0]
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        return isinstance(value, Tensor) and value.dtype == node.args[1] and len(node.args) == 2 and not node.kwargs
    if node.target is aten.slice.Tensor:
        return not node.kwargs and len(node.args) == 4 and node.args[2:] == (0, TO_THE_END)
    return node.target is aten.alias.default


def _weights_as_arguments(module: fx.GraphModule) -> Sequence[Any]:
    """Make each weight an argument before the inputs; return the weights in that order."""
    graph = module.graph
    weights: list[Any] = []
    first = next(node for node in graph.nodes if node.op == "placeholder")
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        with graph.inserting_before(first):
            argument = graph.placeholder(f"weight_{len(weights)}")
        argument.meta = node.meta
        weights.append(attrgetter(node.target)(module))
        node.replace_all_uses_with(argument)
        graph.erase_node(node)
    return weights


def _function(graph: fx.Graph, greedy: bool | None = None) -> Callable[..., Sequence[Tensor]]:
    """The graph as a function of weights and inputs.

    Args:
        greedy: what the input of that name is in all rows; None = it may be either.
    """
    own = fx.Graph()
    own.output(own.graph_copy(graph, {}))
    if greedy is not None:
        for node in list(own.nodes):
            if node.target is aten.where.self and _is_greedy(node.args[0]):
                kept = node.args[1 if greedy else 2]
                if _kind(kept) == _kind(node):
                    node.replace_all_uses_with(kept)
    own.eliminate_dead_code()
    return fx.GraphModule({}, own).forward


def _is_greedy(node: Any) -> bool:
    while node.target in (torch.unsqueeze, Tensor.expand):
        node = node.args[0]
    return node.op == "placeholder" and node.target == "greedy"


def _kind(node: fx.Node) -> tuple[str, torch.dtype]:
    value = node.meta["val"]
    return str(value.shape), value.dtype
