"""Writes a policy as a folder in the layout of the released checkpoints (see :mod:`..files.checkpoint`)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from embodied.errors import CheckpointError

from ...shared.files import SHARD_BYTES, cast, write_weights
from ...shared.lora import merged_tensors, save_adapter
from ..files.checkpoint import ADAPTER_FOLDER, VALUE_HEAD_FILE, Folder
from ..files.dead import dead_tensors
from ..files.film import FILM_FILE, TOWERS, film_file
from ..files.load import full_weights
from ..parts import Parts
from .layout import write_layout

PROPRIO = "proprio_projector."


def save_folder(
    parts: Parts, path: Path, shard_bytes: int = SHARD_BYTES, dtype: torch.dtype = torch.float32
) -> None:  # fmt: skip
    """Write everything ``model_path`` needs: weights with adapters merged and, as in OFT, the adapters beside them.

    The base of a policy with weights in 8 or 4 bits is read again, in 16 bits: these take the adapters. Tensors that
    are not built are copied from the policy's own checkpoint, or are zeros (:mod:`..files.dead`).

    Args:
        dtype: of the network's weights; projector of the state, value head and adapters are in float32, as in OFT.

    Raises:
        CheckpointError: the folder holds files already, a weight is too large for ``dtype``, or the policy is not bound
            to an env (no action range).
    """
    if path.exists() and any(path.iterdir()):
        raise CheckpointError(f"{path} is not empty", "give a new folder; nothing is overwritten")
    if parts.now.action_range is None:
        raise CheckpointError("the policy has no action range yet", "bind it to an env before saving")
    path.mkdir(parents=True, exist_ok=True)
    base = None if parts.settings.model_path is None else Folder.open(parts.settings.model_path)
    _write_tensors(parts, base, path, shard_bytes, dtype)
    if parts.settings.is_lora:
        save_adapter(parts.model, path / ADAPTER_FOLDER)
    write_layout(parts, base, path, dtype)


def _write_tensors(parts: Parts, base: Folder | None, path: Path, shard_bytes: int, dtype: torch.dtype) -> None:
    state, proprio = {}, {}
    full = full_weights(parts.model, parts.settings)
    for name, tensor in merged_tensors(parts.model, full):  # one of them in float32 at a time
        if name.startswith(PROPRIO):
            proprio[name.removeprefix(PROPRIO)] = tensor.cpu().contiguous()
        else:
            state[name] = cast(name, tensor, dtype).cpu().contiguous()
    if proprio:
        torch.save(proprio, path / "proprio_projector--0_checkpoint.pt")
    if parts.value_head is not None:
        values = {
            name: tensor.detach().float().cpu().contiguous() for name, tensor in parts.value_head.state_dict().items()
        }
        save_file(values, str(path / VALUE_HEAD_FILE))
    dead = dead_tensors(base, parts.model.net, state)
    state |= {name: cast(name, tensor, dtype).contiguous() for name, tensor in dead.items()}
    if parts.model.net.film:
        towers = {name: state.pop(name) for name in list(state) if name.startswith(TOWERS)}
        torch.save(film_file(towers), path / FILM_FILE.replace("*", "0_checkpoint"))
    write_weights(state, path, shard_bytes)
