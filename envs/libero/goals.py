"""Evaluates a task's goals and how near they are, with names looked up once.

What a predicate means stays LIBERO's. Two things differ in how it is found out: each predicate is evaluated once a
control step, and contacts are looked up in one array instead of geom by geom.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

PLACES, GOALS, JOINTS = 6, 4, 4
"""Places, goal predicates and joints of a task that progress features have room for. LIBERO's tasks name at most four
places and have at most three predicates, of which two are of a joint."""
NUM_FEATURES = 11 + 9 * PLACES + GOALS + JOINTS


class Goals:
    """Evaluates the goal predicates of one LIBERO task, with cached results.

    Args:
        domain: LIBERO's environment. Its ``check_contact`` is replaced by one that gives the same answers faster.
    """

    def __init__(self, domain: Any) -> None:
        self._domain, self._data = domain, domain.sim.data._data
        domain.check_contact = Contacts(domain)
        self.all: list[list[str]] = domain.parsed_problem["goal_state"]
        self._places = {name: place_of(domain, self._data, name) for goal in self.all for name in goal[1:]}
        self._joints = joints_of(domain, self.all)[:JOINTS]
        self._gripper = self._data.site_xpos[domain.robots[0].eef_site_id]
        self.open: list[list[str]] | None = None  # goals not reached; None: not known since the state was set

    def evaluate(self) -> bool:
        """Evaluates each predicate, as ``_check_success`` does; returns whether all are satisfied."""
        self.open = [goal for goal in self.all if not self.reached(goal)]
        return not self.open

    def forget(self) -> None:
        """Drops cached results. Call after the state was set."""
        self.open = None

    def reached(self, goal: list[str]) -> bool:
        """Returns whether a goal predicate holds."""
        return bool(self._domain._eval_predicate(goal))

    def progress(self) -> float:
        """Progress in [0, 1), defined in :class:`embodied.envs.libero.LiberoEnv`."""
        if self.open is None:
            self.evaluate()
        goals, open_goals = self.all, self.open or []
        best = max((self._nearness(goal) for goal in open_goals), default=0.0)
        return (len(goals) - len(open_goals) + 0.5 * best) / len(goals)

    def features(self, data: Any, fingers: np.ndarray) -> np.ndarray:
        """Reads progress features as :class:`embodied.envs.libero.LiberoEnv` orders them: float32 [NUM_FEATURES].

        Args:
            data: MuJoCo's, with the poses of now. Those of the simulation are of before the state was set.
            fingers: their positions (m) [2].
        """
        eef, found = self._domain.robots[0].eef_site_id, np.zeros(NUM_FEATURES, np.float32)
        found[:11] = [*data.site_xpos[eef], *data.site_xmat[eef][:6], *fingers]
        for number, name in enumerate([*self._places][:PLACES]):
            pose = [*place_of(self._domain, data, name), *axes_of(self._domain, data, name)[:6]]
            found[11 + 9 * number : 20 + 9 * number] = pose
        open_goals = self.all if self.open is None else self.open
        flags = [goal not in open_goals for goal in self.all[:GOALS]]
        found[11 + 9 * PLACES :][: len(flags)] = flags
        found[11 + 9 * PLACES + GOALS :][: len(self._joints)] = data.qpos[self._joints]
        return found

    def _nearness(self, goal: list[str]) -> float:
        """1 − tanh of distances: gripper to the goal's object and, for two-place goals, object to its target."""
        before, near = self._gripper, []
        for name in goal[1:]:
            place = self._places[name]
            apart = before - place
            near.append(1.0 - math.tanh(5.0 * math.sqrt(apart.dot(apart))))
            before = place
        return math.fsum(near) / len(near)


def place_of(domain: Any, data: Any, name: str) -> np.ndarray:
    """Returns the position (m) of an object or a region in MuJoCo's ``data``, a view."""
    if name in domain.object_sites_dict:
        return data.site_xpos[domain.sim.model.site_name2id(name)]
    return data.xpos[domain.obj_body_id[name]]


def axes_of(domain: Any, data: Any, name: str) -> np.ndarray:
    """Returns the rotation matrix [9], row by row, of an object or a region in MuJoCo's ``data``, a view."""
    if name in domain.object_sites_dict:
        return data.site_xmat[domain.sim.model.site_name2id(name)]
    return data.xmat[domain.obj_body_id[name]]


def joints_of(domain: Any, goals: list[list[str]]) -> list[int]:
    """Finds the doors, drawers and knobs of goals: where their positions stand in MuJoCo's ``qpos``. Those of goals
    about one thing (open, close, turn on) come first."""
    found: dict[int, None] = {}
    for name in (name for goal in sorted(goals, key=len) for name in goal[1:]):
        thing = domain.object_sites_dict.get(name) or domain.get_object(name)
        places = [domain.sim.model.get_joint_qpos_addr(joint) for joint in thing.joints or ()]
        found |= {int(place): None for place in places if not isinstance(place, tuple)}  # several: it moves freely
    return [*found]


class Contacts:
    """Replaces robosuite's ``check_contact`` between two models by a faster one; other queries go to the original."""

    def __init__(self, domain: Any) -> None:
        self._original: Callable[..., bool] = domain.check_contact
        self._model, self._data = domain.sim.model, domain.sim.data._data
        self._masks: dict[Any, np.ndarray] = {}  # object → bool [ngeom], True at its contact geoms

    def __call__(self, geoms_1: Any, geoms_2: Any = None) -> bool:
        if not (hasattr(geoms_1, "contact_geoms") and hasattr(geoms_2, "contact_geoms")):
            return self._original(geoms_1, geoms_2)
        pairs = self._data.contact.geom[: self._data.ncon]
        first, second = self._mask(geoms_1)[pairs], self._mask(geoms_2)[pairs]
        return bool((first[:, 0] & second[:, 1] | first[:, 1] & second[:, 0]).any())

    def _mask(self, model: Any) -> np.ndarray:
        if model not in self._masks:
            names = set(model.contact_geoms)
            self._masks[model] = np.array([self._model.geom_id2name(i) in names for i in range(self._model.ngeom)])
        return self._masks[model]
