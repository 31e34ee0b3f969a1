"""Workers with envs of every kind of action and observation: chunks, batches and videos."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from rig import FAST

from embodied.observe.video.video import Video
from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool.pool import Pool, PoolConfig
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.testing import FakeEnv
from embodied.types import ContinuousAction, DiscreteAction, Start

CHUNK, SLOTS = 3, 2
KINDS: dict[str, dict[str, Any]] = {
    "numbers": {},
    "one of five": {"num_actions": 5},
    "without pictures": {"pictures": False},
    "one of five without pictures": {"num_actions": 5, "pictures": False},
}


@contextmanager
def opened(folder: Path, batch: bool, options: dict[str, Any]) -> Iterator[tuple[Pool, Slab]]:
    spec = FakeEnv(**options).spec
    slab = Slab.create({**spec.obs, "actions": spec.action.field(CHUNK), **runtime_fields(CHUNK)}, 16)
    target = "embodied.testing.FakeBatchEnv" if batch else "embodied.testing.FakeEnv"
    config = PoolConfig(SLOTS, 1, target, options, ShapedReward("dense"), FAST, folder / "logs", batch=batch)
    try:
        pool = Pool(config, slab)
        try:
            yield pool, slab
        finally:
            pool.close()
    finally:
        slab.close()


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("batch", [False, True])
def test_chunks_do_what_the_env_does_by_itself(tmp_path, batch, options):
    """Slot 1 ends after four control steps of the six; the video of slot 0 shows all."""
    video = str(tmp_path / "videos" / "slot0.mp4")
    env = FakeEnv(**options)
    actions = env.spec.action.sample(np.random.default_rng(3), 2 * SLOTS * CHUNK).reshape(
        2, SLOTS, CHUNK, *env.spec.action.neutral().shape
    )
    with opened(tmp_path, batch, options) as (pool, slab):
        for slot in range(SLOTS):
            steps = 6 if slot == 0 else 4
            pool.send(
                Command(
                    Kind.RESET, slot, next_row=slot, task_id=slot, init_state_id=1, seed=5, max_steps=steps,
                    video=slot == 0,
                ),
                Video(video) if slot == 0 else None,
            )  # fmt: skip
        got = pool.recv(SLOTS)
        for number in range(2):
            first = SLOTS * number
            slab.arrays["actions"][first : first + SLOTS] = actions[number]
            for slot in range(SLOTS):
                pool.send(Command(Kind.STEP, slot, first + slot, first + SLOTS + slot, observe_truncated=True))
            while len(got) < SLOTS * (number + 2):
                got += pool.recv(SLOTS)
        rows = {name: values.copy() for name, values in slab.arrays.items()}
    assert len(got) == 3 * SLOTS
    for slot in range(SLOTS):
        env.reset(Start(slot, 1, 5))
        for number in range(2):
            row, after = SLOTS * number + slot, SLOTS * (number + 1) + slot
            count = CHUNK if slot == 0 or number == 0 else 1
            rewards = [env.step(action).reward for action in actions[number, slot, :count]]
            assert rows["num_steps"][row] == count
            assert np.array_equal(rows["rewards"][row, :count], np.float32(rewards))
            seen = {name: np.zeros(field.shape, field.dtype) for name, field in env.spec.obs.items()}
            env.observe(seen)
            assert all(np.array_equal(rows[name][after], values) for name, values in seen.items())
    assert len(iio.imread(video)) == 7


def test_the_field_of_a_chunk_is_said_by_the_action():
    assert ContinuousAction((-1.0,) * 3, (1.0,) * 3).field(4).shape == (4, 3)
    assert ContinuousAction((-1.0,) * 3, (1.0,) * 3).field(4).dtype == "float32"
    assert (DiscreteAction(9).field(4).shape, DiscreteAction(9).field(4).dtype) == ((4,), "int32")


def test_neutral_and_drawn_actions_lie_in_the_range():
    random = np.random.default_rng(0)
    arm = ContinuousAction((-1.0, 0.5, -3.0), (1.0, 2.0, -1.0))
    assert arm.neutral().tolist() == [0.0, 0.5, -1.0]
    drawn = arm.sample(random, 200)
    assert (drawn.dtype, drawn.shape) == (np.float32, (200, 3))
    assert (drawn >= arm.low).all()
    assert (drawn <= arm.high).all()
    assert (drawn.min(axis=0) < [-0.9, 0.6, -2.9]).all()
    keys = DiscreteAction(3).sample(random, 200)
    assert (keys.dtype, set(keys.tolist())) == (np.int32, {0, 1, 2})
    assert DiscreteAction(3).neutral().dtype == np.int32
