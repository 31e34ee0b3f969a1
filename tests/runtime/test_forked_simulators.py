"""Real simulators in forked workers: they inherit the imports, and give what they give in fresh interpreters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.errors import EmbodiedError
from embodied.lib.targets import load_target
from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool.fork_server import ForkServer
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import ArraySpec

pytestmark = [pytest.mark.sim, pytest.mark.slow]

ENVS: dict[str, dict[str, Any]] = {
    "embodied.envs.libero.LiberoEnv": {
        "task_suite_name": "libero_object", "task_ids": [0],
        "init_params": {"camera_heights": 64, "camera_widths": 64},
    },
    "embodied.envs.maniskill.ManiSkillEnv": {
        "init_params": {"id": "PickCube-v1", "camera_heights": 64, "camera_widths": 64},
    },
}  # fmt: skip
SIMULATORS = ("libmujoco", "sapien")  # of which a worker has one loaded when it is ready, and the server before it
CHUNK = 4


def episode(target: str, server: ForkServer | None, folder: Path) -> dict[str, np.ndarray]:
    """Two chunks of a worker, all that it has written."""
    env = load_target(target, "target")(**ENVS[target])
    try:
        env.preflight()
    except EmbodiedError as error:
        pytest.skip(str(error))
    fields = {**env.spec.obs, "actions": ArraySpec((CHUNK, env.spec.action_dim), "float32"), **runtime_fields(CHUNK)}
    slab = Slab.create(fields, rows=3)
    slab.arrays["actions"][:] = np.random.default_rng(0).uniform(-0.5, 0.5, slab.arrays["actions"].shape)
    patient = Deadlines(300, 300, 300)
    pool = Pool(PoolConfig(1, 1, target, ENVS[target], ShapedReward(), patient, folder, server=server), slab)
    try:
        pool.send(Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, max_steps=100))
        pool.recv(1)
        for row in range(2):
            pool.send(Command(Kind.STEP, 0, row=row, next_row=row + 1))
            pool.recv(1)
        return {name: array.copy() for name, array in slab.arrays.items()}
    finally:
        pool.close()
        slab.close()


@pytest.mark.parametrize("target", ENVS)
def test_forked_and_fresh_simulators_give_the_same(tmp_path: Path, target: str) -> None:
    said: list[str] = []
    fresh = episode(target, None, tmp_path / "fresh")
    server = ForkServer([(target, ENVS[target])], tmp_path, 300.0, say=said.append)
    try:
        forked = episode(target, server, tmp_path / "forked")
        loaded = Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")
        assert any(name in loaded for name in SIMULATORS)
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1
    finally:
        server.close()
    assert not said, "everything could be imported before the fork"
    assert fresh["images"][0].std() > 5
    assert (fresh["state"][2] != fresh["state"][0]).any()
    for name, values in fresh.items():
        assert np.array_equal(values, forked[name]), name
