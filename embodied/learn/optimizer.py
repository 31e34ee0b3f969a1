"""AdamW over what is trainable, with a learning rate of its own for the value head."""

from __future__ import annotations

import torch

from embodied.errors import ConfigError
from embodied.protocols import Policy
from embodied.schema import OptimConfig


def make_optimizer(policy: Policy, optim: OptimConfig) -> torch.optim.AdamW:
    """Two parameter groups: ``policy`` first, then ``value`` if there is a value head.

    Raises:
        ConfigError: nothing is trainable.
    """
    trainable = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError(
            "the policy has no trainable parameter",
            "set actor.model.is_lora=true, or narrow actor.model.freeze_pattern",
        )
    value = [p for name, p in trainable if name.startswith("value_head")]
    rest = [p for name, p in trainable if not name.startswith("value_head")]
    groups = [
        {"params": rest, "lr": optim.lr, "name": "policy"},
        {"params": value, "lr": optim.value_lr, "name": "value"},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        betas=(optim.adam_beta1, optim.adam_beta2),
        eps=optim.adam_eps,
        weight_decay=optim.weight_decay,
    )
