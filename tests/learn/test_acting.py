"""What acts beside what learns: which weights it has, and what both share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from embodied.errors import ConfigError
from embodied.learn.acting import Acting, Apart, Exchanged, copy_of, make_acting
from embodied.protocols import Policy
from embodied.run.training.iteration import apart_from_other_threads
from embodied.testing import FakePolicy

Make = Callable[[FakePolicy], Acting]
MADE = [pytest.param(lambda policy, kind=kind: kind(policy, 1), id=kind.__name__) for kind in (Exchanged, Apart)]


def adapted() -> FakePolicy:
    """A policy of which the head alone is trained."""
    policy = FakePolicy()
    for name, parameter in policy.named_parameters():
        parameter.requires_grad = name.startswith("head")
    return policy


def learn(policy: FakePolicy) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)


def weights(policy: Policy) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(values, other[name]) for name, values in one.items())


def acts_with(acting: Acting) -> dict[str, Tensor]:
    with acting.weights():
        return weights(acting.policy)


@pytest.mark.parametrize("make", MADE)
def test_it_acts_with_the_weights_that_it_took_and_is_evaluated_with_the_present_ones(make: Make):
    policy = adapted()
    acting, first = make(policy), weights(policy)
    acting.begin(0, 3)
    learn(policy)
    present = weights(policy)
    assert (acting.version, same(acts_with(acting), first)) == (3, True)
    with acting.evaluated():
        assert same(weights(acting.policy), present)
    assert same(weights(policy), present)
    assert same(acts_with(acting), first)
    acting.begin(1, 4)
    assert (acting.version, same(acts_with(acting), present)) == (4, True)
    learn(policy)
    assert same(acts_with(acting), present)


def test_the_present_weights_are_taken_every_so_many_iterations():
    acting = make_acting(FakePolicy(), 0, 3)
    versions = []
    for iteration in range(7):
        acting.begin(iteration, 10 * iteration)
        versions.append(acting.version)
    assert versions == [0, 0, 0, 30, 30, 30, 60]
    assert type(make_acting(FakePolicy(), 0, 1)) is Acting


@pytest.mark.parametrize("make", MADE)
def test_a_state_gives_the_weights_back(make: Make):
    policy = adapted()
    acting = make(policy)
    acting.begin(0, 3)
    first = acts_with(acting)
    state = {name: v.clone() if isinstance(v, Tensor) else v for name, v in acting.state_dict().items()}
    tensors = {name for name, value in state.items() if isinstance(value, Tensor)}
    assert tensors == {"acting.head.weight", "acting.head.bias"}
    learn(policy)
    again = make(policy)
    again.load_state_dict(state, 7)
    assert (again.version, same(acts_with(again), first)) == (3, True)
    learn(policy)
    again.load_state_dict({"weight_version": 9}, 9)  # of a run whose present weights acted
    assert (again.version, same(acts_with(again), weights(policy))) == (9, True)


def test_a_copy_has_the_frozen_weights_of_the_policy_and_trained_ones_of_its_own():
    policy = adapted()
    own = dict(copy_of(policy).named_parameters())
    for name, parameter in policy.named_parameters():
        assert (own[name].data_ptr() == parameter.data_ptr()) == (not parameter.requires_grad)
    assert same(weights(policy), own)


def test_extra_state_is_the_policys_when_a_run_goes_on():
    class Settles(FakePolicy):
        settled = "open"

        def extra_state(self) -> dict[str, str]:
            return {"settled": self.settled}

        def load_extra_state(self, found: Mapping[str, str]) -> None:
            self.settled = found["settled"]

    policy = Settles()
    acting = Apart(policy, 1)
    policy.settled = "closed"  # by the checkpoint
    acting.load_state_dict(acting.state_dict(), 0)
    assert acting.policy.settled == "closed"  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["closure", "default", "hook"])
def test_a_policy_whose_functions_refer_to_it_is_refused(way):
    policy = FakePolicy()
    if way == "closure":
        policy.answer = lambda x: policy.head(x)  # type: ignore[assignment]
    elif way == "default":
        policy.answer = [lambda x, head=policy.head: head(x)]  # type: ignore[assignment]
    else:
        policy.head.register_forward_hook(lambda module, given, made: made + policy.head.bias)
    with pytest.raises(ConfigError, match=r"FakePolicy has a function that refers to the policy"):
        copy_of(policy)


def test_another_thread_changes_no_bit_of_a_gradient_under_autocast():
    """A weight that is used twice, and between both a pass of another thread."""
    made = torch.Generator().manual_seed(0)
    weight, x = nn.Parameter(torch.randn(64, 64, generator=made)), torch.randn(8, 64, generator=made)

    def gradient(between: Callable[[], object]) -> Tensor:
        weight.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            first = x @ weight
            between()
            (first.float().pow(2).sum() + (first @ weight).float().pow(2).sum()).backward()
        assert weight.grad is not None
        return weight.grad.clone()

    def act(apart: bool) -> None:
        def work() -> None:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                x @ weight.detach().clone()

        def within() -> None:
            if not apart:
                work()
                return
            with apart_from_other_threads():
                work()

        thread = threading.Thread(target=within)
        thread.start()
        thread.join()

    alone = gradient(lambda: None)
    assert torch.equal(alone, gradient(lambda: act(apart=True)))
    assert not torch.equal(alone, gradient(lambda: act(apart=False))), "then torch no longer shares the table"
    assert torch.is_autocast_cache_enabled()
