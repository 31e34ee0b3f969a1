"""A process for test_rendering.py: ``culled_scene.py OUT.npz PLACE …`` renders a small scene in several variants."""

import sys

import mujoco
import numpy as np
from embodied.envs.libero.rendering import Offscreen

SCENE = """
<mujoco>
  <asset><material name="floor" rgba="0.3 0.4 0.5 1" reflectance="{mirror}"/></asset>
  <worldbody>
    <light pos="0 0 3" dir="0 0 -1" castshadow="{shadow}"/>
    <camera name="eye" pos="0 -2 1" xyaxes="1 0 0 0 0.447 0.894" fovy="45"/>
    <geom name="floor" type="plane" size="3 3 0.1" material="floor" group="1"/>
    <geom name="box" type="box" size="0.1 0.1 0.1" pos="0 0 0.1" rgba="1 0 0 1" group="1"/>
    <geom name="ball" type="sphere" size="0.2" pos="{place}" rgba="0 1 0 1" group="1"/>
    <geom name="behind" type="box" size="0.1 0.1 0.1" pos="0 -3 1" rgba="0 0 1 1" group="1"/>
  </worldbody>
</mujoco>
"""


def render(place: str = "3 0 1", mirror: float = 0.0, shadow: str = "false", draw_all: bool = False):
    """uint8 [64, 96, 3], and the names of what was not drawn."""
    model = mujoco.MjModel.from_xml_string(SCENE.format(place=place, mirror=mirror, shadow=shadow))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    offscreen = Offscreen(model, 96, 64)
    offscreen._may_cull = offscreen._may_cull and not draw_all
    groups = model.geom_group.copy()
    picture = offscreen.render(data, 0)
    assert np.array_equal(model.geom_group, groups)
    hidden = [model.geom(index).name for index in np.flatnonzero(offscreen._outside(data, 0))]
    offscreen.close()
    return picture, np.array(hidden, dtype=str)


def main(out: str, *places: str) -> None:
    found = {}
    for place in places:
        found[f"{place} culled"], found[f"{place} hidden"] = render(place)
        found[f"{place} whole"], _ = render(place, draw_all=True)
    found["mirror hidden"] = render(mirror=0.5)[1]
    found["shadow hidden"] = render(shadow="true")[1]
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
