"""Freezes parameters of a policy, for good or for a while, beyond those that the policy itself freezes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.nn import Parameter

from embodied.errors import ConfigError, did_you_mean
from embodied.protocols import Policy


def freeze(policy: Policy, patterns: Sequence[str]) -> None:
    """Freezes every parameter whose name one of ``patterns`` (regular expressions, searched) matches.

    Raises:
        ConfigError: a pattern matches no parameter.
    """
    parameters = dict(policy.named_parameters())
    for pattern in patterns:
        matched = [name for name in parameters if re.search(pattern, name)]
        if not matched:
            modules = {part for name in parameters for part in name.split(".")}
            raise ConfigError(
                f"actor.model.freeze_pattern '{pattern}' matches none of the policy's {len(parameters)} parameters."
                f"{did_you_mean(pattern, modules)}",
                f"correct or remove it; names look like {', '.join(sorted(parameters)[:3])}",
            )
        for name in matched:
            parameters[name].requires_grad_(False)


@contextmanager
def value_head_only(policy: Policy) -> Iterator[None]:
    """Differentiates nothing but the value head within it: no graph of the rest is kept, no gradient flows there."""
    resting = [parameter for parameter in _beside_value_head(policy) if parameter.requires_grad]
    for parameter in resting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in resting:
            parameter.requires_grad_(True)


def drop_gradients_beside_value_head(policy: Policy) -> None:
    """Drops all other gradients. Needed where weights are gathered for a pass (fsdp2): there all of them get one."""
    for parameter in _beside_value_head(policy):
        parameter.grad = None


def _beside_value_head(policy: Policy) -> list[Parameter]:
    return [parameter for name, parameter in policy.named_parameters() if not name.startswith("value_head")]
