"""Tiny flow policies in the layouts of released checkpoints, with inputs and what LeRobot 0.6.1 answers.

``golden/flow`` holds LeRobot's folders. openpi's hold the same tensors under other names, so they are written from
LeRobot's when a test asks for them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from embodied.models.flow_vla.files.folder import Folder
from embodied.models.flow_vla.files.load import load
from embodied.models.flow_vla.inputs.normalization import padded
from embodied.models.flow_vla.inputs.pictures import prepare
from embodied.models.flow_vla.network.model import Context, FlowVLA, Inputs
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden" / "flow"
LEROBOT = ("smolvla_tiny", "pi0_tiny", "pi05_tiny")
FOLDERS = (*LEROBOT, "openpi_pi0_tiny", "openpi_pi05_tiny")
REAL = 7  # dimensions of an action
TRUNK = "paligemma_with_expert.paligemma."


@dataclass(frozen=True, eq=False)
class Golden:
    """A folder with its network, whose trunk is built whole, and the numbers of the original code."""

    folder: Folder
    model: FlowVLA
    dead: tuple[str, ...]
    numbers: Mapping[str, Tensor]
    texts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        return self.numbers[name]

    @property
    def images(self) -> Tensor:
        """uint8 [B, n, H, W, 3], as an env gives them."""
        return torch.stack([self["in.image1"], self["in.image2"]], 1).permute(0, 1, 3, 4, 2)

    @property
    def inputs(self) -> Inputs:
        sizes = self.model.sizes
        pixels = prepare(self.images, sizes.image_size, centred=sizes.gemma)
        state = padded(self["out.state.normalized"], sizes.state_width)
        return Inputs(pixels, self["in.tokens"], self["in.token_mask"], state)

    def context(self) -> Context:
        with torch.no_grad():
            return self.model.read(self.inputs)


def golden(name: str, where: Path, read_out: bool = True) -> Golden:
    """Loads one of :data:`FOLDERS`; ``where`` is an empty folder."""
    folder = Folder.open(str(folder_of(name, where)))
    loaded = load(folder, folder.sizes(**heads(name), read_out=read_out))
    file = GOLDEN / f"{name.removeprefix('openpi_')}.golden.safetensors"
    with safe_open(file, framework="pt") as opened:
        texts = {key: json.loads(value) for key, value in opened.metadata().items() if value.startswith("[")}
    return Golden(folder, loaded.model, loaded.dead, load_file(file), texts)


def heads(name: str) -> dict[str, int]:
    """What no file of a folder says: heads of the tower of π0 and π0.5."""
    return {} if name.startswith("smolvla") else {"vision_heads": 4}


def folder_of(name: str, where: Path) -> Path:
    """A copy of the folder that a test may change."""
    path = shutil.copytree(GOLDEN / name, where / name)
    if name.startswith("openpi_"):
        found = load_file(GOLDEN / name.removeprefix("openpi_") / "model.safetensors")
        state = {key.removeprefix("model."): tensor for key, tensor in found.items()}
        embedding = state.pop(f"{TRUNK}model.language_model.embed_tokens.weight", None)
        if embedding is not None:
            state[f"{TRUNK}lm_head.weight"] = embedding
        save_file(state, path / "model.safetensors")
    return path


def gap(one: Tensor, other: Tensor) -> float:
    """Largest difference of two tensors of one shape."""
    assert one.shape == other.shape
    return float((one.detach().double() - other.double()).abs().max())
