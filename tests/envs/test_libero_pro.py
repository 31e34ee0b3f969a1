"""One task of each of LIBERO-PRO's suites, in the simulator."""

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.files import PRO

from embodied.types import Start

pytestmark = [pytest.mark.sim, pytest.mark.slow]
STILL = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)


@pytest.mark.parametrize("suite", PRO)
def test_the_first_task_is_built_reset_seen_and_stepped(suite, look):
    env = LiberoEnv(suite, task_ids=[0], init_params={"camera_heights": 64, "camera_widths": 64})
    env.prepare()
    env.reset(Start(0, 0, 0))
    first = look(env)
    assert first["images"].std() > 10
    results = [env.step(STILL) for _ in range(5)]
    assert not any(result.success for result in results), "the goal is not reached before anybody moves"
    assert all(0 <= result.reward < 1 for result in results)
    env.reset(Start(0, 1, 0))
    assert not np.array_equal(look(env)["images"], first["images"]), "initial states differ"
    env.close()
