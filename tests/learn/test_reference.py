"""Second values of the trained weights: what they are after a step towards the present ones."""

from __future__ import annotations

import pytest
import torch
from learner import learner, update

from embodied.learn.step.engine import StepEngine
from embodied.learn.step.reference import Average, OtherWeights
from embodied.schema import ActorConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy


def weights(policy: FakePolicy) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}


@pytest.mark.parametrize("share", [0.001, 0.25, 0.5, 0.75, 0.999, 1.0])
def test_kept_weights_move_by_their_share_of_the_way(share):
    policy = FakePolicy()
    before, kept = weights(policy), OtherWeights(policy)
    update(made := learner(policy), 0)
    update(made, 1)
    kept.follow(share)
    present = weights(policy)
    with kept.acting():
        for name, values in weights(policy).items():
            torch.testing.assert_close(values, before[name] + share * (present[name] - before[name]))
            assert share < 1 or torch.equal(values, present[name])
    assert all(torch.equal(values, present[name]) for name, values in weights(policy).items())


@pytest.mark.parametrize("decay", [0.001, 0.1, 0.4, 0.6, 0.99])
def test_the_average_has_its_decay_of_what_it_was(decay):
    """a ← d·a + (1 − d)·w after each optimizer step, also for a decay below one half."""
    policy = FakePolicy()
    config = ActorConfig(model=ModelConfig(_target_="x"), optim=OptimConfig(lr=0.1, ema_decay=decay, clip_grad=1e9))
    engine, expected = StepEngine(policy, config, None, 1, 1), weights(policy)
    assert isinstance(engine._average, Average)
    for step in range(3):

        def backward(part: list[int]) -> float:
            loss = sum(((part[0] + 1) * p.float().square()).sum() for p in policy.parameters() if p.requires_grad)
            loss.backward()
            return loss.item()

        engine.take([[step]], lambda records: True, backward)
        for name, values in weights(policy).items():
            expected[name] = decay * expected[name] + (1 - decay) * values
    with engine.evaluated():
        for name, values in weights(policy).items():
            torch.testing.assert_close(values, expected[name], rtol=1e-5, atol=1e-6)
