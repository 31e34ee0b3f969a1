"""Reads trajectories that ManiSkill recorded: an .h5 file and a .json file of the same name.

    traj_7/actions                        float32 [L, A]
    traj_7/success                        bool [L]
    traj_7/obs/sensor_data/CAMERA/rgb     uint8 [L + 1, H, W, 3]
    traj_7/obs/agent/qpos, …              float32 [L + 1, …]

ManiSkill's files for download hold no observations. Replay them first with
``python -m mani_skill.trajectory.replay_trajectory --traj-path FILE.h5 -o rgb -c CONTROL_MODE --save-traj``.
Source: ``mani_skill/utils/wrappers/record.py`` of 3.0.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data.checking.frames import Camera, Frames
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

STATE = ("agent/qpos",)
REPLAY = "python -m mani_skill.trajectory.replay_trajectory --traj-path {path} -o rgb -c CONTROL_MODE --save-traj"


def open_set(path: Path, selection: FieldSelection) -> DemonstrationStream:
    """Opens a ManiSkill .h5 file of demonstrations, of which the successful trajectories are read. Pictures are read on
    demand.

    Raises:
        DatasetError: it is no such file, or none of its trajectories succeeded.
    """
    file = hdf5.open_hdf5(path, "ManiSkill trajectories")
    recorded = _recorded(path, file)
    modes = {str(e.get("control_mode")) for e in recorded.values()} - {"None"}
    if len(modes) > 1:
        raise DatasetError(f"{path} mixes control modes: {', '.join(sorted(modes))}", "replay it into one of them")
    solved = [name for name in sorted(recorded, key=_number) if _solved(file[name], recorded[name])]
    if recorded and not solved:
        raise DatasetError(
            f"{path} holds {len(recorded)} trajectories, and none of them succeeded", "record or replay others"
        )
    opened = _File(path, file, selection)
    episodes = [PendingEpisode(f"{path}, {name}", partial(opened.episode, name)) for name in solved]
    columns = hdf5.arrays(file[solved[0]]) if solved else []
    return DemonstrationStream(episodes, len(episodes), {"control_mode": next(iter(modes), None)}, columns=columns)


def _recorded(path: Path, file: Any) -> dict[str, Mapping[str, Any]]:
    """Name of each trajectory → what the .json file says of it."""
    beside = path.with_suffix(".json")
    try:
        made = json.loads(beside.read_text(encoding="utf-8-sig"))
        recorded = {f"traj_{int(e['episode_id'])}": e for e in made["episodes"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path} is no pair of trajectory files of ManiSkill: {error}",
            "give the .h5 file, with the .json of the same name beside it",
        ) from error
    there = {name for name in file if name.startswith("traj_") and hdf5.group_of(file, name) is not None}
    if alone := sorted(there ^ set(recorded)):
        one, other = (path, beside) if alone[0] in there else (beside, path)
        raise DatasetError(
            f"{one} has {alone[0]}, and {other} does not ({len(alone)} such)", "give the two files that belong together"
        )
    return recorded


def _number(name: str) -> int:
    return int(name.partition("_")[2])


def _solved(trajectory: Any, recorded: Mapping[str, Any]) -> bool:
    if hdf5.is_array(trajectory, "success"):
        return bool(np.asarray(trajectory["success"]).any())
    info = recorded.get("info")
    return bool(recorded.get("success", info.get("success", True) if isinstance(info, dict) else True))


@dataclass(frozen=True)
class _File:
    """An open file."""

    path: Path
    file: Any
    wanted: FieldSelection

    def episode(self, name: str) -> Demonstration:
        """Read a trajectory. Raises :class:`DatasetError` or :class:`SpecMismatchError`."""
        trajectory, where = self.file[name], f"{self.path}, {name}"
        key = self.wanted.action_key or "actions"
        if not hdf5.is_array(trajectory, key):
            raise no_actions(where, key, hdf5.arrays(trajectory))
        obs = hdf5.group_of(trajectory, "obs")
        sees = self.wanted.cameras is None or len(self.wanted.cameras) > 0
        if obs is None or (sees and hdf5.group_of(obs, "sensor_data") is None):
            raise DatasetError(f"{where} holds no pictures", REPLAY.format(path=self.path))
        actions = hdf5.numbers(trajectory, key, where)
        fields = {"state": self._state(obs, where, len(actions))}
        if self.wanted.instruction is None:
            raise SpecMismatchError(
                f"{self.path} has no instructions, and the env has several tasks",
                "set data.instruction to the instruction of the task that it shows",
            )
        cameras = [
            self._camera(obs[f"sensor_data/{name}/rgb"], name, where, len(actions)) for name in self._cameras(obs)
        ]
        return Demonstration(
            self.wanted.instruction, actions, fields, Frames(where, cameras) if cameras else None, where
        )

    def _cameras(self, obs: Any) -> Sequence[str]:
        sensors = hdf5.group_of(obs, "sensor_data")
        known = [name for name in sensors or () if hdf5.is_array(obs, f"sensor_data/{name}/rgb")]
        if self.wanted.cameras is None and self.wanted.camera_keys is None:
            return known
        names = camera_names(self.wanted)
        for camera, name in names:
            if name not in known:
                raise no_camera(str(self.path), camera, known)
        return [name for _, name in names]

    def _camera(self, array: Any, name: str, where: str, length: int) -> Camera:
        _check_one_more(array, name, where, length)
        return hdf5.camera(array, name, where, length)

    def _state(self, obs: Any, where: str, length: int) -> np.ndarray:
        keys = self.wanted.state_keys or STATE
        if missing := [key for key in keys if not hdf5.is_array(obs, key)]:
            known = [name for name in hdf5.arrays(obs) if not name.startswith("sensor")]
            raise SpecMismatchError(
                f"{self.path} has no {missing[0]}", f"choose data.state_keys from: {', '.join(known)}"
            )
        for key in keys:
            _check_one_more(obs[key], key, where, length)
        return hdf5.flat([hdf5.numbers(obs, key, where)[:length] for key in keys], keys, where)


def _check_one_more(array: Any, name: str, where: str, length: int) -> None:
    """ManiSkill records the observation before each action, and the last one."""
    found = array.shape[0] if array.shape else 0
    if found != length + 1:
        raise DatasetError(
            f"{where} has {found} observations '{name}' and {length} actions, expected one more",
            hdf5.RESTORE,
        )
