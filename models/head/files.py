"""The folder of an exported head: how it is read.

FOLDER/model.safetensors   actor, critics and temperature by their names; nothing of the base
FOLDER/head.json           what identifies the base that the head was trained around
FOLDER/base/               that base, an exported folder of its own; not there if it answers behind a server
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embodied.errors import CheckpointError, DamagedCheckpointError, SpecMismatchError
from embodied.lib.files import EXPORT_FILE, check_export, folder_of, inside, read_json

from ..shared.files import read_safetensors

WEIGHTS, FACTS, BASE_FOLDER = "model.safetensors", "head.json", "base"
OF_BASE = "head.base."
"""Beginning of the names of a base's parameters."""
TARGETS = "target."
"""The same of the target critics, which begin as the critics."""


@dataclass(frozen=True)
class HeadFolder:
    """An exported head whose files are those that were written."""

    folder: Path
    extra: Mapping[str, str]  # extra state: what identifies the base; empty for a policy of its own

    @property
    def base(self) -> str | None:
        """The folder of the base, if it is within."""
        found = self.folder / BASE_FOLDER
        return str(found) if (found / EXPORT_FILE).is_file() else None

    def fill(self, policy: Any) -> None:
        """Gives a bound policy the weights.

        Raises:
            SpecMismatchError: the weights are of another network.
            DamagedCheckpointError: the file cannot be read.
        """
        found, own = dict(read_safetensors(inside(self.folder, WEIGHTS))), weights_of(policy)
        shown = [
            f"{name} {[*tensors[name].shape] if name in tensors else 'missing'}"
            for name in sorted({*found, *own})
            for tensors in (found,)
            if name not in own or name not in found or found[name].shape != own[name].shape
        ]
        if shown:
            raise SpecMismatchError(
                f"{self.folder} holds a head of another size: {', '.join(shown[:3])}",
                "choose the env that it was trained for, and leave the sizes of the network (actor.model.hidden, "
                "layers, critics, num_action_chunks …) as its embodied.json says them under 'model'",
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(found[name])
            policy.follow(1.0)


def open_head(model_path: str) -> HeadFolder:
    """Reads what a folder says.

    Raises:
        CheckpointError: there is no head.
        DamagedCheckpointError: a file is not what was written.
    """
    folder = folder_of(model_path)
    check_export(folder)
    if not (folder / FACTS).is_file():
        raise CheckpointError(
            f"{folder} holds no exported head: it has no {FACTS}",
            "set actor.model.model_path to a folder that python -m embodied.tools.export has written of a head, or to "
            "null",
        )
    extra = read_json(inside(folder, FACTS)).get("extra_state")
    if not isinstance(extra, Mapping) or not all(isinstance(text, str) for text in extra.values()):
        raise DamagedCheckpointError(f"{folder / FACTS} is damaged: it has no extra_state", "export the head again")
    return HeadFolder(folder, extra)


def weights_of(policy: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters of a head by their names, without those of its base and of the target critics."""
    named = policy.named_parameters()
    return {name: p.detach() for name, p in named if not name.startswith((OF_BASE, TARGETS))}
