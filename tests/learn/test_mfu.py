"""The rate that training is compared with."""

from __future__ import annotations

import torch
from rig import CPU

from embodied.learn.step.meters.mfu import measure, number_format, peak_flops
from embodied.testing import FakePolicy


def test_the_peak_is_what_was_set_or_what_a_product_reaches():
    assert peak_flops(None, FakePolicy(), CPU) is None
    assert peak_flops(0.5, FakePolicy(), CPU) == 5e11
    assert measure(CPU, torch.float32, side=32) > 0


def test_the_number_format_is_that_of_most_weights():
    policy = FakePolicy()
    assert number_format(policy) == torch.float32
    policy.head.to(torch.bfloat16)
    assert number_format(policy) == torch.bfloat16
