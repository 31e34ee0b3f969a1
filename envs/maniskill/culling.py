"""Leaves out of the drawing what no camera of ManiSkill sees. Pictures stay equal bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..shared.frustum import Frustum, corners


class Culling:
    """Hides the bodies of one CPU scene that lie outside all pictures, and shows those that come into one.

    Only for shaders without reflections ("minimal"). Where a light throws shadows nothing is hidden: a shadow may lie
    in a picture and what throws it beside it. Bodies hidden or half transparent at the beginning stay as they are.

    Args:
        scene: a ManiSkillScene with one sub-scene.
        cameras: SAPIEN's camera components that pictures are taken with.
    """

    def __init__(self, scene: Any, cameras: Sequence[Any]) -> None:
        self.scene, self._cameras = scene, cameras
        self._bodies = _bodies(scene)
        self._boxes = np.stack([_box(body) for body in self._bodies]) if self._bodies else np.zeros((0, 8, 4))
        self._hidden = np.zeros(len(self._bodies), bool)

    def apply(self) -> None:
        """Hides and shows bodies. Call before a picture, when all bodies and cameras are in place."""
        if not self._bodies:
            return
        poses = np.stack([body.entity.pose.to_transformation_matrix() for body in self._bodies])
        boxes = np.einsum("nij,nkj->nki", poses, self._boxes)
        hide = np.logical_and.reduce([_frustum(camera).misses(boxes) for camera in self._cameras])
        for index in np.flatnonzero(hide != self._hidden):
            self._bodies[index].visibility = 0.0 if hide[index] else 1.0
        self._hidden = hide

    @property
    def hidden(self) -> list[str]:
        """Names of the bodies that are not drawn at the moment."""
        return [self._bodies[index].entity.name for index in np.flatnonzero(self._hidden)]


def _frustum(camera: Any) -> Frustum:
    to_camera = np.eye(4)
    to_camera[:3] = np.asarray(camera.get_extrinsic_matrix())[:3]
    return Frustum.of_pinhole(to_camera, (camera.fx, camera.fy), (camera.cx, camera.cy), (camera.width, camera.height))


def _bodies(scene: Any) -> list[Any]:
    """Render bodies that may be hidden; none where there are shadows."""
    from sapien.render import RenderBodyComponent, RenderLightComponent

    found = []
    for entity in scene.sub_scenes[0].entities:
        for component in entity.components:
            if isinstance(component, RenderLightComponent) and component.shadow:
                return []
            if isinstance(component, RenderBodyComponent) and component.render_shapes and component.visibility == 1.0:
                found.append(component)
    return found


def _box(body: Any) -> np.ndarray:
    """Corners [8, 4], in the entity's frame, of a box around the body."""
    low, high = np.asarray(body.compute_global_aabb_tight(), float)
    return corners(low, high) @ np.linalg.inv(body.entity.pose.to_transformation_matrix()).T
