"""Weights that go ahead of the rollout in which they act, over gloo."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
from ranks import on_ranks

from embodied.errors import RankError, RanksDifferError
from embodied.learn.ranks import buckets
from embodied.learn.ranks.beside import Beside
from embodied.learn.ranks.sides import followers
from embodied.learn.ranks.weights import Receiver, Sender
from embodied.parallel.group import Group
from embodied.testing import FakePolicy


def named(policy) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}


def values(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def ends(world: Group, seconds: float | None = None):
    """Both groups between the processes, and the policy's trained tensors. Process 1 trains.

    Args:
        seconds: patience of the second group.
    """
    world._with = {"train": (1,), "rollout": (0, 2) if world.size == 3 else (0,)}
    weights, ahead, policy = followers(world), followers(world), FakePolicy(seed=0)
    if seconds is not None:
        import torch.distributed as dist

        ahead._processes = dist.new_group([*range(world.size)], timeout=timedelta(seconds=seconds))
    if world.of("train").here:
        return Sender(weights, ahead, {name: p.dtype for name, p in named(policy).items()}, True), named(policy)
    return Receiver(weights, ahead, policy, True), named(policy)


def two_ahead(world: Group):
    """Versions 3 and 4 go ahead; each process gives back what acted before, in between, and at the end."""
    buckets.BUCKET = 1024  # some tensors have one for themselves, and are not copied unless they are kept
    link, own = ends(world)
    seen = [values(own)]
    if isinstance(link, Sender):
        for version in (3, 4):
            with torch.no_grad():
                for tensor in own.values():
                    tensor += version
            assert not link.is_there(version)
            link.send_ahead(own, version)
            assert link.is_there(version)
            seen.append(values(own))
        with torch.no_grad():
            for tensor in own.values():
                tensor.zero_()  # as an update does, which begins meanwhile
        for version in (0, 3, 3, 4):
            link.send(own, version)
        link.send(own, 4, average=True)
        return seen, link.take_metrics()["rollout/weight_sync_bytes"]
    for version in (3, 4):
        link.receive_ahead(version)
    assert [link.receive(), link.receive(), link.receive()] == [0, 3, 3]
    seen.append(values(own))
    assert link.receive() == 4
    seen.append(values(own))
    assert link.receive() == 4
    return seen, values(own)


def test_weights_that_went_ahead_act_when_they_are_due():
    """They are those of the moment at which they were sent, and travel once; an average does not go ahead."""
    (first, last), (sent, size), (third, _) = on_ranks(two_ahead, size=3)
    for got in (first, third):
        for expected, found in zip(sent, got, strict=True):
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert size == 3 * sum(tensor.nbytes for tensor in sent[0].values())
    assert not any(tensor.any() for tensor in last.values()), "the average was sent"


def one_is_damaged(world: Group):
    link, own = ends(world)
    if isinstance(link, Sender):
        link.send_ahead(own, 1)
        link.send(own, 1)
        return
    begin = link._beside.begin_broadcast

    def damaged(tensor):
        wait = begin(tensor)
        return lambda: (wait(), tensor.add_(tensor.is_floating_point()))

    link._beside.begin_broadcast = damaged
    link.receive_ahead(1)
    before = values(own)
    with pytest.raises(RanksDifferError, match="rank 0 got other weights of version 1 than rank 1 sent"):
        link.receive()
    assert all(torch.equal(own[name], tensor) for name, tensor in before.items()), "they never acted"


def test_other_weights_than_went_ahead_never_act():
    on_ranks(one_is_damaged)


def nothing_comes(world: Group, seconds: float):
    """Process 1 says that weights have gone ahead, and sends none."""
    with world.connected(on_gpu=False, timeout_s=60):
        link, own = ends(world, seconds)
        if isinstance(link, Sender):
            link._ahead[1] = Beside(lambda: 0.0)
            link.send(own, 1)
        else:
            link.receive_ahead(1)
            with pytest.raises(RankError, match="rank 0 waited for the other ranks in vain"):
                link.receive()
        world.gather(None)


def test_weights_that_went_ahead_and_do_not_arrive_are_no_hang():
    on_ranks(nothing_comes, 2.0, connects=False)


def test_an_error_is_that_of_the_work_and_of_all_after_it():
    entered = threading.Event()

    def fails() -> None:
        entered.wait()
        raise RankError("gone", "look")

    first = Beside(fails)
    second = Beside(lambda: 1, after=first)
    entered.set()
    for work in (first, second):
        assert work.daemon, "else a process waits for it at its end"
        with pytest.raises(RankError, match="gone"):
            work.result()
    assert Beside(lambda: 2, after=Beside(lambda: 1)).result() == 2
