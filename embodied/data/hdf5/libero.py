"""Reads demonstrations in robomimic's layout, one .hdf5 file a task: LIBERO's own, and those of robomimic.

    data                     attribute problem_info (LIBERO): JSON with "language_instruction"
    data/demo_7/actions      float64 [L, 7]
    data/demo_7/obs/agentview_rgb, eye_in_hand_rgb   LIBERO: uint8 [L, H, W, 3], turned by 180° as in OpenGL
    data/demo_7/obs/agentview_image, …               robomimic: uint8 [L, H, W, 3], upright
    data/demo_7/obs/ee_states [L, 6], gripper_states [L, 2]

LIBERO's env turns its pictures upright, so the reader does too. robomimic's files have no instruction. Sources:
LIBERO's ``scripts/create_dataset.py``, robomimic's ``envs/env_robosuite.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from embodied.data.checking.frames import Frames
from embodied.data.demonstrations import (
    Demonstration,
    DemonstrationStream,
    FieldSelection,
    PendingEpisode,
    camera_names,
    no_actions,
    no_camera,
)
from embodied.data.hdf5 import hdf5
from embodied.errors import DatasetError, SpecMismatchError

CAMERAS = {"agentview": "agentview_rgb", "robot0_eye_in_hand": "eye_in_hand_rgb"}
STATE = ("ee_states", "gripper_states")
LIBERO_ATTRIBUTES = ("problem_info", "bddl_file_name")
ADD_LIBERO = "python scripts/create_dataset.py --demo-file {path} --use-camera-obs (in LIBERO)"
ADD_ROBOMIMIC = (
    "python robomimic/scripts/dataset_states_to_obs.py --dataset {path} --output_name image.hdf5 --done_mode 2 "
    "--camera_names agentview robot0_eye_in_hand --camera_height H --camera_width W (in robomimic)"
)
CONVERT = "python robomimic/scripts/conversion/convert_robosuite.py --dataset {path}, then "


def open_set(path: Path, selection: FieldSelection) -> DemonstrationStream:
    """Opens LIBERO or robomimic demonstrations: a .hdf5 file, or all of a folder. Pictures are read on demand.

    Raises:
        DatasetError: one is no such file, or holds no demonstration.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.hdf5"))
    opened = [_open(file, selection) for file in files]
    episodes = [pending for file in opened for pending in file.pending()]
    first = opened[0].data[opened[0].names[0]] if opened else None
    return DemonstrationStream(episodes, len(episodes), columns=[] if first is None else hdf5.arrays(first))


