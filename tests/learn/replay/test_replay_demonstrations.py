"""Demonstrations beside a ring: their entries, and batches with a fixed share of them."""

from __future__ import annotations

import numpy as np
import pytest

from embodied.data.demonstrations import Demonstration
from embodied.data.samples import samples_of
from embodied.errors import SpecMismatchError
from embodied.learn.replay.demonstrations import Demonstrated, Joined
from embodied.learn.replay.ring import Replay
from embodied.learn.replay.sampling import shown_of, symmetric
from embodied.types import ArraySpec, ContinuousAction

K = 2
SIZE = 20  # a picture of it is a large field
ACTION = ContinuousAction((-1.0,), (1.0,))
FIELDS = {
    "images": ArraySpec((1, SIZE, SIZE, 3), "uint8"), "chunk": ArraySpec((K,), "float32"),
    "text": ArraySpec((), "int64"),
    "rewards": ArraySpec((K,), "float32"), "num_steps": ArraySpec((), "int32"), "terminated": ArraySpec((), "bool"),
    "demonstrated": ArraySpec((), "bool"),
}  # fmt: skip


def episode(number: int, length: int) -> Demonstration:
    actions = (10 * number + np.arange(length, dtype=np.float32))[:, None]
    return Demonstration("a" * number, actions, {}, lambda t: np.full((1, SIZE, SIZE, 3), 10 * number + t, np.uint8))


def shown(fields=FIELDS, reward=1.0, whole_bytes=1 << 20) -> Demonstrated:
    episodes = [episode(1, 5), episode(2, 1)]
    samples = samples_of(episodes, K, ACTION)
    return Demonstrated(
        samples, episodes, fields, K, {"chunk": samples.actions(np.arange(6))[:, :, 0]},
        lambda told: {"text": np.array([len(each) for each in told])}, reward, whole_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20])
def test_entries_of_demonstrations(whole_bytes):
    memory = shown(whole_bytes=whole_bytes)
    got = memory.batch(np.arange(len(memory)))
    assert got["chunk"].tolist() == [[10, 11], [12, 13], [14, 14], [11, 12], [13, 14], [20, 20]]
    assert got["images"][:, 0, 0, 0, 0].tolist() == [10, 12, 14, 11, 13, 20]
    assert got["num_steps"].tolist() == [2, 2, 1, 2, 2, 1]
    assert got["rewards"].tolist() == [[0, 0], [0, 0], [1, 0], [0, 0], [0, 1], [1, 0]]
    assert got["terminated"].tolist() == [False, False, True, False, True, True]
    assert got["text"].tolist() == [1, 1, 1, 1, 1, 2]


def test_the_success_of_a_demonstration_is_worth_what_it_is_worth_in_the_run():
    assert shown(reward=5.0).batch(np.arange(6))["rewards"].max(1).tolist() == [0, 0, 5, 0, 5, 5]


def test_demonstrations_of_no_episode_give_no_entry():
    none = Demonstrated(samples_of([], K, ACTION), [], FIELDS, K, {}, lambda told: {})
    ring = none.batch(np.zeros(0, np.int64), ["images", "chunk"])
    assert len(none) == 0
    assert ring["images"].shape == (0, 1, SIZE, SIZE, 3)


def test_demonstrations_with_other_fields_are_refused():
    with pytest.raises(SpecMismatchError, match="have no state"):
        shown({**FIELDS, "state": ArraySpec((3,), "float32")})
    with pytest.raises(SpecMismatchError, match="field images"):
        shown({**FIELDS, "images": ArraySpec((2, 4, 4, 3), "uint8")})


def test_both_as_one_memory(tmp_path):
    ring, part = Replay.open(tmp_path, FIELDS, 8, None, "env"), shown()
    whole = Joined(part, ring)
    own = {name: np.zeros((4, *spec.shape), spec.dtype) for name, spec in FIELDS.items()}
    own |= {"num_steps": np.array([2, 2, 0, 2], np.int32), "demonstrated": np.array([False, True, False, False])}
    own["terminated"][3] = True
    ring.append(own)
    assert whole.own.tolist() == [6, 7, 9]
    assert whole.transitions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert whole.demonstrated.tolist() == [0, 1, 2, 3, 4, 5, 7]  # one of the run's own has the mark
    got = whole.batch(np.array([9, 4, 7]), ["demonstrated", "images"])
    assert got["demonstrated"].tolist() == [False, True, True]
    assert got["images"][:, 0, 0, 0, 0].tolist() == [0, 13, 0]


def test_batches_have_a_fixed_share_of_demonstrations():
    own, demonstrated = np.arange(100, 140), np.arange(9)
    drawn = np.stack([symmetric(own, demonstrated, 4, 3, step, 16) for step in range(50)])
    assert ((drawn < 100).sum(1) == 4).all()
    assert len(np.unique(drawn)) == 49  # all of both are drawn
    assert (drawn[7] == symmetric(own, demonstrated, 4, 3, 7, 16)).all()
    assert (drawn[7] != symmetric(own, demonstrated, 4, 3, 7, 16, rank=1)).any()
    assert (symmetric(own, demonstrated[:0], shown_of(16, 0.25, 40, 0), 3, 0, 16) >= 100).all()
    assert (symmetric(own[:0], demonstrated, shown_of(16, 0.25, 0, 9), 3, 0, 16) < 100).all()
    with pytest.raises(ValueError, match="cannot be drawn"):
        symmetric(own[:0], demonstrated[:0], 0, 3, 0, 4)
