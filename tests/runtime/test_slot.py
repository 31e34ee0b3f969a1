"""What a slot keeps of the episode in it, control step by control step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embodied.errors import SpecMismatchError
from embodied.runtime.channel import Command, Kind
from embodied.runtime.worker.reward import ShapedReward
from embodied.runtime.worker.slot import Slot
from embodied.testing import FakeEnv
from embodied.types import ChunkResult, StepResult

CHUNK = 2


def slot_of(mode: str = "sparse", features: Callable[[], np.ndarray] | None = None) -> Slot:
    rewards = ShapedReward(mode), ShapedReward("dense")
    return Slot(
        FakeEnv().spec, rewards, lambda: np.zeros((16, 16, 3), np.uint8), CHUNK, features=features, num_features=1
    )


def begin(slot: Slot, max_steps: int = 10, ignore_terminations: bool = True, **more: bool) -> None:
    start = {"task_id": 1, "init_state_id": 2, "seed": 3}
    command = Command(Kind.RESET, 0, max_steps=max_steps, ignore_terminations=ignore_terminations, **start, **more)
    slot.begin(command, None)


def played(slot: Slot, steps: list[StepResult]) -> list[ChunkResult]:
    """The results of whole chunks."""
    found = []
    for first in range(0, len(steps), CHUNK):
        slot.begin_chunk(CHUNK, 0)
        for step in steps[first : first + CHUNK]:
            if not slot.count(step):
                break
        found.append(slot.result)
    return found


def step(success: bool, reward: float | None = None) -> StepResult:
    return StepResult(float(success) if reward is None else reward, success, success)


@pytest.mark.parametrize(
    ("successes", "expected"),
    [
        ([0, 0, 0, 0, 0, 0], [0, 0, 0]),
        ([0, 0, 0, 1, 1, 1], [0, 4, 4]),
        ([0, 1, 0, 0, 1, 1], [2, 2, 2]),  # it is lost and comes back
        ([1, 0, 0, 1, 0, 0], [1, 1, 1]),
    ],
)
def test_an_episode_is_solved_at_its_first_success_however_often_it_succeeds(successes, expected):
    slot = slot_of()
    for _ in range(2):  # the second episode must not know of the first
        begin(slot)
        found = played(slot, [step(bool(one)) for one in successes])
        assert [one.solved_at for one in found] == expected
        assert [one.success for one in found] == [any(successes[k : k + 2]) for k in (0, 2, 4)], "of the chunk alone"


def test_progress_is_the_largest_reward_of_the_env_so_far():
    slot = slot_of()
    for _ in range(2):
        begin(slot)
        found = played(slot, [step(False, reward) for reward in (0.25, 0.5, 0.125, 0.0, 0.75, 0.5)])
        assert [one.progress for one in found] == [0.5, 0.5, 0.75]
        assert not np.concatenate([one.rewards for one in found]).any(), "it is no reward"


@pytest.mark.parametrize(("most", "steps", "truncated"), [(3, 3, True), (4, 4, True), (5, 4, False)])
def test_the_step_limit_truncates_unless_the_env_terminates(most, steps, truncated):
    slot = slot_of()
    begin(slot, max_steps=most)
    last = played(slot, [step(False)] * 4)[-1]
    assert (2 + last.num_steps, last.truncated, last.terminated) == (steps, truncated, False)
    begin(slot, max_steps=4, ignore_terminations=False)
    last = played(slot, [step(False)] * 3 + [step(True)])[-1]
    assert (last.truncated, last.terminated) == (False, True), "an end at the limit is the env's"


@pytest.mark.parametrize("ignored", [False, True])
def test_an_env_that_truncates_ends_the_episode_and_terminates_nothing(ignored):
    slot, cut = slot_of(), StepResult(0.0, False, False, truncated=True)
    begin(slot, ignore_terminations=ignored)
    found = played(slot, [step(False), step(False), cut, step(False)])
    assert [(one.num_steps, one.truncated, one.terminated) for one in found] == [(2, False, False), (1, True, False)]
    begin(slot, ignore_terminations=ignored)
    (both,) = played(slot, [cut._replace(terminated=True)])
    assert (both.truncated, both.terminated) == (ignored, not ignored), "a termination that counts goes first"
    begin(slot)
    assert not played(slot, [step(False)])[0].truncated, "the next episode knows nothing of it"


def test_an_evaluation_has_its_own_reward():
    slot = slot_of()
    begin(slot)
    assert played(slot, [step(False, 0.5)])[0].rewards.tolist() == [0.0, 0.0]
    begin(slot, evaluation=True)
    assert played(slot, [step(False, 0.5)])[0].rewards.tolist() == [0.5, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_names_its_step_and_its_start(bad):
    slot = slot_of("dense")
    begin(slot)
    slot.begin_chunk(CHUNK, 0)
    slot.count(step(False, 0.5))
    with pytest.raises(SpecMismatchError, match=r"control step 2 is (nan|-?inf) \(task 1, seed 3\)"):
        slot.count(step(False, bad))


def test_progress_features_are_read_at_the_reset_and_after_each_chunk_also_one_that_ends_early():
    clock: list[int] = []

    def where() -> np.ndarray:
        return np.array([len(clock)], np.float32)

    def moves(steps: list[StepResult]) -> list[tuple[int, int]]:
        found = []
        for chunk in (steps[:CHUNK], steps[CHUNK:]):
            slot.begin_chunk(CHUNK, 0)
            for one in chunk:
                clock.append(0)
                if not slot.count(one):
                    break
            features = slot.result.features
            assert features is not None
            found.append((int(features[0][0]), int(features[1][0])))
        return found

    slot = slot_of("own_successes", where)
    begin(slot, ignore_terminations=False)
    assert moves([step(False), step(False), step(True), step(False)]) == [(0, 2), (2, 3)]
    begin(slot, max_steps=3)
    assert moves([step(False)] * 4) == [(3, 5), (5, 6)], "also where the step limit cuts it off"
    begin(slot, evaluation=True)
    assert [one.features for one in played(slot, [step(False)] * 2)] == [None], "an evaluation never asks"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.array([[1.0]], np.float32), r"progress_features\(\) is float32 \(1, 1\) at .* 0 \(task 1, seed 3\)"),
        (np.zeros(3, np.float32), r"is float32 \(3,\) at control step 0 .*, expected 1 finite float32 numbers"),
        (1.0, "is float at"), (None, "is NoneType at"), (["far"], "is list at"), ([[1.0], [1.0, 2.0]], "is list at"),
        (np.array([1e39]), "number 0 of progress_features is inf at"),
    ],
)  # fmt: skip
def test_progress_features_that_the_slab_cannot_hold_are_refused(given, message):
    slot = slot_of("own_successes", lambda: given)
    with pytest.raises(SpecMismatchError, match=message) as refused:
        begin(slot)
    assert "correct the env's progress_features" in refused.value.remedy


def test_progress_features_are_copied_of_an_env_that_fills_one_buffer():
    buffer = np.zeros(1, np.float32)
    slot = slot_of("own_successes", lambda: buffer)
    begin(slot)
    buffer[0] = 5.0
    (result,) = played(slot, [step(False)] * CHUNK)
    assert result.features is not None
    assert [one.tolist() for one in result.features] == [[0.0], [5.0]]
    assert all(one.dtype == np.float32 for one in result.features)
