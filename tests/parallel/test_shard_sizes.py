"""Sizes of shared weights, counted by hand and as torch cuts them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from embodied.parallel.shard_sizes import ShardSizes, is_shared, part_of, parts_of, shard_sizes
from embodied.schema import FsdpConfig


def test_weights_are_added_up_by_unit():
    sizes = shard_sizes([("a", 3), (None, 5), ("b", 4), ("a", 10), (None, 2)])
    assert sizes == ShardSizes(root=7, units=(13, 4))
    assert (sizes.whole, sizes.largest, sizes.gathered(), sizes.gathered(reshard=False)) == (24, 13, 20, 24)


def test_small_units_belong_to_the_root():
    sizes = shard_sizes([("a", 3), ("b", 4), (None, 1)], least=4)
    assert sizes == ShardSizes(root=4, units=(4,))
    assert shard_sizes([("a", 3)], least=4).gathered() == 3


@pytest.mark.parametrize(("weights", "largest"), [([], 0), ([(None, 9), ("a", 2)], 9), ([(None, 9)], 9)])
def test_the_root_may_be_the_largest_or_all(weights, largest):
    assert shard_sizes(weights).largest == largest


@pytest.mark.parametrize("shape", [(8, 3), (7, 3, 2), (1, 5), (0, 4), (3,), ()])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_a_part_is_what_torch_cuts(shape, parts):
    """FSDP2 cuts rows as ``torch.chunk`` does, and fills up to the first, which is the largest."""
    weight = torch.zeros(shape or (1,))
    assert part_of(shape, parts) == torch.chunk(weight, parts)[0].numel()
    assert part_of(shape, parts) * parts >= math.prod(shape)


@pytest.mark.parametrize(("size", "parts"), [(-1, 6), (2, 2)])
def test_parts_of_a_weight(size, parts):
    assert parts_of(FsdpConfig(fsdp_size=size), 6) == parts


def test_frozen_weights_are_shared_if_that_is_asked_for():
    frozen, trained = SimpleNamespace(requires_grad=False), nn.Parameter(torch.zeros(1))
    assert [is_shared(weight, FsdpConfig()) for weight in (frozen, trained)] == [False, True]
    assert is_shared(frozen, FsdpConfig(shard_frozen=True))