@dataclass(frozen=True)
class _File:
    """An open file."""

    path: Path
    data: Any
    names: Sequence[str]  # names of its demonstrations, in their order
    wanted: FieldSelection

    def pending(self) -> Iterator[PendingEpisode]:
        for name in self.names:
            yield PendingEpisode(f"{self.path}, {name}", partial(self.episode, name))

    def episode(self, name: str) -> Demonstration:
        """Read a demonstration. Raises :class:`DatasetError` or :class:`SpecMismatchError`."""
        demo, where = self.data[name], f"{self.path}, {name}"
        key = self.wanted.action_key or "actions"
        if not hdf5.is_array(demo, key):
            raise no_actions(where, key, hdf5.arrays(demo))
        obs = hdf5.group_of(demo, "obs")
        if obs is None or not len(obs):
            raise DatasetError(f"{where} has no observations (group 'obs')", self._adding())
        actions = hdf5.numbers(demo, key, where)
        fields = self._fields(obs, where)
        cameras = [
            hdf5.camera(obs[name], name, where, len(obs[name]), self._turned(name, where))
            for name in self._cameras(obs, where)
        ]
        return Demonstration(
            self._instruction(where), actions, fields, Frames(where, cameras) if cameras else None, where
        )

    def _cameras(self, obs: Any, where: str) -> list[str]:
        known = [name for name in obs if hdf5.is_array(obs, name) and obs[name].ndim == 4]
        if self.wanted.cameras is None and self.wanted.camera_keys is None:
            return known
        own = CAMERAS
        if not self.is_libero and any(name.endswith("_image") for name in known):  # robomimic's names
            own = {camera: f"{camera}_image" for camera in self.wanted.cameras or ()}
        names = camera_names(self.wanted, own)
        for camera, name in names:
            if not hdf5.is_array(obs, name):
                raise no_camera(where, camera, known)
        return [name for _, name in names]

    def _fields(self, obs: Any, where: str) -> dict[str, Any]:
        keys = self.wanted.state_keys or STATE
        missing = [key for key in keys if not hdf5.is_array(obs, key)]
        if missing and self.wanted.state_keys is None and self.wanted.cameras is None:
            return {}  # a look at whatever is there
        if missing:
            known = [name for name in hdf5.arrays(obs) if obs[name].ndim < 4]
            remedy = "use demonstrations that keep the robot's state: this file has pictures and actions alone"
            if known:
                remedy = f"choose data.state_keys from: {', '.join(known)}"
            raise SpecMismatchError(f"{where} has no {missing[0]}", remedy)
        return {"state": hdf5.flat([hdf5.numbers(obs, key, where) for key in keys], keys, where)}

    @property
    def is_libero(self) -> bool:
        return any(name in self.data.attrs for name in LIBERO_ATTRIBUTES)

    def _turned(self, name: str, where: str) -> bool:
        """Whether pictures are to be turned: as the file's program left them, by their name where it is not said."""
        if self.wanted.rotate_images is not None:
            return self.wanted.rotate_images
        if self.is_libero or name in CAMERAS.values():
            return True
        if "env_args" in self.data.attrs or name.endswith("_image"):
            return False
        raise DatasetError(
            f"{where}: nothing says whether the pictures of '{name}' are upright or turned by 180° (LIBERO)",
            "look at one, and set data.rotate_images=true if it is upside down, else data.rotate_images=false",
        )

    def _instruction(self, where: str) -> str:
        """From the attribute, else the name: KITCHEN_SCENE3_turn_on_the_stove_demo → turn on the stove."""
        said = self._said()
        if said is not None or self.wanted.instruction is not None:
            return said or self.wanted.instruction or ""
        what = "problem_info without a language_instruction" if "problem_info" in self.data.attrs else "no instruction"
        raise DatasetError(
            f"{where} has {what}", "set data.instruction to the instruction of the task that the file shows"
        )

    def _said(self) -> str | None:
        if "problem_info" in self.data.attrs:
            try:
                info = json.loads(hdf5.text(self.data.attrs["problem_info"]) or "")
            except ValueError:
                return None
            said = info.get("language_instruction") if isinstance(info, dict) else None
            if isinstance(said, list) and all(isinstance(part, str) for part in said):
                said = "".join(said)  # some releases keep it as a list of characters
            return (said.strip('" ') or None) if isinstance(said, str) else None
        if not self.path.stem.endswith("_demo") or ("env_args" in self.data.attrs and not self.is_libero):
            return None
        name = self.path.stem.removesuffix("_demo")
        return re.sub(r"^[A-Z_]+SCENE\d+_", "", name).replace("_", " ")

    def _adding(self) -> str:
        """What adds the observations, by who recorded the file."""
        attributes = self.data.attrs
        if self.is_libero:
            adding = ADD_LIBERO
        elif "env_args" in attributes:
            adding = ADD_ROBOMIMIC
        elif "env" in attributes or "env_info" in attributes:
            adding = CONVERT + ADD_ROBOMIMIC
        else:
            adding = f"for a task of LIBERO: {ADD_LIBERO}; of robosuite: {CONVERT}{ADD_ROBOMIMIC}"
        return f"add them from its simulator states: {adding.format(path=self.path)}"


def _open(path: Path, wanted: FieldSelection) -> _File:
    file = hdf5.open_hdf5(path, "LIBERO demonstrations")
    data = hdf5.group_of(file, "data")
    if data is None:
        remedy = "remove or replace it"
        if any(name.startswith("traj_") for name in file):
            remedy = "give it the ending .h5, and the .json of the same name beside it: it looks like ManiSkill's"
        raise DatasetError(
            f"{path} is no file of LIBERO demonstrations: it has no group 'data', only: {', '.join(file) or 'nothing'}",
            remedy,
        )
    if not len(data):
        raise DatasetError(f"{path} holds no demonstration", "record it again, or remove it")
    for name in data:
        if re.fullmatch(r"\w*_\d+", name) is None or hdf5.group_of(data, name) is None:
            raise DatasetError(
                f"{path} has '{name}' among its demonstrations, expected groups demo_0, demo_1, …",
                "rename or remove it (h5py: file.move, del file[name])",
            )
    return _File(path, data, sorted(data, key=lambda name: (int(name.rpartition("_")[2]), name)), wanted)
