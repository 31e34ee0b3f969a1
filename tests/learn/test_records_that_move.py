"""Records and weights that go from one process to another, over gloo."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks

from embodied.errors import RankError, RanksDifferError
from embodied.learn.ranks.buckets import ALIGNED, BUCKET, buckets, pack
from embodied.learn.ranks.deal import Dealer
from embodied.learn.ranks.sides import followers
from embodied.learn.ranks.weights import Receiver, Sender
from embodied.parallel.group import Group
from embodied.testing import FakePolicy
from embodied.types import ArraySpec, Episode, EpisodeResult, Start

FIELDS = {
    "state": ArraySpec((2,), "float32"), "task_id": ArraySpec((), "int32"), "num_steps": ArraySpec((), "int32"),
    "rewards": ArraySpec((1,), "float32"), "version": ArraySpec((), "int64"), "value": ArraySpec((1,), "float32"),
    "tokens": ArraySpec((3,), "int32"),
}  # fmt: skip
ROLES = {"train": (1, 2), "rollout": (0, 2)}
"""Of three processes the last does both."""


def named(policy) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}


def result(number: int, rank: int, rows: tuple[int, ...], learner: int, final: int = -1) -> EpisodeResult:
    return EpisodeResult(
        Episode(number, Start(0, 0, 0), number), rows, 0.0, False, 1, True, False, final, rank, learner=learner
    )


RESULTS = [
    result(0, 2, (5, 0), 0, final=3), result(1, 0, (1,), 1), result(2, 0, (7, 2), 0, final=6), result(3, 2, (4,), 1),
]  # fmt: skip


def slab_of(rank: int) -> dict[str, np.ndarray]:
    """Each field of a row says process and row."""
    numbers = 100 * rank + np.arange(8)
    return {
        name: np.broadcast_to(numbers.reshape(-1, *[1] * len(spec.shape)), (8, *spec.shape)).astype(spec.dtype)
        for name, spec in FIELDS.items()
    }


def dealt(world: Group):
    world._with = ROLES
    env = SimpleNamespace(obs={"state": FIELDS["state"]})
    policy = SimpleNamespace(decision={"tokens": FIELDS["tokens"], "value": FIELDS["value"]})
    dealer = Dealer(world, env, policy, FIELDS)
    slab = slab_of(world.rank) if world.of("rollout").here else {}
    arrays, moved = dealer.deal(slab, RESULTS)
    if not world.of("train").here:
        dealer.serve(slab)
        return moved, {}, None
    mine = [one for one in moved if one.rank == world.of("train").rank]
    before = {name: array.copy() for name, array in arrays.items()}
    arrays.fetch(np.array([mine[-1].rows[0]]))
    return moved, before, dict(arrays)


def test_records_go_to_who_trains_on_them_and_pixels_only_if_they_are_fetched():
    (moved, _, _), first, second = on_ranks(dealt, size=3)
    assert moved == first[0] == second[0]
    assert [one.rank for one in moved] == [0, 1, 0, 1]
    for learner, (_, before, after) in ((0, first), (1, second)):
        origin = {}
        for old, new in zip(RESULTS, moved, strict=True):
            if new.rank == learner:
                pairs = zip((*old.rows, old.final_row), (*new.rows, new.final_row), strict=True)
                origin |= {there: 100 * old.rank + row for row, there in pairs if there >= 0}
        assert sorted(origin) == list(range(len(origin))), "rows are used once and without gaps"
        numbers = np.array([origin[row] for row in range(len(origin))])
        for name in ("num_steps", "rewards", "version", "value"):
            assert (before[name].reshape(len(numbers), -1)[:, 0] == numbers).all()
        fetched = [one for one in moved if one.rank == learner][-1].rows[0]
        for name in ("state", "tokens", "task_id"):
            assert not before[name].any()
            assert (after[name][fetched] == numbers[fetched]).all()
            assert not np.delete(after[name], fetched, axis=0).any()


def sent(world: Group, damage: bool, checks: bool):
    """Process 1 trains; 0 and 2 only collect. What comes back are the weights, or the error."""
    world._with = {"train": (1,), "rollout": (0, 2)}
    group, policy = followers(world), FakePolicy(seed=0)
    own = named(policy)
    if world.of("train").here:
        sender = Sender(group, Group(), {name: p.dtype for name, p in own.items()}, checks)
        with torch.no_grad():
            sender.send(own, 0)  # they are there
            for tensor in own.values():
                tensor += 1
            for _ in range(2):
                sender.send(own, 7)
        return own, sender.take_metrics()["rollout/weight_sync_bytes"], group.members
    receiver = Receiver(group, Group(), policy, checks)
    assert receiver.receive() == 0
    if damage and world.rank == 2:
        begin = group.begin_broadcast
        group.begin_broadcast = lambda tensor: damaged(tensor, begin(tensor))
    found = None
    try:
        assert receiver.receive() == 7
    except RanksDifferError as error:
        found = str(error)
    assert receiver.receive() == 7
    return found or named(policy)


def placed(world: Group):
    """Weights of a convolution whose channels lie together, one of which has a second name."""
    world._with = {"train": (1,), "rollout": (0,)}
    group, layers = followers(world), torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(3, 2))
    layers.to(memory_format=torch.channels_last)
    own = named(layers)
    if world.of("train").here:
        Sender(group, Group(), {name: p.dtype for name, p in own.items()}, True).send(own, 7)
        return own
    alias, lies = layers[1].weight.data, [(p.stride(), p.data_ptr()) for p in layers.parameters()]
    assert not layers[0].weight.is_contiguous()
    Receiver(group, Group(), layers, True).receive()
    assert [(p.stride(), p.data_ptr()) for p in layers.parameters()] == lies
    return {**named(layers), "1.weight": alias}


def test_weights_arrive_where_the_tensors_lie():
    found, own = on_ranks(placed)
    assert all(torch.equal(found[name], tensor) for name, tensor in own.items())


def damaged(tensor: torch.Tensor, wait):
    """Waits for a tensor; another arrives if it is one of weights."""

    def waits() -> None:
        wait()
        tensor.add_(tensor.is_floating_point())

    return waits


def test_weights_arrive_once_and_are_compared():
    first, (own, size, members), third = on_ranks(sent, False, True, size=3)
    assert members == (1, 0, 2)
    assert size == sum(tensor.nbytes for tensor in own.values())
    for got in (first, third):
        assert all(torch.equal(got[name], tensor) for name, tensor in own.items())


def test_other_weights_than_were_sent_are_refused_by_name():
    _, _, error = on_ranks(sent, True, True, size=3)
    assert "rank 2 got other weights of version 7 than rank 1 sent: 1 of " in error
    _, _, third = on_ranks(sent, True, False, size=3)
    assert isinstance(third, dict), "validate_weight=false compares nothing"


def waits(world: Group, seconds: float):
    """Process 1 sends nothing."""
    with world.connected(on_gpu=False, timeout_s=60):
        group = world.part([[1, 0]])
        import torch.distributed as dist

        group._processes = dist.new_group([0, 1], timeout=timedelta(seconds=seconds))
        if world.rank == 0:
            with pytest.raises(RankError, match="rank 0 waited for the other ranks in vain"):
                Receiver(group, Group(), FakePolicy(), checks=True).receive()
        world.gather(None)


def test_weights_that_do_not_come_are_no_hang():
    on_ranks(waits, 2.0, connects=False)


def named_in(tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    return [bucket.names for bucket in buckets(tensors, {name: tensor.dtype for name, tensor in tensors.items()})]


def test_small_tensors_travel_together():
    tensors = {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int64), "c": torch.zeros(4)}
    large = torch.zeros(BUCKET // 4)
    assert named_in(tensors) == [["a", "c"], ["b"]]
    assert named_in({**tensors, "d": large}) == [["a", "c"], ["b"], ["d"]]


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))))
def test_tensors_lie_aligned_in_their_buckets(sizes):
    tensors = {str(place): torch.full((size,), place, dtype=dtype) for place, (size, dtype) in enumerate(sizes)}
    for bucket in buckets(tensors, {name: tensor.dtype for name, tensor in tensors.items()}):
        own = [tensors[name] for name in bucket.names]
        assert all(begin * bucket.dtype.itemsize % ALIGNED == 0 for begin in bucket.begins)
        flat = pack(bucket, own, torch.zeros(bucket.elements + 3, dtype=bucket.dtype))
        assert len(flat) == bucket.elements
        assert all(map(torch.equal, bucket.parts(flat, own), own))
