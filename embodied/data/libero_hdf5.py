"""Reads LIBERO's own demonstrations: one .hdf5 file per task, in robomimic's layout.

    data                     attribute problem_info: JSON with "language_instruction"
    data/demo_7/actions      float64 [L, 7]
    data/demo_7/obs/agentview_rgb, eye_in_hand_rgb   uint8 [L, H, W, 3], turned by 180° as in OpenGL
    data/demo_7/obs/ee_states [L, 6], gripper_states [L, 2]

The env turns its pictures upright, so the reader does too. Source: LIBERO's ``scripts/create_dataset.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data.demonstrations import Demonstration, Demonstrations, Wanted, no_camera, package
from embodied.errors import DatasetError, SpecMismatchError

CAMERAS = {"agentview": "agentview_rgb", "robot0_eye_in_hand": "eye_in_hand_rgb"}
STATE = ("ee_states", "gripper_states")


def read(path: Path, wanted: Wanted) -> Demonstrations:
    """Read every demonstration of a file, or of all .hdf5 files of a folder. Pictures are read on demand.

    Raises:
        DatasetError: it is no such file.
        SpecMismatchError: a wanted camera or state is missing.
    """
    h5py = package("h5py")
    episodes: list[Demonstration] = []
    for file in [path] if path.is_file() else sorted(path.glob("*.hdf5")):
        try:
            data = h5py.File(file, "r")["data"]
        except (OSError, KeyError) as error:
            raise DatasetError(
                f"{file} is no file of LIBERO demonstrations: {error}", "remove or replace it"
            ) from error
        instruction = _instruction(data, file)
        for name in sorted(data, key=_number):
            episodes.append(_episode(data[name], instruction, wanted, file))
    return Demonstrations(path, episodes)


def _episode(demo: Any, instruction: str, wanted: Wanted, file: Path) -> Demonstration:
    obs = demo["obs"]
    names = wanted.camera_keys or [CAMERAS.get(camera, camera) for camera in wanted.cameras]
    for camera, name in zip(wanted.cameras, names, strict=True):
        if name not in obs:
            raise no_camera(file, camera, [key for key in obs if key.endswith("rgb")])
    fields = {}
    keys = wanted.state_keys or STATE
    if missing := [key for key in keys if key not in obs]:
        raise SpecMismatchError(f"{file} has no {missing[0]}", f"choose data.state_keys from: {', '.join(obs)}")
    fields["state"] = np.concatenate([np.asarray(obs[key]) for key in keys], axis=1).astype(np.float32)
    actions = np.asarray(demo["actions"]).astype(np.float32)
    return Demonstration(instruction, actions, fields, _Pictures([obs[name] for name in names]))


@dataclass(frozen=True)
class _Pictures:
    """Reads the pictures of step t: t → uint8 [C, H, W, 3], upright."""

    columns: Sequence[Any]

    def __call__(self, t: int) -> np.ndarray:
        return np.stack([column[t][::-1, ::-1] for column in self.columns])


def _instruction(data: Any, file: Path) -> str:
    """Instruction from the attribute, else the file name: KITCHEN_SCENE3_turn_on_the_stove_demo → turn on the stove."""
    if "problem_info" in data.attrs:
        said = json.loads(data.attrs["problem_info"])["language_instruction"]
        return "".join(said).strip('" ')  # some releases keep it as a list of characters
    name = file.stem.removesuffix("_demo")
    return re.sub(r"^[A-Z_]+SCENE\d+_", "", name).replace("_", " ")


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])
