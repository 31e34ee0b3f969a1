"""Which parameters are trained: adapters, value head and named modules, or everything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peft import LoraConfig
from torch import nn

from embodied.errors import CheckpointError, ConfigError, did_you_mean

from ..shared.lora import inject, load_adapter
from .settings import Settings, as_tuple, bad


def add_adapters(network: Any, settings: Settings) -> None:
    """Wraps the layers' linear modules in LoRA adapters, in place."""
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_scale,  # type: ignore[arg-type]  # peft only divides by it
        lora_dropout=settings.lora_dropout,
        target_modules=_targets(network, settings),
        init_lora_weights=settings.lora_init_weights,  # type: ignore[arg-type]
        use_rslora=settings.lora_use_rslora,
        rank_pattern=dict(settings.lora_rank_pattern or {}),
        alpha_pattern=dict(settings.lora_alpha_pattern or {}),
    )
    inject(network, config, settings.seed, cast_input=settings.precision == "fp32")
    if settings.lora_path is None:
        return
    folder = Path(settings.lora_path).expanduser()
    if not folder.is_dir():
        raise CheckpointError(f"no folder {folder}", "set actor.model.lora_path to a peft adapter folder, or null")
    load_adapter(network, folder, [])


def _targets(network: Any, settings: Settings) -> list[str]:
    given = settings.lora_target_modules
    if given in (None, "all-linear"):
        linears = (name for name, module in network.model.layers.named_modules() if isinstance(module, nn.Linear))
        names: Iterable[str] = dict.fromkeys(name.rsplit(".", 1)[-1] for name in linears)
    else:
        names = as_tuple(given)
    return [name for name in names if name not in settings.saved_modules]


def choose_trained(policy: nn.Module, settings: Settings) -> None:
    """Sets ``requires_grad`` of every parameter: ``is_lora`` first, then trainable_map, then freeze_pattern.

    Raises:
        ConfigError: a pattern fits no parameter, or nothing is trained.
    """
    _check_matches([name for name, _ in policy.named_parameters()], settings)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(_is_trained(name, settings))
    if not any(p.requires_grad for p in policy.parameters()):
        raise ConfigError("no parameter is trained", "loosen actor.model.freeze_pattern or actor.model.trainable_map")


def _is_trained(name: str, settings: Settings) -> bool:
    if any(re.search(pattern, name) for pattern in settings.freeze_patterns):
        return False
    for prefix, trained in (settings.trainable_map or {}).items():
        if _begins(name, prefix):
            return trained
    whole = ("value_head", *settings.saved_modules)
    return not settings.is_lora or ".lora_" in name or any(_inside(name, module) for module in whole)


def _begins(name: str, prefix: str) -> bool:
    """Whether ``name`` begins with ``prefix``, with or without the policy's own ``network.`` in front."""
    return name.startswith(prefix) or name.removeprefix("network.").startswith(prefix)


def _inside(name: str, module: str) -> bool:
    """Whether parameter ``name`` lies in a module whose path ends in ``module``."""
    return f".{module}." in f".{name}"


def _check_matches(names: list[str], settings: Settings) -> None:
    given = {
        "freeze_pattern": {p: any(re.search(p, n) for n in names) for p in settings.freeze_patterns},
        "trainable_map": {p: any(_begins(n, p) for n in names) for p in settings.trainable_map or {}},
        "lora_modules_to_save": {m: any(_inside(n, m) for n in names) for m in settings.saved_modules},
    }
    for key, matches in given.items():
        for pattern, matched in matches.items():
            if not matched:
                modules = {part for n in names for part in n.split(".")[:-1]}
                reason = f"no parameter matches.{did_you_mean(pattern, modules)}"
                raise bad(key, pattern, reason, "correct or remove it (tied weights bear the name embed_tokens)")
