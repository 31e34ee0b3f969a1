"""Adapters of the trunk: adds them, fills them from a folder, writes them beside merged weights."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from embodied.errors import CheckpointError
from embodied.lib.files import check_export

from ..shared.keys import as_tuple
from ..shared.lora import inject, load_adapter, save_adapter
from ..shared.trained import lora_config
from .files.load import dead_in_network
from .network.model import FlowVLA
from .settings import TARGETS, Settings

FOLDER = "lora_adapter"  # within a folder of merged weights
MERGE = (
    "merge it in LeRobot: PeftModel.from_pretrained(policy, '{folder}').merge_and_unload(), then save_pretrained('DIR')"
    " of the policy; set actor.model.model_path=DIR and leave actor.model.lora_path out"
)


def add_adapters(model: FlowVLA, settings: Settings) -> None:
    """Wraps linear layers of the trunk in LoRA adapters, in place, and fills them from ``lora_path``.

    Raises:
        CheckpointError: there is no such folder, or its adapter does not fit.
    """
    given = settings.lora_target_modules
    names = TARGETS if given in (None, "all-linear") else as_tuple(given)
    names = tuple(name for name in names if name not in settings.saved_modules)
    layers = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and ".trunk." in name]
    targets = [name for name in layers if name.rsplit(".", 1)[-1] in names] or list(names)
    inject(model, lora_config(settings, targets), settings.seed, cast_input=settings.precision == "fp32")
    if settings.lora_path is None:
        return
    path = Path(settings.lora_path).expanduser()
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    if not folder.is_dir():
        raise CheckpointError(f"no folder {folder}", "set actor.model.lora_path to a peft adapter folder, or null")
    check_export(folder)
    load_adapter(model, folder, [dead_in_network(model.sizes)], MERGE)


def write_adapters(model: FlowVLA, folder: Path, base: Path | None) -> None:
    """Writes the adapters, and what was trained in full, as a folder that ``lora_path`` takes beside ``base``."""
    whole = {name: p for name, p in model.named_parameters() if p.requires_grad and ".lora_" not in name}
    save_adapter(model, folder / FOLDER, None if base is None else str(base), whole)
