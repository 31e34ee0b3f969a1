"""Switches off the recomputation of activations, so that a pass is counted both ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from embodied.protocols import Policy

SWITCH = "gradient_checkpointing"


def switched_on(policy: Policy) -> list[nn.Module]:
    """Lists the modules of a policy that recompute activations in the backward pass."""
    modules = policy.modules() if isinstance(policy, nn.Module) else ()
    return [module for module in modules if getattr(module, SWITCH, False) is True]


@contextmanager
def switched_off(modules: list[nn.Module]) -> Iterator[None]:
    """Context in which these modules do not recompute activations."""
    for module in modules:
        setattr(module, SWITCH, False)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, SWITCH, True)
