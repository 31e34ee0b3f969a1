"""The parts of the self-test whose numbers this device has: the same ones that a GPU is asked."""

from __future__ import annotations

import importlib

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel

from embodied.selftest.parts import PARTS
from embodied.selftest.place import Place


@pytest.mark.parametrize("name", ["numbers", "determinism", "attention", "graphs", "checkpoints"])
def test_a_part_holds(gpu, name, tmp_path):
    module, _, function = PARTS[name].place.partition(":")
    with sdpa_kernel(SDPBackend.MATH):
        measured = [*getattr(importlib.import_module(module), function)(Place("cuda", tmp_path))]
    assert [one for one in measured if not one.holds] == []
    assert sum(bool(one.allowed) for one in measured) > 1
