"""Loads what is served: a checkpoint, or a folder that ``embodied.tools.export`` has written. No simulator is imported.

=======================================================  =============================================================
folder                                                   is
=======================================================  =============================================================
``runs/NAME/checkpoints/000100`` (``meta.json``)         a checkpoint (:func:`embodied.learn.origin.restore`)
``runs/NAME``                                            its newest checkpoint
``embodied.json``: formats hf, torch_export, onnx, aoti  an export (:mod:`embodied.learn.checkpoint.exported`)
=======================================================  =============================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from embodied.learn.checkpoint import exported
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.origin import origin_of, restore
from embodied.lib.weights_folder import find
from embodied.protocols import Policy
from embodied.types import EnvSpec


class Loaded(NamedTuple):
    """A policy that answers, the env that it is bound to, and what it was loaded from."""

    policy: Policy
    env: EnvSpec
    source: str


def load(folder: Path, device: torch.device | str = "cpu", trust: bool = False) -> Loaded:
    """Loads the policy of a checkpoint or of an exported folder, for serving.

    Args:
        trust: the folder may name whatever it likes to build its policy, and hold machine code.

    Raises:
        CheckpointError: nothing that can be served is there, or it is damaged.
        ConfigError: what builds the policy cannot be imported, or is none of ours.
    """
    found = find(str(folder))
    folder = found.folder
    if found.is_export:
        facts = exported.read_export(folder)
        return Loaded(*exported.build(facts, folder, device, trust=trust), f"{facts.format} export {folder}")
    if not trust:
        origin = origin_of(folder, read_meta(folder))
        exported.check_trusted(origin.target, origin.kwargs, folder)
    return Loaded(*restore(folder, device), f"checkpoint {folder}")
