"""Writes the policy as LeRobot's folder, reads it again, and measures what that changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.targets import load_target
from embodied.protocols import Examples, Exported

from ...shared.change import Change, change
from ...shared.exporting import LOSES_MEAN, check_dtype, check_plain, precision_of
from ...shared.files import FORMATS
from ...shared.precision import rounding_of
from ..files.folder import Folder
from ..files.save import keeps_statistics, save_folder
from ..parts import Parts
from .decision import Exportable

TARGET = "embodied.models.flow_vla.build_policy"
# Keys that a folder's own files do not tell.
CARRIED = (
    *("cameras", "num_action_chunks", "num_steps", "eval_steps", "noise_method", "noise_steps", "noise_level"),
    *("noise_range", "rtc_schedule", "rtc_max_weight", "rtc_jacobian", "normalization", "max_prompt_length"),
    *("train_expert_only", "value_head", "value_type", "state_in_prompt"),
)
USAGE = """\
from lerobot.policies.{module} import {name}

policy = {name}.from_pretrained("FOLDER")
# in embodied: model={model} actor.model.model_path=FOLDER"""
NAMES = {"smolvla": "SmolVLAPolicy", "pi0": "PI0Policy", "pi05": "PI05Policy"}


def export_folder(
    policy: Exportable, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes the folder. See :meth:`embodied.protocols.Exports.export`."""
    check_dtype(dtype)
    check_plain(options, "hf")
    if (size := options.get("max_shard_size")) is not None:
        raise ConfigError(
            f"--shard-size of {size} bytes: LeRobot reads weights from one file alone", "leave --shard-size out"
        )
    parts = policy.parts
    rounds = dtype == "auto" and not parts.settings.is_lora  # 16 bits may round all of an adapter away
    name = "bf16" if rounds else "fp32" if dtype == "auto" else dtype
    tried = {name: _write(policy, folder, name, examples)}
    if rounds and not _loses_little(tried[name]):
        shutil.rmtree(folder)
        name = "fp32"
        tried[name] = _write(policy, folder, name, examples)
    keys = _keys(parts, name)
    notes = [*(_note(one, found) for one, found in tried.items()), *_unlike_lerobot(parts)]
    layout = parts.model.sizes.layout
    usage = USAGE.format(module=layout, name=NAMES[layout], model=layout)
    measured = {one: found.as_json() for one, found in tried.items() if found is not None}
    rounding = rounding_of(name, keys["precision"], parts.settings.precision)
    return Exported("lerobot", usage, tuple(notes), name, keys, measured, rounding)


def _write(policy: Exportable, folder: Path, dtype: str, examples: Examples) -> Change | None:
    """Returns how answers change when the folder is read again; None without observations."""
    parts = policy.parts
    save_folder(parts, folder, None if dtype == "fp32" else FORMATS[dtype])
    if examples.obs is None:
        return None
    keys = {**_keys(parts, dtype), "model_path": str(folder)}
    again = load_target(keys.pop("_target_"), "_target_")(**keys).to(parts.device)
    assert parts.now.env is not None
    again.bind(parts.now.env)
    return change(policy, again, examples, parts.device)


def _loses_little(found: Change | None) -> bool:
    return found is not None and found.logprob_mean <= LOSES_MEAN


def _keys(parts: Parts, dtype: str) -> dict[str, Any]:
    """Keys that build the policy from the folder (``Exported.model``)."""
    settings = parts.settings
    keys = {name: getattr(settings, name) for name in CARRIED}
    lists = {name: list(keys[name]) for name in ("cameras", "noise_range") if keys[name] is not None}
    named = parts.source is not None and keeps_statistics(parts, Folder.open(str(parts.source)))
    return {
        "_target_": TARGET, "model_path": ".", **keys, **lists, "precision": precision_of(settings, dtype),
        "statistics_key": settings.statistics_key if named else None,
    }  # fmt: skip


def _unlike_lerobot(parts: Parts) -> Iterator[str]:
    """Says where LeRobot acts otherwise with the folder."""
    if parts.settings.steers:
        yield (
            "LeRobot reads no noise_policy.safetensors: there the folder acts as the frozen policy, without what was "
            "learned; here, and in programs (--format onnx, torch_export), it has that"
        )
    if not parts.settings.state_in_prompt:
        yield "LeRobot puts the state into the prompt of pi05, and this policy was trained without: leave it out there"


def _note(dtype: str, found: Change | None) -> str:
    if found is None:
        return f"there were no observations to measure on what writing in {dtype} loses"
    return f"written in {dtype} and read again, measured on {found.observations} observations of the env: {found}"
