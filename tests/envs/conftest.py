import os
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.rendering import check_renderer
from embodied.envs.maniskill.rendering import check_vulkan

from embodied.errors import RendererUnavailableError


@pytest.fixture(scope="session", autouse=True)
def backend_of_mujoco():
    """Imports mujoco with the backend that LIBERO renders with. mani_skill imports it too: if that came first in this
    process, LIBERO would find mujoco without a backend."""
    if find_spec("mujoco") is None:
        return
    with suppress(RendererUnavailableError), pytest.MonkeyPatch.context() as patch:
        name = check_renderer().name
        for variable in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
            patch.setenv(variable, name)
        import mujoco  # noqa: F401


@pytest.fixture(scope="session")
def sim():
    """libero_object in small pictures, shared by the tests; each resets it. Environment variables are put back."""
    before = dict(os.environ)
    env = LiberoEnv("libero_object", max_cached_simulators=1, init_params={"camera_heights": 96, "camera_widths": 128})
    env.prepare()
    yield env
    env.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def vulkan():
    """Environment variables are put back."""
    try:
        check_vulkan()
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def observe(env) -> dict[str, np.ndarray]:
    out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in env.spec.obs.items()}
    env.observe(out)
    return out


@pytest.fixture(scope="session")
def look():
    return observe
