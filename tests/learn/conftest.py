"""Episodes that several tests of updates train on."""

from __future__ import annotations

import pytest

from embodied.runtime.plan import train_plan


@pytest.fixture(scope="module")
def collected(shared_rig):
    """8 episodes of 4 starts; the arrays are a copy, so that tests may change them."""
    rig = shared_rig(slots=4, workers=1, success_distance=0.6)
    plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
    results, _ = rig.rollout().collect(plan, rig.job())
    return rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results
