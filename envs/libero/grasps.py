"""Finds grasps from above for a two-fingered hand, from the boxes of an object and of what surrounds it.

Lengths in m, angles in rad. The *angle* of a grasp is the level direction along which the fingers close.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SPAN = 0.072  # the widest that the fingers, 0.08 apart when open, are sent around
TIP = 0.012  # distance from the point between the pads down to the tips
PALM = 0.04  # distance from that point up to the hand between the fingers
REACH = 0.032  # largest depth of that point below the top of what is between the fingers
RIM = 0.02  # depth of that point below a rim
HANDLE = 0.02  # a part that stands out from a rim by this much is a handle, which turns in the hand
MARGIN = 0.006  # distance kept from everything else
ENOUGH = 0.006  # a grasp is as narrow as another if it is no more than this wider
PER_TURN = 3.0  # turning the hand by 1 rad is as bad as this many points that meet something
PER_METRE = 10.0  # being 1 m further from the robot is as bad as so many: a nearly straight arm goes where it can


@dataclass(frozen=True)
class Boxes:
    """n boxes: centers [n, 3], axes [n, 3, 3] (as columns) and half sizes [n, 3], in the world's frame."""

    centers: np.ndarray
    axes: np.ndarray
    halves: np.ndarray

    def corners(self) -> np.ndarray:
        """Corners [n, 8, 3]."""
        signs = _grid((-1.0, 1.0), (-1.0, 1.0), (-1.0, 1.0))
        return self.centers[:, None] + np.einsum("nij,ncj->nci", self.axes, signs * self.halves[:, None])

    def around(self, points: np.ndarray, margin: float) -> np.ndarray:
        """Marks the points [p, 3] that lie in a box, or nearer to its sides than ``margin``: bool [p]."""
        local = np.einsum("nij,pni->pnj", self.axes, points[:, None] - self.centers)
        return (np.abs(local) < self.halves + margin).all(-1).any(-1)

    def between(self, low: float, high: float) -> Boxes:
        """Selects the boxes that reach into these heights."""
        z = self.corners()[:, :, 2]
        inside = (z.max(1) > low) & (z.min(1) < high)
        return Boxes(self.centers[inside], self.axes[inside], self.halves[inside])


@dataclass(frozen=True)
class Grasp:
    """A grasp: position [3] (m) of the point between the fingers, and the angle along which they close."""

    position: np.ndarray
    angle: float


def plan(thing: Boxes, others: Boxes, heading: float, base: np.ndarray) -> Grasp:
    """Chooses a grasp of the object ``thing``: open fingers and hand meet nothing of the others, the hand turns little
    from its present angle, and the grasp is near to the robot's base [3]."""
    candidates = around_it(thing) or at_its_rim(thing)

    def cost(grasp: Grasp) -> float:
        met = others.around(hand_points(grasp), MARGIN).sum()
        far = float(np.linalg.norm((grasp.position - base)[:2]))
        return float(met) + PER_TURN * abs(turn_to(heading, grasp.angle)) + PER_METRE * far

    return min(candidates, key=cost)


def around_it(thing: Boxes) -> list[Grasp]:
    """Lists grasps across the narrowest side of an object; empty if that is too wide."""
    corners = thing.corners().reshape(-1, 3)
    low, top = corners[:, 2].min(), corners[:, 2].max()
    height = max((low + top) / 2, low + TIP, top - REACH)
    corners = thing.between(height - 0.01, height + 0.01).corners().reshape(-1, 3)
    found = []
    for angle in np.linspace(0, math.pi, 16, endpoint=False):
        along, across = directions(angle)
        width = np.ptp(corners @ along)
        middle = along * _middle(corners @ along) + across * _middle(corners @ across)
        found.append((width, Grasp(middle + np.array([0, 0, height]), float(angle))))
    narrowest = min(width for width, _ in found)
    return [grasp for width, grasp in found if width < min(SPAN, narrowest + ENOUGH)]


def at_its_rim(thing: Boxes) -> list[Grasp]:
    """Lists grasps of the wall of a bowl or a mug, away from its handle."""
    corners = thing.corners().reshape(-1, 3)
    height = corners[:, 2].max() - RIM
    rim = corners[corners[:, 2] > height]
    level = corners if abs(np.ptp(rim[:, 0]) - np.ptp(rim[:, 1])) > HANDLE else rim
    if level is corners:  # a handle moves the middle of the rim, and not that of the foot
        level = thing.between(corners[:, 2].min(), corners[:, 2].min() + 0.01).corners().reshape(-1, 3)
    middle = np.array([_middle(level[:, 0]), _middle(level[:, 1]), height])
    ways = [(float(angle), directions(angle)[0]) for angle in np.linspace(0, 2 * math.pi, 24, endpoint=False)]
    out = [((rim - middle) @ along).max() for _, along in ways]
    return [
        Grasp(middle + along * far, angle)
        for (angle, along), far in zip(ways, out, strict=True)
        if far < np.median(out) + HANDLE
    ]


def _middle(values: np.ndarray) -> float:
    return float(values.max() + values.min()) / 2


def hand_points(grasp: Grasp) -> np.ndarray:
    """Samples points [p, 3] that fill the open fingers and the hand."""
    along, across = directions(grasp.angle)
    finger = (-0.058, -0.045, -0.032, 0.032, 0.045, 0.058)
    fingers = _grid(finger, (-0.012, 0.0, 0.012), np.arange(-TIP, PALM, 0.01))
    hand = _grid(np.linspace(-0.1, 0.1, 11), (-0.03, 0.0, 0.03), (PALM, PALM + 0.03, PALM + 0.06))
    return grasp.position + np.concatenate([fingers, hand]) @ np.stack([along, across, [0, 0, 1.0]])


def _grid(*values: object) -> np.ndarray:
    """All combinations, [n, len(values)]."""
    return np.stack(np.meshgrid(*values, indexing="ij"), -1).reshape(-1, len(values))


def directions(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns horizontal unit vectors [3]: along the angle, and to the left of it."""
    c, s = math.cos(angle), math.sin(angle)
    return np.array([c, s, 0.0]), np.array([-s, c, 0.0])


def turn_to(heading: float, angle: float) -> float:
    """Returns the smaller turn (rad) from one angle to the other, in [−π/2, π/2): opposite angles are the
    same grasp."""
    return (angle - heading + math.pi / 2) % math.pi - math.pi / 2


def clear_height(others: Boxes, start: np.ndarray, end: np.ndarray, width: float) -> float:
    """Returns the highest z (m) that a box has within ``width`` of the level way between two positions; −inf if none is
    near."""
    corners = others.corners()
    low, high = corners.min(1), corners.max(1)
    way = np.linspace(start[:2], end[:2], 25)[:, None]
    beside = np.maximum(np.maximum(low[:, :2] - way, way - high[:, :2]), 0)
    near = (np.linalg.norm(beside, axis=-1) < width).any(0)
    return float(high[near, 2].max(initial=-math.inf))
