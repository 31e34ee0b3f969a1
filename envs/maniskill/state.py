"""Reads the numbers that ManiSkill gives beside its pictures. Only for the worker: imports torch when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..shared.rotations import axis_angle


def read_state(env: Any) -> dict[str, np.ndarray]:
    """Reads ManiSkill's observation without pictures: fields [N, n] of N copies, as in its visual observation modes.

    These are the robot's proprioception and what belongs to the task (``goal_pos``), but no poses of objects.
    ``proprio`` is made of them: gripper position, axis-angle and both fingers, as in LIBERO's state. The values leave
    the device in one copy.
    """
    import torch

    seen: dict[str, Any] = {}
    _flatten({**env._get_obs_agent(), **env._get_obs_extra(env.get_info())}, seen)
    columns = [
        torch.as_tensor(value, device=env.device).to(torch.float32).reshape(env.num_envs, -1) for value in seen.values()
    ]
    ends = np.cumsum([column.shape[1] for column in columns])
    values = torch.cat(columns, dim=1).cpu().numpy()
    found = dict(zip(seen, np.split(values, ends[:-1], axis=1), strict=True))
    if "tcp_pose" in found and found["tcp_pose"].shape[1] == 7 and found["qpos"].shape[1] > 2:
        found["proprio"] = np.stack([proprio(*row) for row in zip(found["tcp_pose"], found["qpos"], strict=True)])
    return found


def proprio(tcp_pose: np.ndarray, qpos: np.ndarray) -> np.ndarray:
    """Returns the proprioception [8]: gripper position, axis-angle and both fingers, from the gripper's pose [7] and
    the joints."""
    w, x, y, z = map(float, tcp_pose[3:])
    return np.concatenate([tcp_pose[:3], axis_angle(x, y, z, w), qpos[-2:]])


def _flatten(tree: Mapping[str, Any], found: dict[str, Any]) -> None:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _flatten(value, found)
        else:
            found[name] = value
