"""Names, sizes and poses of ManiSkill's cameras: ``init_params.camera_*``, checked before a simulator is built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied.errors import ConfigError, UnknownKeyError, did_you_mean

from ..shared.arguments import check_list, check_name, check_range

KEY = "env.train.init_params"
SIZE_LIMITS = (16, 2048)
FOV_LIMITS = (0.01, 3.1)
_VIEW_KEYS = ("eye", "target", "fov")


@dataclass(frozen=True)
class View:
    """Pose and field of view of a camera that is not where the task has it. None = as the task has it."""

    eye: tuple[float, ...] | None = None  # [3] m, in the scene's frame
    target: tuple[float, ...] | None = None  # [3] m, in the middle of the picture
    fov: float | None = None  # vertical, rad


@dataclass(frozen=True)
class Cameras:
    """The cameras that are rendered. All have one size."""

    names: tuple[str, ...] = ("base_camera",)
    height: int = 128  # pixels
    width: int = 128
    views: Mapping[str, View] = field(default_factory=dict)

    KEYS = ("camera_names", "camera_heights", "camera_widths", "camera_views")

    @classmethod
    def of(cls, init_params: Mapping[str, Any]) -> Cameras:
        """Reads cameras from ``init_params``. Raises ConfigError, UnknownNameError or UnknownKeyError,
        naming the key."""
        names = init_params.get("camera_names", cls.names)
        check_list("names", names, f"{KEY}.camera_names", "[base_camera]")
        height, width = init_params.get("camera_heights", cls.height), init_params.get("camera_widths", cls.width)
        check_range(f"{KEY}.camera_heights", height, *SIZE_LIMITS)
        check_range(f"{KEY}.camera_widths", width, *SIZE_LIMITS)
        views = init_params.get("camera_views") or {}
        for name in views:
            check_name("camera", name, names, f"{KEY}.camera_views")
        return cls(tuple(names), int(height), int(width), {name: _view(name, views[name]) for name in views})

    def sensor_configs(self, shader_pack: str) -> dict[str, Any]:
        """Makes the ``sensor_configs`` of ``gym.make``. Imports mani_skill if there are views."""
        views = {name: _as_config(view) for name, view in self.views.items()}
        return {"height": self.height, "width": self.width, "shader_pack": shader_pack, **views}


def _view(name: str, given: Mapping[str, Any]) -> View:
    key = f"{KEY}.camera_views.{name}"
    for entry in given:
        if entry not in _VIEW_KEYS:
            message = f"unknown key '{key}.{entry}'.{did_you_mean(entry, _VIEW_KEYS)}"
            raise UnknownKeyError(message, f"use some of: {', '.join(_VIEW_KEYS)}")
    eye, target, fov = (given.get(entry) for entry in _VIEW_KEYS)
    if (eye is None) != (target is None):
        raise ConfigError(
            f"{key} has {'target' if eye is None else 'eye'} alone",
            "give both: eye, where the camera stands, and target, the middle of its picture, [x, y, z] in m",
        )
    points = [_point(f"{key}.{entry}", value) for entry, value in (("eye", eye), ("target", target))]
    if points[0] is not None and points[0] == points[1]:
        raise ConfigError(f"{key}: eye and target are both {list(points[0])}", "a camera looks from one to the other")
    if fov is not None and not FOV_LIMITS[0] <= fov <= FOV_LIMITS[1]:
        raise ConfigError(
            f"{key}.fov is {fov}, expected radians from {FOV_LIMITS[0]} to {FOV_LIMITS[1]}", "90° is 1.57"
        )
    return View(points[0], points[1], None if fov is None else float(fov))


def _point(key: str, value: Sequence[float] | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        point = tuple(float(x) for x in value)
    except (TypeError, ValueError):
        point = ()
    if len(point) != 3 or not all(map(math.isfinite, point)):
        raise ConfigError(f"{key} is {value!r}, expected three numbers", f"set {key}=[x,y,z], in m")
    return point


def _as_config(view: View) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if view.eye is not None:
        from mani_skill.utils.sapien_utils import look_at

        config["pose"] = look_at(view.eye, view.target)
    if view.fov is not None:
        config["fov"] = view.fov
    return config
