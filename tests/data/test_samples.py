"""Chunks at the end of an episode, what is held out, the order of samples, and ranges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from embodied.data.ahead import Ahead
from embodied.data.demonstrations import Demonstration
from embodied.data.samples import Samples, hold_out, order, spread
from embodied.data.statistics import statistics_of
from embodied.errors import ConfigError, DatasetError


def episode(number: int, length: int, told: str = "push") -> Demonstration:
    actions = 100 * number + np.arange(length, dtype=np.float32)[:, None] + np.array([0, 0.5], np.float32)
    state = {"state": np.full((length, 3), number, np.float32)}
    return Demonstration(told, actions, state, lambda t: np.full((1, 4, 4, 3), 10 * number + t, np.uint8))


def test_a_chunk_beyond_the_end_repeats_the_last_action_and_is_masked():
    samples = Samples([episode(0, 2), episode(1, 5, "pull")], chunk=3)
    assert len(samples) == 7
    batch = samples.batch(np.array([0, 2, 5]))
    assert batch["actions"][..., 0].tolist() == [[0, 1, 1], [100, 101, 102], [103, 104, 104]]
    assert batch["actions"].shape == (3, 3, 2)
    assert samples.mask(np.array([0, 2, 5])).tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]
    assert samples.instructions(np.array([0, 2, 5])) == ["push", "pull", "pull"]
    assert batch["images"][:, 0, 0, 0, 0].tolist() == [0, 10, 13]
    assert batch["state"][:, 0].tolist() == [0, 1, 1]
    assert spread(samples, 3).tolist() == [0, 3, 6]
    assert spread(samples, 99).tolist() == list(range(7))


def test_there_may_be_none():
    assert len(Samples([], chunk=3)) == 0


@pytest.mark.parametrize(("size", "out"), [(0.25, 2), (0, 0), (3, 3), (100, 7), (0.99, 7)])
def test_so_many_episodes_are_held_out(size, out):
    episodes = [episode(i, 1) for i in range(8)]
    train, held = hold_out(episodes, size, seed=1)
    assert (len(train), len(held)) == (8 - out, out)
    assert sorted(e.actions[0, 0] for e in train + held) == [e.actions[0, 0] for e in episodes]
    assert hold_out(episodes, size, seed=1)[1] == held


def test_the_order_goes_through_all_before_it_repeats_and_has_no_memory():
    whole = order(5, seed=3, first=0, number=15)
    assert [sorted(part) for part in whole.reshape(3, 5).tolist()] == [[0, 1, 2, 3, 4]] * 3
    assert len({tuple(part) for part in whole.reshape(3, 5).tolist()}) == 3
    assert np.array_equal(order(5, seed=3, first=4, number=8), whole[4:12])
    assert not np.array_equal(order(5, seed=4, first=0, number=15), whole)


def test_statistics_of_actions_and_state():
    found = statistics_of([episode(0, 101), episode(0, 101)])
    assert found["action"]["q01"] == pytest.approx([1, 1.5])
    assert found["action"]["q99"] == pytest.approx([99, 99.5])
    assert (found["action"]["min"], found["action"]["max"]) == ([0, 0.5], [100, 100.5])
    assert found["proprio"] == {name: [0, 0, 0] for name in ("q01", "q99", "min", "max", "mean", "std")}
    assert (found["action"]["mean"], found["action"]["std"]) == ([50, 50.5], pytest.approx([850**0.5] * 2))


def test_samples_in_their_order_and_whole_passes():
    assert order(5, 0, 3, 6, shuffle=False).tolist() == [3, 4, 0, 1, 2, 3]
    steps = [order(5, 0, 2 * step, 2, shuffle=False, drop_last=True).tolist() for step in range(3)]
    assert steps == [[0, 1], [2, 3], [0, 1]]
    passes = [order(5, 7, first, 2, drop_last=True).tolist() for first in range(0, 80, 2)]
    assert all(len({*one, *two}) == 4 for one, two in zip(passes[::2], passes[1::2], strict=True))
    assert len({sample for one in passes for sample in one}) == 5  # another one is left out each time
    with pytest.raises(ConfigError, match="leaves out all 5 samples: an optimizer step takes 6"):
        order(5, 0, 0, 6, drop_last=True)


def test_as_many_batches_are_read_ahead_as_are_asked_for():
    begun = []

    def read(chosen: np.ndarray) -> dict[str, np.ndarray]:
        if chosen[0] == 3:
            raise DatasetError("the file is damaged", "restore it")
        return {"numbers": 2 * chosen}

    def places() -> Iterator[np.ndarray]:
        for number in range(5):
            begun.append(number)
            yield np.array([number])

    with Ahead(read, places(), depth=2) as ahead:
        assert begun == [0, 1]
        for number in range(3):
            assert ahead.take(np.array([number]))["numbers"].tolist() == [2 * number]
            assert begun == list(range(number + 3))
        with pytest.raises(DatasetError, match="damaged"):
            ahead.take(np.array([3]))
