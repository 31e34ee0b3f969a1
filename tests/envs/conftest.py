import os

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv


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


def observe(env) -> dict[str, np.ndarray]:
    out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in env.spec.obs.items()}
    env.observe(out)
    return out


@pytest.fixture(scope="session")
def look():
    return observe
