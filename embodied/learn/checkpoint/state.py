"""Content of a checkpoint: tensors under names, and plain values (JSON) beside them.

    policy/head.weight                     a trainable parameter
    optimizer/state/head.weight/exp_avg    what the optimizer keeps of it
    trainer/…                              tensors in ``Trainer.state_dict()``
    rng/0/torch, rng/0/cuda, rng/0/others  random generators of rank 0; others = Python's and numpy's

torch's ``get_optimizer_state_dict`` is not used: it gives an optimizer without state one by a step with zero gradients,
so that saving (or resuming) a run whose parameters had no gradient yet would change Adam's step count.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from embodied.protocols import Policy

TENSOR = "$tensor"
"""``{"$tensor": name}`` stands among plain values for the tensor of that name."""


class Learner(Protocol):
    """A learner that can be saved and resumed, such as :class:`embodied.learn.trainer.Trainer`."""

    @property
    def policy(self) -> Policy: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class KeepsFiles(Protocol):
    """A learner that keeps files for the checkpoints which may be returned to."""

    def saved(self, state: Mapping[str, Any]) -> None:
        """Is told on each rank that a checkpoint is whole, by the thread that writes.

        Args:
            state: plain values of its :meth:`Learner.state_dict`.
        """
        ...


def pack(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The plain values of ``tree`` (dicts with text keys, lists, tensors, numbers, text, None), its tensors added to
    ``tensors`` under ``name/key/…``. Tuples come back as lists.

    Raises:
        TypeError: a value or key that cannot be kept; a defect of ours, hence no ``EmbodiedError``.
    """
    if isinstance(tree, Tensor):
        tensors[name] = tree.detach()
        return {TENSOR: name}
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str):
                raise TypeError(f"{name}: key {key!r} is no text, so JSON would not give it back")
        return {key: pack(value, f"{name}/{key}", tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [pack(value, f"{name}/{i}", tensors) for i, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"{name}: a checkpoint cannot keep {type(tree).__name__}")


def unpack(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Puts the tensors back into what :func:`pack` returned."""
    if isinstance(plain, dict):
        if plain.keys() == {TENSOR}:
            return tensors[plain[TENSOR]]
        return {key: unpack(value, tensors) for key, value in plain.items()}
    if isinstance(plain, list):
        return [unpack(value, tensors) for value in plain]
    return plain


def trainable(policy: Policy) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields name and parameter of everything that is trained; shards where FSDP2 has sharded it."""
    _reshard(policy)
    return ((name, p) for name, p in policy.named_parameters() if p.requires_grad)


def _reshard(policy: Policy) -> None:
    """A forward pass without backward leaves FSDP2's root gathered; what is saved and loaded are the shards."""
    if dist.is_available() and dist.is_initialized() and isinstance(policy, torch.nn.Module):
        from torch.distributed.fsdp import FSDPModule

        for module in policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def optimizer_tree(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """State and options of the optimizer with parameters by name; no entry for one that had no gradient yet."""
    names = {id(p): name for name, p in trainable(policy)}
    groups = [{**group, "params": [names[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
    states = {
        names[id(p)]: optimizer.state[p]
        for group in optimizer.param_groups
        for p in group["params"]
        if optimizer.state.get(p)
    }
    return {"state": states, "groups": groups}


def load_optimizer(optimizer: torch.optim.Optimizer, tree: Mapping[str, Any]) -> None:
    """Loads what :func:`optimizer_tree` returned into an optimizer whose groups hold the same parameters in the same
    order."""
    index = {name: i for i, name in enumerate(name for group in tree["groups"] for name in group["params"])}
    groups = [
        {key: _as(ours.get(key), value) for key, value in theirs.items()}
        | {"params": [index[name] for name in theirs["params"]]}
        for ours, theirs in zip(optimizer.param_groups, tree["groups"], strict=True)
    ]
    states = {index[name]: dict(values) for name, values in tree["state"].items()}
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _as(ours: Any, value: Any) -> Any:
    """JSON has no tuples; Adam's betas are one."""
    return tuple(value) if isinstance(ours, tuple) else value


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of every generator of this process, as uint8 tensors."""
    name, keys, *rest = np.random.get_state(legacy=True)
    others = json.dumps([random.getstate(), [name, np.asarray(keys).tolist(), *rest]])
    state = {
        "torch": torch.get_rng_state(),
        "others": torch.frombuffer(bytearray(others, "ascii"), dtype=torch.uint8),
    }
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restores what :func:`random_state` returned; a generator that this process lacks, or that was not saved, is left
    alone."""
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    if "others" in state:
        (version, words, gauss), (name, keys, *rest) = json.loads(bytes(state["others"].tolist()))
        random.setstate((version, tuple(words), gauss))
        np.random.set_state((name, np.array(keys, np.uint32), *rest))
