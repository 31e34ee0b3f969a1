"""The recorded reward by hand."""

from __future__ import annotations

import pytest

from embodied.runtime.worker.reward import ShapedReward
from embodied.types import StepResult

STEPS = [StepResult(0.25, False, False), StepResult(0.75, False, False), StepResult(1.0, True, True)]


@pytest.mark.parametrize(
    ("mode", "relative", "expected"),
    [
        ("sparse", False, [0.0, 0.0, 4.0]),
        ("sparse", True, [0.0, 0.0, 4.0]),
        ("dense", False, [1.0, 3.0, 4.0]),
        ("dense", True, [1.0, 2.0, 1.0]),
    ],
)
def test_modes(mode, relative, expected):
    reward = ShapedReward(mode, reward_coef=4.0, use_rel_reward=relative)
    for _ in range(2):  # the second episode must not know of the first
        reward.begin()
        assert [reward(step) for step in STEPS] == expected


def test_success_that_is_lost_is_taken_back_when_relative():
    reward = ShapedReward("sparse", use_rel_reward=True)
    reward.begin()
    assert [reward(StepResult(0.0, False, s)) for s in (True, True, False, True)] == [1.0, 0.0, -1.0, 1.0]
