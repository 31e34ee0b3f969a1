"""LoRA adapters in the layers of a network."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from embodied.errors import CheckpointError

from ...shared.keys import as_tuple
from ...shared.lora import inject, load_adapter
from ...shared.trained import lora_config
from ..settings import Settings


def add_adapters(network: Any, settings: Settings) -> None:
    """Wraps the layers' linear modules in LoRA adapters, in place."""
    config = lora_config(settings, _targets(network, settings))
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
