"""Which parameters of a policy are trained, beyond what the policy itself says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from embodied.errors import ConfigError, did_you_mean
from embodied.protocols import Policy


def freeze(policy: Policy, patterns: Sequence[str]) -> None:
    """Train no parameter whose name one of ``patterns`` (regular expressions, searched) matches.

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
    """Within it nothing but the value head is differentiated: no graph of the rest is kept, no gradient flows there."""
    resting = [p for name, p in policy.named_parameters() if p.requires_grad and not name.startswith("value_head")]
    for parameter in resting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in resting:
            parameter.requires_grad_(True)
