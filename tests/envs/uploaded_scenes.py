"""A process for test_libero_uploads.py: ``uploaded_scenes.py OUT.npz`` draws models that have textures and meshes in
common, in one GL context and each alone as MuJoCo does."""

import sys

import mujoco
import numpy as np
from embodied.envs.libero import uploads
from embodied.envs.libero.rendering import Offscreen

WIDTH, HEIGHT = 96, 64
SCENE = """
<mujoco>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.2 0.3 0.9" rgb2="0.9 0.9 0.9" width="32" height="32"/>
    {texture}
    <texture name="cube" type="cube" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="16" height="16" mark="edge"/>
    {mesh}
    <mesh name="wedge" vertex="0 0 0  0.6 0 0  0 0.6 0  0.6 0.6 0  0 0 0.5  0 0.6 0.5"/>
    <material name="ground" texture="floor" texrepeat="3 3"/>
    <material name="painted" texture="cube"/>
  </asset>
  <worldbody>
    <light pos="0 0 3" dir="0 0 -1" castshadow="false"/>
    <camera name="eye" pos="0 -2.5 1.3" xyaxes="1 0 0 0 0.447 0.894" fovy="45"/>
    <geom type="plane" size="3 3 0.1" material="ground" group="1"/>
    <geom type="mesh" mesh="{shown}" pos="-0.6 0 0.1" material="painted" group="1" contype="0" conaffinity="0"/>
    <geom type="mesh" mesh="wedge" pos="0.2 0 0.1" rgba="0 1 0 1" group="1"/>
    <geom type="box" size="0.2 0.2 0.2" pos="-0.1 0.6 0.2" material="painted" group="1"/>
  </worldbody>
</mujoco>
"""
FLOOR = '<texture name="floor" type="2d" builtin="checker" rgb1="{rgb}" rgb2="0.2 0.2 0.2" width="64" height="64"/>'
PYRAMID = '<mesh name="pyramid" vertex="0 0 0  0.5 0 0  0 0.5 0  0.5 0.5 0  0.25 0.25 {height}"/>'


def model(rgb: str = "1 1 1", height: float = 0.6, before: str = "", shown: str = "pyramid"):
    """A model; ``before`` comes before its mesh, so that numbers of meshes differ from model to model."""
    mesh = before + PYRAMID.format(height=height)
    return mujoco.MjModel.from_xml_string(SCENE.format(texture=FLOOR.format(rgb=rgb), mesh=mesh, shown=shown))


MODELS = {
    "first": {},
    "equal": {},
    "other floor": {"rgb": "1 1 0"},
    "other mesh": {"height": 1.0},
    "other order": {"before": '<mesh name="extra" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>'},
    "mesh twice": {"shown": "wedge"},
}


def data_of(made):
    data = mujoco.MjData(made)
    mujoco.mj_forward(made, data)
    return data


def alone(made) -> np.ndarray:
    """The picture that MuJoCo gives of a model in a context of its own."""
    gl = mujoco.GLContext(WIDTH, HEIGHT)
    gl.make_current()
    made.vis.global_.offwidth, made.vis.global_.offheight = WIDTH, HEIGHT
    context = mujoco.MjrContext(made, mujoco.mjtFontScale.mjFONTSCALE_150)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
    scene, camera, option = mujoco.MjvScene(made, maxgeom=100), mujoco.MjvCamera(), mujoco.MjvOption()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
    mujoco.mjv_updateScene(made, data_of(made), option, None, camera, mujoco.mjtCatBit.mjCAT_ALL, scene)
    rect, pixels = mujoco.MjrRect(0, 0, WIDTH, HEIGHT), np.empty((HEIGHT, WIDTH, 3), np.uint8)
    mujoco.mjr_render(rect, scene, context)
    mujoco.mjr_readPixels(pixels, None, rect, context)
    context.free()
    gl.free()
    return pixels[::-1, ::-1].copy()


def counts() -> list[int]:
    """Users of each upload, ascending; empty when no canvas is left."""
    return sorted(upload.users for canvas in uploads._CANVASES.values() for upload in canvas._uploads.values())


def main(out: str) -> None:
    found = {f"{name} alone": alone(model(**settings)) for name, settings in MODELS.items()}
    models = {name: model(**settings) for name, settings in MODELS.items()}
    drawn: dict[str, Offscreen] = {}
    for name, made in models.items():
        drawn[name] = Offscreen(made, WIDTH, HEIGHT)
        found[f"{name} counts"] = np.array(counts())
    for turn in ("once", "again"):
        for name, offscreen in drawn.items():
            found[f"{name} {turn}"] = offscreen.render(data_of(models[name]), 0)
    drawn.pop("first").close()  # whose uploads the others use
    drawn.pop("other mesh").close()
    found["counts without two"] = np.array(counts())
    late = model()
    drawn["late"], models["late"] = Offscreen(late, WIDTH, HEIGHT), late
    found["late alone"] = found["first alone"]
    for name, offscreen in drawn.items():
        found[f"{name} later"] = offscreen.render(data_of(models[name]), 0)
    other = Offscreen(model(), 32, 32)
    found["sizes"] = np.array(len(uploads._CANVASES))
    for offscreen in (other, *drawn.values()):
        offscreen.close()
    found["left"] = np.array(counts())
    found["canvases"] = np.array(len(uploads._CANVASES))
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
