"""benchmarks/real_time_chunks.py: time in control steps; episodes side by side are those of each alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import benchmark_file
import numpy as np
import pytest
from embodied.models.flow_vla import build_policy

from embodied.testing import FakeEnv
from embodied.types import ContinuousAction, Start

pytest.importorskip("gymnasium")


class Plane(FakeEnv):
    """The fake env with actions of two numbers."""

    def __init__(self) -> None:
        super().__init__(horizon=18)
        self._spec = replace(self.spec, action=ContinuousAction((-1.0, -1.0), (1.0, 1.0)))

    def step(self, action: np.ndarray) -> Any:
        return super().step(np.concatenate([action, np.zeros(5, np.float32)]))


@pytest.fixture(scope="module")
def chunks() -> Any:
    return benchmark_file.load("real_time_chunks")


@pytest.fixture(scope="module")
def policy(chunks: Any) -> Any:
    found = build_policy(**{**chunks.NETWORK, "train_expert_only": False, "action_width": 4, "image_size": 32})
    found.bind(Plane().spec)
    return found


STARTS = [Start(0, 0, seed) for seed in (3, 4)]


def actions(chunks: Any, policy: Any, way: str, delay: int, starts: list[Start]) -> list[np.ndarray]:
    """What each episode executed."""
    line = chunks.Line(policy, Plane().spec, delay, chunks.WAYS[way].guided)
    episodes = [chunks.Episode(Plane, start, line, chunks.WAYS[way]) for start in starts]
    while going := [one for one in episodes if not one.ended]:
        for one in going:
            one.step()
        line.now += 1
    return [np.stack(one.actions) for one in episodes]


def test_a_robot_that_waits_stands_still_for_the_delay(chunks, policy):
    (one,) = actions(chunks, policy, "wait", 3, STARTS[:1])
    still = (one == 0).all(axis=1)
    assert still.tolist() == [step in (8, 9, 10) for step in range(18)]


@pytest.mark.parametrize("way", ["ahead", "guided"])
def test_episodes_side_by_side_are_those_of_each_alone(chunks, policy, way):
    together = actions(chunks, policy, way, 2, STARTS)
    for one, start in zip(together, STARTS, strict=True):
        np.testing.assert_allclose(one, actions(chunks, policy, way, 2, [start])[0], atol=1e-5)
    assert not np.allclose(together[0], together[1])


def test_guided_the_policy_gets_the_rest_of_the_chunk_and_the_keys_of_the_way(chunks, policy, monkeypatch):
    asked, act_after = [], policy.act_after

    def noted(obs, noise, sampling, left_over, left, delay):
        asked.append((left.tolist(), delay.tolist(), policy.parts.settings.rtc_jacobian))
        return act_after(obs, noise, sampling, left_over, left, delay)

    monkeypatch.setattr(policy, "act_after", noted)
    found = chunks.driven(policy, chunks.WAYS["jacobian"], 6, Plane, STARTS)
    assert asked == [([12, 12], [6, 6], True)], "the answer to the question of step 16 comes after the end"
    assert policy.parts.settings.rtc_jacobian is False
    assert found["control_steps"] == 18
    assert sum(found["ends"].values()) == 2


def test_jerk_is_that_of_the_hand(chunks):
    constant = partial(SimpleNamespace, actions=[np.ones(2)] * 5)
    jerk = chunks.Episode.jerk.fget
    speed = np.sqrt(2) * chunks.STEP * chunks.HERTZ  # reached in one control step, from rest
    assert jerk(constant()) == pytest.approx(speed * chunks.HERTZ**2 / np.sqrt(4))
