"""What is remembered of successes, and what it pays to the episodes after them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied.algorithms.potentials import Points, shaping
from embodied.errors import CheckpointError
from embodied.learn.score.own_successes import OwnSuccesses
from embodied.types import Episode, EpisodeResult, Start

GAMMA = 0.9


def memory(**more) -> OwnSuccesses:
    return OwnSuccesses(**{"tasks": 2, "per_task": 2, "points": 4, "features": 2, "gamma": GAMMA, **more})


def walk(*places: float) -> np.ndarray:
    """Features of an episode along a line, [T, 2, F]."""
    states = np.array([[place, 1.0] for place in places], np.float32)
    return np.stack([states[:-1], states[1:]], axis=1)


def ended(number: int, task: int = 0, solved_at: int = 0, cut_off: bool = False) -> EpisodeResult:
    end = {"terminated": not cut_off, "truncated": cut_off, "final_row": 9 if cut_off else -1}
    return EpisodeResult(
        Episode(number, number, Start(task, 0, number)), (), float(solved_at > 0), solved_at > 0, 6,
        solved_at=solved_at, **end,
    )  # fmt: skip


def score(own: OwnSuccesses, *played: tuple[np.ndarray, EpisodeResult], **more) -> list[np.ndarray]:
    """What is added to the rewards of episodes whose records have two control steps each."""
    episodes = [
        {"progress_features": features, "num_steps": np.full(len(features), 2, np.int32), **more}
        for features, _ in played
    ]
    counts = [np.ones((len(features), 1), bool) for features, _ in played]
    found = own(episodes, counts, [result for _, result in played])
    assert all("progress_features" not in episode for episode in found)
    return [episode["penalty"] for episode in found]


SUCCESS = walk(0.0, 1.0, 2.0), ended(0, solved_at=3)
FAILURE = walk(0.0, 1.5, 0.5)


def paid(features: np.ndarray, *successes: np.ndarray, scale: float = 1.0, end: bool = True) -> np.ndarray:
    points = Points.of([np.concatenate([own[:, 0], own[-1:, 1]]) for own in successes])
    potentials = points.potential(np.concatenate([features[:, 0], features[-1:, 1]]))
    if end:
        potentials[-1] = 0.0
    return scale * shaping(potentials, np.ones((len(features), 1), bool), GAMMA)


def test_before_the_first_success_of_a_task_nothing_is_paid_nor_in_the_iteration_that_has_it():
    own = memory()
    assert [one.tolist() for one in score(own, (FAILURE, ended(1)), SUCCESS)] == [[[0.0], [0.0]]] * 2
    assert own.metrics() == {
        "train/own_successes/task/0": 1.0, "train/own_successes/task/1": 0.0, "train/tasks_without_success": 1.0,
    }  # fmt: skip
    first, other = score(own, (FAILURE, ended(2)), (FAILURE, ended(3, task=1)))
    assert first == pytest.approx(paid(FAILURE, SUCCESS[0]))
    assert (first != 0).all()
    assert (other == 0).all(), "of another task nothing is known"


def test_a_state_from_which_a_value_is_bootstrapped_has_its_potential_and_an_end_has_none():
    own = memory(scale=3.0)
    score(own, SUCCESS)
    cut_off, whole = score(own, (FAILURE, ended(1, cut_off=True)), (FAILURE, ended(2)))
    assert cut_off == pytest.approx(paid(FAILURE, SUCCESS[0], scale=3.0, end=False))
    assert whole == pytest.approx(paid(FAILURE, SUCCESS[0], scale=3.0))
    assert cut_off[-1] > whole[-1]


def test_successes_are_paid_as_failures_are_and_penalties_stay():
    own = memory()
    score(own, SUCCESS)
    (again,) = score(own, (FAILURE, ended(1, solved_at=4)), penalty=np.full((2, 1), -5, np.float32))
    assert again == pytest.approx(paid(FAILURE, SUCCESS[0]) - 5)


def test_a_trajectory_ends_with_the_record_that_solved_the_task_and_the_newest_are_kept():
    own, longer = memory(), walk(0.0, 3.0, 4.0, -9.0)
    score(own, (longer, ended(0, solved_at=4)))  # the third record is after the success
    assert score(own, (FAILURE, ended(1)))[0] == pytest.approx(paid(FAILURE, longer[:2]))
    second, third = walk(0.0, 2.0), walk(0.0, 1.0, 5.0)
    score(own, (second, ended(2, solved_at=2)), (third, ended(3, solved_at=3)))
    assert score(own, (FAILURE, ended(4)))[0] == pytest.approx(paid(FAILURE, second, third))
    assert own.metrics()["train/own_successes/task/0"] == 2


def test_the_metric_is_the_mean_of_the_nearest_that_failures_came():
    own = memory()
    score(own, SUCCESS)
    near = walk(0.0, 2.0, 0.0)
    score(own, (FAILURE, ended(1)), (near, ended(2)), (near, ended(3, solved_at=2)), (near, ended(4, task=1)))
    points = Points.of([np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])])
    nearest = [points.potential(np.array([[place, 1.0]]))[0] for place in (1.5, 2.0)]
    assert own.metrics()["train/failure_potential_mean"] == pytest.approx(np.mean(nearest))


def test_what_was_saved_goes_on_with_the_same_bits():
    own, other = memory(), memory()
    for number in range(3):  # the third takes the place of the first
        score(own, (walk(0.0, float(number), 3.0), ended(number, solved_at=3)))
    score(other, (walk(0.0, 7.0), ended(0, solved_at=2)))
    score(other, (FAILURE, ended(1)))
    saved = {name: value.clone() for name, value in own.state_dict().items()}
    other.load_state_dict(saved)
    later = (FAILURE, ended(5)), (SUCCESS[0], ended(6, solved_at=4)), (FAILURE, ended(7, task=1))
    for played in later, later:
        assert all(np.array_equal(*both) for both in zip(score(own, *played), score(other, *played), strict=True))
    assert all(torch.equal(own.state_dict()[name], other.state_dict()[name]) for name in saved)
    assert own.state_dict()["features"].shape == memory().state_dict()["features"].shape


def test_a_memory_of_another_size_is_refused():
    with pytest.raises(CheckpointError, match=r"remembers successes as \[2, 3, 4, 2\] \(features\), and this run as"):
        memory().load_state_dict(memory(per_task=3).state_dict())
