"""A scripted pick-and-place policy that reads the objects' poses from the simulator."""

from __future__ import annotations

import numpy as np
from embodied.envs.libero import LiberoEnv

OPEN, CLOSE = -1.0, 1.0


class PickAndPlace:
    """For goals ``(in object basket)``: above, down, close, up, over the basket, lower, open, up."""

    def __init__(self, env: LiberoEnv) -> None:
        self._simulator = env._current
        self._domain = self._simulator._domain
        names = self._domain.parsed_problem["goal_state"][0][1:]
        thing, target = (self._domain.object_states_dict[name].get_geom_state()["pos"].copy() for name in names)
        up = np.array([0.0, 0, 1])
        over = np.array([*target[:2], thing[2]])
        self._waypoints = [  # (where, gripper, control steps to stay; 0 = until there)
            (thing + 0.12 * up, OPEN, 0),
            (thing, OPEN, 0),
            (thing, CLOSE, 12),
            (thing + 0.25 * up, CLOSE, 0),
            (over + 0.25 * up, CLOSE, 0),
            (over + 0.15 * up, CLOSE, 0),
            (over + 0.15 * up, OPEN, 15),
            (over + 0.30 * up, OPEN, 999),
        ]
        self._steps = 0

    def act(self) -> np.ndarray:
        """Action float32 [7]: towards the present waypoint."""
        where, gripper, stay = self._waypoints[0]
        way = where - self._simulator._data.site_xpos[self._simulator._robot.eef_site_id]
        self._steps += 1
        if self._steps >= stay if stay else np.linalg.norm(way) < 0.01 or self._steps > 60:
            self._waypoints, self._steps = self._waypoints[1:], 0
        return np.array([*np.clip(15 * way, -1, 1), 0, 0, 0, gripper], np.float32)
