"""Where LIBERO-Plus puts the camera ``agentview``, in the package's arithmetic: each turn is rounded to four digits."""

from __future__ import annotations

import functools

import numpy as np

from .names import Views

CAMERA = "agentview"
_TABLE = (0.6380177736282349, 0.3048497438430786, 0.30484986305236816, 0.6380177736282349)
_LOW = (0.6182166934013367, 0.3432307541370392, 0.3432314395904541, 0.6182177066802979)
_POSES = {  # beginning of a problem's name → position (m), quaternion (w, x, y, z)
    "libero_tabletop_manipulation": ((0.6586131746834771, 0.0, 1.6103500240372423), _TABLE),
    "libero_kitchen_tabletop_manipulation": ((0.6586131746834771, 0.0, 1.6103500240372423), _TABLE),
    "libero_study_tabletop_manipulation": ((0.4586131746834771, 0.0, 1.6103500240372423), _TABLE),
    "libero_floor_manipulation": ((0.8965773716836134, 5.216182733499864e-07, 0.65), _LOW),
    "libero_living_room_tabletop_manipulation": ((0.6065773716836134, 0.0, 0.96), _LOW),
}
_PIVOT = np.array([0, 0, 0.8])  # m


@functools.cache
def pose(problem: str, view: Views) -> tuple[np.ndarray, np.ndarray]:
    """Returns position [3] (m) and unit quaternion [4] (w, x, y, z) of the camera, as MuJoCo's compiler has them.

    Args:
        problem: name in a BDDL file, in small letters.
        view: degrees around the table and up, distance (%), turn and tilt (degrees).
    """
    import mujoco

    position, quaternion = _rounded(problem, view)
    text = " ".join(map(str, position)), " ".join(map(str, quaternion))
    camera = f'<camera name="it" pos="{text[0]}" quat="{text[1]}"/>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{camera}</worldbody></mujoco>")
    return model.cam_pos[0].copy(), model.cam_quat[0].copy()


def _rounded(problem: str, view: Views) -> tuple[list[float], list[float]]:
    from scipy.spatial.transform import Rotation

    def turned(rotation: Rotation, quaternion: list[float]) -> list[float]:
        w, x, y, z = quaternion
        x, y, z, w = (rotation * Rotation.from_quat([x, y, z, w])).as_quat()
        return _four([w, x, y, z])

    def upwards(degrees: int) -> Rotation:
        return Rotation.from_rotvec(np.radians(-degrees) * np.array([0, 1, 0]))

    around, up, distance, turn, tilt = view
    position, quaternion = (list(part) for part in _POSES[_base(problem)])
    if up:
        position = _four(upwards(up).apply(np.array(position) - _PIVOT) + _PIVOT)
        quaternion = turned(upwards(up), quaternion)
    rotation = Rotation.from_euler("z", around, degrees=True)
    position, quaternion = _four(rotation.apply(position)), turned(rotation, quaternion)
    if distance != 100:
        position = _four(_PIVOT + (np.array(position) - _PIVOT) * (distance / 100))
    if turn:
        quaternion = turned(Rotation.from_euler("z", turn, degrees=True), quaternion)
    return position, turned(upwards(tilt), quaternion) if tilt else quaternion


def _four(numbers: np.ndarray | list[float]) -> list[float]:
    return [round(float(number), 4) for number in numbers]


def _base(problem: str) -> str:
    return next(name for name in _POSES if problem.startswith(name))
