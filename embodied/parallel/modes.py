"""Passes that must not depend on chance: dropout is switched off while they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def without_dropout(policy: object) -> Iterator[None]:
    """Context in which the modules of a policy compute as in evaluation, without dropout. What is no module stays as it
    is."""
    with evaluating(modules_of(policy)):
        yield


def modules_of(policy: object) -> Sequence[nn.Module]:
    """Lists the modules of a policy, for many short blocks of :func:`evaluating`: it need not search them each time."""
    return [*policy.modules()] if isinstance(policy, nn.Module) else []


@contextmanager
def evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Context in which the modules compute as in evaluation."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
