"""Weights that go ahead of the rollout in which they act, over gloo."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from ranks import on_ranks

from embodied.errors import RankError, RanksDifferError
from embodied.learn.ranks import buckets
from embodied.learn.ranks.beside import Beside
from embodied.learn.ranks.sides import followers
from embodied.learn.ranks.weights import LATER, NEW, Receiver, Sender
from embodied.parallel.group import Group
from embodied.run.training.iteration import OneStepOff
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
        assert work.name == "weights ahead"
        with pytest.raises(RankError, match="gone"):
            work.result()
    assert Beside(lambda: 2, after=Beside(lambda: 1)).result() == 2


def test_what_has_gone_ahead_takes_no_memory():
    tensors = [torch.zeros(3), torch.ones(3)]
    sent, got = map(weakref.ref, tensors)
    first = Beside(partial(lambda _, arrived: arrived, *tensors))
    second = Beside(lambda: None, after=first)
    tensors.clear()
    assert second.wait()
    assert sent() is None
    assert got() is not None, "nobody has it yet"
    assert first.result() is got()
    assert got() is None


def test_a_stop_ends_the_wait_for_weights():
    end = threading.Event()
    work = Beside(end.wait)
    assert not work.wait(lambda: True)
    end.set()
    assert work.wait()


def stopped(world: Group, rank: int):
    """Weights are under way for ever when a signal comes in one process."""
    link, own = ends(world)
    end = threading.Event()
    link._ahead[1] = link._last = Beside(lambda: float(end.wait()) if world.rank == rank else [] if rank else 0.0)
    link._stops = lambda: world.rank == rank
    before = values(own)
    if isinstance(link, Sender):
        link.send(own, 1)
        link.send(own, 2)
    else:
        assert link.receive() == 1
        if rank == 1:
            assert link.receive() == 2, "nothing new is sent, either"
        assert all(torch.equal(own[name], tensor) for name, tensor in before.items())
    world.gather(None)
    end.set()


def test_a_stop_where_weights_come_from_ends_the_wait_everywhere():
    on_ranks(stopped, 1)


def arrives_late(world: Group):
    """The weights of another version are sent while some are under way ahead."""
    link, own = ends(world)
    did: list[object] = []
    if isinstance(link, Sender):
        say, transfer, end = link._say, link._transfer, threading.Event()
        link._ahead[1] = link._last = Beside(lambda: float(end.wait()))

        def says(kind: int, version: int) -> None:
            did.append(kind)
            say(kind, version)
            end.set()

        link._say = says
        link._transfer = lambda *arguments: did.append(link._last.is_alive()) or transfer(*arguments)
        link.send(own, 2)
        return did
    link._last = SimpleNamespace(wait=lambda *gives_up: did.append(bool(gives_up)))
    fill = link._fill
    link._fill = lambda *arguments: did.append("fill") or fill(*arguments)
    assert link.receive() == 2
    return did


def test_weights_wait_for_those_that_go_ahead():
    received, sent = on_ranks(arrives_late)
    assert sent == [LATER, NEW, False]
    assert received == [True, False, "fill"], "a signal ends the first wait alone"


def forgotten(world: Group):
    link, own = ends(world)
    if isinstance(link, Sender):
        link.send_ahead(own, 3)
        link.forget()
        link.send(own, 3)
        return {}
    link.receive_ahead(3)
    assert link.receive() == 3
    return link._ahead


def test_weights_that_became_others_are_forgotten_on_both_sides():
    assert on_ranks(forgotten) == [{}, {}]


def waited(world: Group):
    link, own = ends(world)
    if not isinstance(link, Sender):
        link._ahead[1] = Beside(list)
        link._buckets = link._own = []
        return link.receive()
    link._ahead[1] = link._last = Beside(lambda: 1e6)
    link.send(own, 1)
    return link.take_metrics()


def test_a_transfer_beside_an_update_is_no_wait():
    _, found = on_ranks(waited)
    assert found["time/weight_transfer_s"] == 1e6
    assert found["time/weight_sync_s"] < 1e6


def test_nothing_is_sent_where_all_train():
    own = named(FakePolicy(seed=0))
    sender = Sender(Group(), Group(), {name: p.dtype for name, p in own.items()}, True)
    assert sender.is_there(5), "so nothing goes ahead"
    sender.send(own, 5)
    assert not any(sender.take_metrics().values())


def fails() -> float:
    raise RankError("gone", "look")


@pytest.mark.parametrize("kind", [Sender, Receiver])
def test_a_failed_transfer_ends_the_rollout_beside(kind):
    link = kind.__new__(kind)
    link._last = None
    turns = OneStepOff.__new__(OneStepOff)
    turns._trainer, update = SimpleNamespace(acting=link), SimpleNamespace(done=lambda: False)
    turns._check(update)
    link._last = Beside(fails)
    link._last.join()
    with pytest.raises(RankError, match="gone"):
        turns._check(update)
