"""Selects the parameters of a policy that are trained: adapters and some modules in full, or everything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from peft import LoraConfig
from torch import nn

from embodied.errors import ConfigError, did_you_mean

from .bits import KEY
from .keys import bad


class Trains(Protocol):
    """Interface of keys under ``actor.model`` that select the trained parameters. Of a model's settings,
    ``freeze_patterns`` and ``saved_modules`` are ``freeze_pattern`` and ``lora_modules_to_save`` as tuples."""

    @property
    def is_lora(self) -> bool: ...
    @property
    def trainable_map(self) -> Mapping[str, bool] | None: ...
    @property
    def freeze_patterns(self) -> tuple[str, ...]: ...
    @property
    def saved_modules(self) -> tuple[str, ...]: ...
    @property
    def quantization_bit(self) -> int | None: ...


def lora_config(settings: Any, targets: Sequence[str] | str | None, exclude: str | None = None) -> LoraConfig:
    """Makes peft's LoRA configuration from the ``lora_…`` keys.

    Args:
        targets: endings of the names of the layers that are adapted.
        exclude: regular expression of names that are not.
    """
    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_scale,  # may be no whole number: peft only divides by it
        lora_dropout=settings.lora_dropout,
        target_modules=targets,  # type: ignore[arg-type]
        exclude_modules=exclude,
        init_lora_weights=settings.lora_init_weights,
        use_rslora=settings.lora_use_rslora,
        rank_pattern=dict(settings.lora_rank_pattern or {}),
        alpha_pattern=dict(settings.lora_alpha_pattern or {}),
    )


def choose_trained(
    policy: nn.Module, settings: Trains, trained_in_full: Sequence[str], prefix: str, hint: str = ""
) -> None:
    """Sets ``requires_grad`` of every parameter: ``is_lora`` first, then trainable_map, then freeze_pattern.

    Args:
        trained_in_full: modules that are trained in full beside adapters.
        prefix: what the policy puts in front of names, e.g. ``model.``; prefixes fit with it and without.
        hint: more of the fix for a pattern that fits nothing.

    Raises:
        ConfigError: a pattern fits no parameter, or nothing is trained.
    """
    _check_matches([name for name, _ in policy.named_parameters()], settings, prefix, hint)
    for name, parameter in policy.named_parameters():
        trained = _is_trained(name, settings, (*trained_in_full, *settings.saved_modules), prefix)
        if trained and not parameter.is_floating_point():
            reason = f"its weights are frozen, and {name} is to be trained"
            raise bad(KEY, settings.quantization_bit, reason, "set it to null, or train other layers in full")
        parameter.requires_grad_(trained)
    if not any(p.requires_grad for p in policy.parameters()):
        raise ConfigError("no parameter is trained", "loosen actor.model.freeze_pattern or actor.model.trainable_map")


def _is_trained(name: str, settings: Trains, whole: Sequence[str], front: str) -> bool:
    if any(re.search(pattern, name) for pattern in settings.freeze_patterns):
        return False
    for prefix, trained in (settings.trainable_map or {}).items():
        if _begins(name, prefix, front):
            return trained
    return not settings.is_lora or ".lora_" in name or any(_inside(name, module) for module in whole)


def _begins(name: str, prefix: str, front: str) -> bool:
    return name.startswith(prefix) or name.removeprefix(front).startswith(prefix)


def _inside(name: str, module: str) -> bool:
    """Returns whether parameter ``name`` lies in a module whose path ends in ``module``."""
    return f".{module}." in f".{name}"


def _check_matches(names: list[str], settings: Trains, prefix: str, hint: str) -> None:
    given = {
        "freeze_pattern": {p: any(re.search(p, n) for n in names) for p in settings.freeze_patterns},
        "trainable_map": {p: any(_begins(n, p, prefix) for n in names) for p in settings.trainable_map or {}},
        "lora_modules_to_save": {m: any(_inside(n, m) for n in names) for m in settings.saved_modules},
    }
    for key, matches in given.items():
        for pattern, matched in matches.items():
            if not matched:
                modules = {part for n in names for part in n.split(".")[:-1]}
                reason = f"no parameter matches.{did_you_mean(pattern, modules)}"
                raise bad(key, pattern, reason, f"correct or remove it{hint}")


def training_modules(policy: nn.Module) -> list[nn.Module]:
    """Lists the modules that behave differently in training: dropout and recomputed layers."""
    return [m for m in policy.modules() if isinstance(m, nn.Dropout) or getattr(m, "gradient_checkpointing", False)]


@contextmanager
def not_training(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Context in which ``modules`` are in evaluation mode."""
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
