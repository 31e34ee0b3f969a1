"""Makes the optimizer, with learning rates of their own for value head, critics and temperature, and schedules them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from embodied.errors import ConfigError
from embodied.protocols import Policy
from embodied.schema import LrScheduleConfig, OptimConfig

KERNELS: dict[str, dict[str, bool]] = {
    "auto": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False, "fused": False},
}  # fmt: skip
"""``actor.optim.impl`` → arguments of torch's Adam."""

FALLS: dict[str, Callable[[float], float]] = {
    "exponential": lambda x: 2 * 0.5**x - 1,
    "linear": lambda x: 1 - x,
    "cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)),
    "minus_sqrt": lambda x: 1 - math.sqrt(x),
}
"""``lr_wsd_decay_style`` → share of the way from the lowest rate to the base one, as Megatron-LM defines them."""


def make_optimizer(policy: Policy, optim: OptimConfig) -> torch.optim.Optimizer:
    """Adam over what is trainable, in parameter groups: ``policy``, then ``value`` if there is a value head or critics,
    then ``temperature`` of an actor with critics.

    ``adamw`` takes the weight decay off the weights themselves (arXiv 1711.05101), ``adam`` adds it to the gradient.

    Raises:
        ConfigError: nothing is trainable.
    """
    trainable = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError(
            "the policy has no trainable parameter",
            "set actor.model.is_lora=true, or narrow actor.model.freeze_pattern; an exported program (model=exported) "
            "cannot be trained: evaluate it (python -m embodied.eval), and train the checkpoint that it was made from",
        )
    rates = {"policy": optim.lr, "value": optim.value_lr, "temperature": optim.temperature_lr}
    groups = [
        {"params": [p for name, p in trainable if _group_of(name) == group], "lr": lr, "name": group}
        for group, lr in rates.items()
    ]
    kind = torch.optim.AdamW if optim.optimizer == "adamw" else torch.optim.Adam
    return kind(
        [group for group in groups if group["params"]],
        betas=(optim.adam_beta1, optim.adam_beta2),
        eps=optim.adam_eps,
        weight_decay=optim.weight_decay,
        **KERNELS[optim.impl],
    )


def _group_of(name: str) -> str:
    """Returns the parameter group of a parameter, by its name."""
    if name.startswith(("value_head", "critic.")):
        return "value"
    return "temperature" if name == "log_temperature" else "policy"


class RateSchedule:
    """Learning rates as a function of how far the run is, in iterations: ``2.5`` is the middle of the third.

    Optimizer step k of the n of iteration i (from 0) is at ``i + k/n``, k = 1..n, however many steps the other
    iterations have had. So nothing is counted, and nothing has to be saved.

    Args:
        iterations: of the run (``runner.max_epochs``). Shares refer to them, and the decay ends there unless
            ``lr_decay_iters`` is set.
    """

    def __init__(self, optim: OptimConfig, config: LrScheduleConfig, iterations: int) -> None:
        self._config = config
        self._rates = {"policy": optim.lr, "value": optim.value_lr, "temperature": optim.temperature_lr}
        self._first = config.lr_warmup_init / optim.lr
        self._lowest = config.min_lr_ratio if config.min_lr is None else config.min_lr / optim.lr
        self._warmup = config.lr_warmup_iters or config.lr_warmup_fraction * iterations
        self._end = iterations if config.lr_decay_iters is None else config.lr_decay_iters

    @property
    def warmup(self) -> float:
        """Iteration at which the warm-up ends."""
        return self._warmup

    def same_from(self, position: float, other: RateSchedule) -> bool:
        """Returns whether another schedule of the same keys gives the same rates from ``position`` on."""
        if self._config.lr_decay_style != "constant":
            return (self._warmup, self._end) == (other._warmup, other._end)
        return self._warmup == other._warmup or max(self._warmup, other._warmup) <= position

    def factor(self, position: float) -> float:
        """Share of the base rate at ``position``: straight up from ``lr_warmup_init``, then ``lr_decay_style``."""
        if position < self._warmup:
            return self._first + (1 - self._first) * position / self._warmup
        if self._config.lr_decay_style == "constant":
            return 1.0
        begin = self._warmup
        if self._config.lr_decay_fraction is not None:
            begin = max(begin, self._end * (1 - self._config.lr_decay_fraction))
        if self._config.lr_wsd_decay_iters is not None:
            begin = max(begin, self._end - self._config.lr_wsd_decay_iters)
        done = 1.0 if self._end <= begin else min(max((position - begin) / (self._end - begin), 0.0), 1.0)
        return self._lowest + (1 - self._lowest) * self._shape(done)

    def apply(self, optimizer: torch.optim.Optimizer, position: float) -> None:
        """Sets the rates of all parameter groups: each its base rate times the same factor."""
        for group in optimizer.param_groups:
            group["lr"] = self._rates[group["name"]] * self.factor(position)

    def _shape(self, done: float) -> float:
        if self._config.lr_decay_style == "linear":
            return 1 - done
        if self._config.lr_decay_style == "wsd":
            return FALLS[self._config.lr_wsd_decay_style](done)
        return 0.5 * (1 + math.cos(2 * math.pi * self._config.num_cycles * done))
