"""Builds the network of a folder and fills it: every tensor is used or listed as dead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.errors import CheckpointError

from ...shared.files import read_safetensors
from ...shared.weights.misfit import fix_of_names
from ..network.model import FlowVLA
from ..network.sizes import Sizes
from .folder import Folder


@dataclass(frozen=True)
class Loaded:
    """A network with a folder's weights."""

    model: FlowVLA
    dead: tuple[str, ...]  # tensors of the folder, by its names, that no action depends on


def dead_in_network(sizes: Sizes) -> re.Pattern[str]:
    """Pattern of the network's names that are not built: of the trunk's last layer all but keys and values, and its
    final norm, unless a value head reads them."""
    if sizes.read_out:
        return re.compile(r"(?!)")
    last = sizes.layers - 1
    return re.compile(
        rf"trunk_norm\.|layers\.{last}\.trunk\.(mlp\.|post_attention_layernorm\.|self_attn\.(q_proj|o_proj)\.)"
    )


def load(folder: Folder, sizes: Sizes) -> Loaded:
    """Builds the network without memory, then fills it from the folder; the numbers keep the folder's format.

    Raises:
        CheckpointError: tensors are missing, of another shape, or cut.
    """
    with torch.device("meta"):
        model = FlowVLA(sizes)
    pattern = dead_in_network(sizes)
    unread = {stored for stored, own in folder.names.own.items() if pattern.match(own)}
    wanted = {name: tuple(p.shape) for name, p in model.named_parameters()}
    _check(folder, wanted, {own: s for own, s in folder.shapes.items() if not pattern.match(own)})
    model.load_state_dict(dict(tensors(folder, skip=unread)), assign=True)
    return Loaded(model, (*folder.names.dead, *sorted(unread)))


def tensors(folder: Folder, skip: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors that the network has, by its names."""
    for file in folder.stored.files:
        for name, tensor in read_safetensors(file):
            plain = folder.stored.plain[name]
            if plain in folder.names.own and plain not in skip:
                yield folder.names.own[plain], tensor


def _check(folder: Folder, wanted: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]) -> None:
    missing, unknown = sorted(wanted.keys() - there.keys()), sorted(there.keys() - wanted.keys())
    shapes = [
        f"{n} {there[n]} where {wanted[n]} belongs"
        for n in sorted(wanted.keys() & there.keys())
        if there[n] != wanted[n]
    ]
    parts = {"lacks": missing, "has unknown": unknown, "has in another shape": shapes}
    if found := [f"{what} {len(names)}: {', '.join(names[:4])}" for what, names in parts.items() if names]:
        fix = fix_of_names(missing, unknown) if missing and unknown else "use a folder with all tensors, of one policy"
        raise CheckpointError(f"{folder.path}: the tensors do not fit the network; it {'; it '.join(found)}", fix)
