"""Finds the Vulkan device that renders for SAPIEN on this machine, without a display.

Nothing is imported or created in the process that asks: each device is tried in a process of its own, because some
drivers crash instead of raising.
"""

from __future__ import annotations

from dataclasses import dataclass

from embodied.errors import RendererUnavailableError, unknown_name

from ..shared.machine import try_in_process

DEVICES = ("gpu", "cpu")  # ManiSkill's names of render backends
REMEDY = (
    "on a GPU machine: install the vendor's Vulkan driver. Without a GPU, Mesa 23 or newer: `make vulkan` in a "
    "checkout, or apt-get install -y libvulkan1 mesa-vulkan-drivers; Debian 12's own Mesa is too old for SAPIEN: add "
    "the suite bookworm-backports to apt's sources and install with -t bookworm-backports"
)
_TRIAL = """
import sys
import sapien.render
system = sapien.render.RenderSystem(sapien.Device(sys.argv[1]))
if sys.argv[2:] == ["frame"]:
    import sapien.physx
    sapien.render.set_camera_shader_dir("trivial")  # others take llvmpipe ten seconds to compile
    scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), system])
    scene.set_ambient_light([0.5, 0.5, 0.5])
    builder = scene.create_actor_builder()
    builder.add_box_visual(half_size=[0.3, 0.3, 0.3], material=[1, 0, 0])
    builder.build_static().set_pose(sapien.Pose([2, 0, 0]))
    camera = scene.add_camera("camera", 16, 16, 1.0, 0.1, 10)
    scene.update_render()
    camera.take_picture()
    frame = camera.get_picture("Color")[..., :3]
    if frame.min() == frame.max():
        raise RuntimeError("it opened the device and drew an empty picture")
print("VULKAN_DEVICE=" + sapien.render.get_device_summary().split("GPU:", 1)[-1].strip().splitlines()[0])
"""


@dataclass(frozen=True)
class VulkanChoice:
    """A device that SAPIEN can render on, e.g. ``("cpu", "Vulkan on llvmpipe (LLVM 15.0.6, 256 bits); …")``."""

    name: str  # ManiSkill's render_backend
    reason: str
    driver: str = ""  # the device, as Vulkan names it


def check_vulkan(renderer: str = "auto") -> VulkanChoice:
    """Finds a Vulkan device that SAPIEN accepts. Takes about 1 s and leaves no trace in this process.

    Args:
        renderer: "gpu", "cpu" (software), or "auto": the first that works.

    Raises:
        UnknownNameError: ``renderer`` is none of these.
        RendererUnavailableError: none works; the message holds what each said.
    """
    if renderer not in ("auto", *DEVICES):
        raise unknown_name("renderer", renderer, ("auto", *DEVICES), "env.train.renderer")
    said: list[str] = []
    for name in DEVICES if renderer == "auto" else (renderer,):
        ok, text = _try_device(name)
        if ok:
            why = "; ".join(said) if said else "first choice" if renderer == "auto" else "asked for by renderer"
            return VulkanChoice(name, f"Vulkan on {text}; {why}", text)
        said.append(f"{name}: {text}")
    raise RendererUnavailableError("SAPIEN found no Vulkan device to render on: " + "; ".join(said), REMEDY)


def draw_frame() -> str:
    """Draws a small picture, in a process of its own, on the first device that can; returns its name.

    Raises:
        RendererUnavailableError: no device can, with what each said.
    """
    said: list[str] = []
    for name in DEVICES:
        ok, text = _try_device(name, "frame")
        if ok:
            return "; ".join([f"{text} ({name})", *said])
        said.append(f"{name}: {text}")
    raise RendererUnavailableError("Vulkan cannot draw: " + "; ".join(said), REMEDY)


def _try_device(name: str, *more: str) -> tuple[bool, str]:
    """(worked, name of the device or last line of the error). With "frame" it draws one, too."""
    return try_in_process(_TRIAL, [{"gpu": "cuda", "cpu": "cpu"}[name], *more], {}, "VULKAN_DEVICE=")
