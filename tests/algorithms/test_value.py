"""Losses of the value head and their gradients against numbers worked out by hand."""

import pytest
import torch

from embodied.algorithms.advantages.value import make_value_loss
from embodied.errors import UnknownNameError


def run(value: float, target: float, name: str = "huber", clip: float | None = None, old: float = 0.0):
    values = torch.tensor([[value]], requires_grad=True)
    loss = make_value_loss(name, clip, 10.0)(values, torch.tensor([[old]]), torch.tensor([[target]]))
    loss.sum().backward()
    return loss.item(), values.grad.item()


@pytest.mark.parametrize(
    ("value", "target", "name", "loss", "gradient"),
    [
        (3.0, 1.0, "mse", 2.0, 2.0),  # 2²/2
        (3.0, 1.0, "huber", 2.0, 2.0),  # |d| = 2 ≤ 10
        (21.0, 1.0, "huber", 150.0, 10.0),  # 10·(20 − 5)
        (-19.0, 1.0, "huber", 150.0, -10.0),
        (21.0, 1.0, "mse", 200.0, 20.0),
    ],
)
def test_losses(value, target, name, loss, gradient):
    assert run(value, target, name) == (pytest.approx(loss), pytest.approx(gradient))


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [
        (0.1, 1.0, 0.405, -0.9),  # within the clip: .9²/2
        (0.5, 1.0, 0.32, 0.0),  # clipped to .2: max(.125, .8²/2), no gradient
        (-0.5, 1.0, 1.125, -1.5),  # moved away from the target: max(1.125, .72) pulls back
        (2.5, 1.0, 1.125, 1.5),  # beyond the target: max(1.125, .32) pulls back
    ],
)
def test_the_clip_ends_the_gradient_of_values_that_moved_far_enough(value, target, loss, gradient):
    assert run(value, target, clip=0.2) == (pytest.approx(loss), pytest.approx(gradient))


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match=r"algorithm.value_loss"):
        make_value_loss("hubr", None, 10.0)
