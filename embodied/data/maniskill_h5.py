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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data.demonstrations import Demonstration, Demonstrations, Wanted, no_camera, package
from embodied.errors import DatasetError, SpecMismatchError

STATE = ("agent/qpos",)
REPLAY = "python -m mani_skill.trajectory.replay_trajectory --traj-path {path} -o rgb -c CONTROL_MODE --save-traj"


def read(path: Path, wanted: Wanted) -> Demonstrations:
    """Read every successful trajectory of a file. Pictures are read on demand.

    Raises:
        DatasetError: it is no such file, or has no pictures.
        SpecMismatchError: a wanted camera or state is missing.
    """
    h5py = package("h5py")
    try:
        file = h5py.File(path, "r")
        made = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        recorded = {f"traj_{e['episode_id']}": e for e in made["episodes"]}
    except (OSError, ValueError, KeyError) as error:
        raise DatasetError(
            f"{path} is no pair of trajectory files of ManiSkill: {error}",
            "give the .h5 file, with the .json of the same name beside it",
        ) from error
    modes = {str(e.get("control_mode")) for e in recorded.values()} - {"None"}
    if len(modes) > 1:
        raise DatasetError(f"{path} mixes control modes: {', '.join(sorted(modes))}", "replay it into one of them")
    names = sorted((name for name in file if name in recorded), key=lambda name: int(name.partition("_")[2]))
    episodes = [_episode(file[name], wanted, path) for name in names if _solved(file[name], recorded[name])]
    return Demonstrations(path, episodes, {"control_mode": next(iter(modes), None)})


def _solved(trajectory: Any, recorded: dict[str, Any]) -> bool:
    if "success" in trajectory:
        return bool(np.asarray(trajectory["success"]).any())
    return bool(recorded.get("success", recorded.get("info", {}).get("success", True)))


def _episode(trajectory: Any, wanted: Wanted, path: Path) -> Demonstration:
    if "obs" not in trajectory or "sensor_data" not in trajectory["obs"]:
        raise DatasetError(f"{path} holds no pictures", REPLAY.format(path=path))
    obs, actions = trajectory["obs"], np.asarray(trajectory["actions"], np.float32)
    sensors = obs["sensor_data"]
    names = wanted.camera_keys or wanted.cameras
    for camera, name in zip(wanted.cameras, names, strict=True):
        if name not in sensors or "rgb" not in sensors[name]:
            raise no_camera(path, camera, list(sensors))
    keys = wanted.state_keys or STATE
    if missing := [key for key in keys if key not in obs]:
        raise SpecMismatchError(
            f"{path} has no {missing[0]}", f"choose data.state_keys from: {', '.join(_leaves(obs))}"
        )
    state = np.concatenate([np.asarray(obs[key])[: len(actions)].reshape(len(actions), -1) for key in keys], axis=1)
    if wanted.instruction is None:
        raise SpecMismatchError(
            f"{path} has no instructions, and the env has several tasks",
            "set data.instruction to the instruction of the task that it shows",
        )
    return Demonstration(
        wanted.instruction, actions, {"state": state.astype(np.float32)}, _Pictures([sensors[n]["rgb"] for n in names])
    )


@dataclass(frozen=True)
class _Pictures:
    """Reads the pictures of step t: t → uint8 [C, H, W, 3]."""

    columns: Sequence[Any]

    def __call__(self, t: int) -> np.ndarray:
        return np.stack([column[t] for column in self.columns])


def _leaves(group: Any, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in group.items():
        found += _leaves(value, f"{prefix}{name}/") if hasattr(value, "items") else [f"{prefix}{name}"]
    return [name for name in found if not name.startswith("sensor")]
