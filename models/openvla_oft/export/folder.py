"""Folders for other programs: the whole model as the original code reads it, or its adapters alone
(``embodied.tools.export``).

A policy with LoRA adapters acts with ``W x + s · B A x``. A folder has one matrix, ``W + s · B A``, and 16 bits round
it: if the product is small beside W, most of it is lost. So what was written is read again, and both are asked about
the same observations.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from peft.helpers import rescale_adapter_scale
from torch import Tensor

from embodied.errors import ConfigError
from embodied.lib.targets import load_target
from embodied.protocols import Examples, Exported, Policy

from ...shared.adapter_folder import check_adapters
from ...shared.change import Change, change
from ...shared.exporting import LOSES_MEAN, check_dtype, check_plain, precision_of, shard_bytes
from ...shared.files import FORMATS, write_json
from ...shared.lora import save_adapter
from ...shared.precision import rounding_of
from ..files.checkpoint import Folder
from ..parts import Parts
from .layout import code_files, statistics
from .save import save_folder

TARGET = "embodied.models.openvla_oft.build_policy"
LOSES_SHARE = 0.1  # largest accepted loss, as a share of what the adapters themselves move
# Keys that a folder's own files do not tell, or must not contradict.
CARRIED = (
    *("precision", "attention", "attn_implementation", "decoding", "max_prompt_length", "stop_token"),
    *("num_images_in_input", "use_proprio", "use_film", "proprio_dim", "action_dim", "num_action_chunks"),
    *("center_crop", "image_preset", "policy_setup", "value_head", "value_type"),
)

WHOLE = """\
from pathlib import Path

from embodied.learn.checkpoint.exported import open_export

policy, env = open_export(Path("FOLDER"))
# in embodied: {model}
# in OpenVLA's own code, with unnorm_key={name!r}: AutoModelForVision2Seq.from_pretrained("FOLDER", …)"""
ADAPTER = """\
from peft import PeftModel

model = PeftModel.from_pretrained(base, "FOLDER")  # base: the network in {base}
# in embodied: {model}"""


def export_folder(
    policy: Policy, parts: Parts, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes one of ``FOLDERS``. See :meth:`embodied.protocols.Exports.export`."""
    check_dtype(dtype)
    if kind == "adapter":
        return _adapter(parts, folder, dtype, options)
    return _whole(policy, parts, folder, dtype, examples, options)


# -- the whole model -------------------------------------------------------------------------------------------------


class WrittenFolder(NamedTuple):
    """The result of writing a folder: its dtype, and the change of answers after it is read again."""

    dtype: str
    change: Change | None  # None: there were no observations


def _whole(
    policy: Policy, parts: Parts, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    check_plain(options, "hf")
    size, moved = shard_bytes(options), _moved(policy, parts, examples)
    tried = [_write(policy, parts, folder, "bf16" if dtype == "auto" else dtype, examples, size)]
    if dtype == "auto" and _too_much(tried[0].change, moved):
        shutil.rmtree(folder)
        tried.append(_write(policy, parts, folder, "fp32", examples, size))
    found = tried[-1]
    keys = model_keys(parts, found.dtype)
    usage = WHOLE.format(model=command(keys, "model_path"), name=parts.now.statistics.name)
    notes = [*_code_note(parts), *_arithmetic_note(parts, keys), *_loss_notes(dtype, tried, moved)]
    measured = {one.dtype: one.change.as_json() for one in tried if one.change is not None}
    measured |= {} if moved is None else {"adapters": moved.as_json()}
    rounded = rounding_of(found.dtype, keys["precision"], parts.settings.precision)
    return Exported("transformers", usage, tuple(notes), found.dtype, keys, measured, rounded)


def _write(policy: Policy, parts: Parts, folder: Path, dtype: str, examples: Examples, size: int) -> WrittenFolder:
    save_folder(parts, folder, size, FORMATS[dtype])
    if examples.obs is None:
        return WrittenFolder(dtype, None)
    device = parts.device
    build = load_target(TARGET, "_target_")  # found by name, as users of the folder do; an import would be circular
    again = build(**{**_kwargs(parts, dtype), "model_path": str(folder)}).to(device)
    assert parts.now.env is not None
    again.bind(parts.now.env)
    return WrittenFolder(dtype, change(policy, again, examples, device))


def _kwargs(parts: Parts, dtype: str) -> dict[str, Any]:
    """Keyword arguments that read a folder of these weights, but for its path."""
    settings = parts.settings
    keys = {name: getattr(settings, name) for name in CARRIED}
    precision = precision_of(settings, dtype)
    return {**keys, "size": None, "precision": precision, "unnorm_key": parts.now.statistics.name}


def model_keys(parts: Parts, dtype: str) -> dict[str, Any]:
    """Returns the configuration keys that build the policy from a whole folder (``Exported.model``)."""
    return {"_target_": TARGET, "model_path": ".", **_kwargs(parts, dtype)}


def command(keys: Mapping[str, Any], *paths: str) -> str:
    """Formats configuration keys as command-line overrides.

    Args:
        paths: keys whose "." stands for the folder.
    """
    shown = {name: "FOLDER" if name in paths and value == "." else value for name, value in keys.items()}
    words = {True: "true", False: "false", None: "null"}
    texts = {n: words[v] if v is None or isinstance(v, bool) else v for n, v in shown.items() if n != "_target_"}
    return " ".join(["model=openvla_oft", *(f"actor.model.{name}={text}" for name, text in texts.items())])


def _moved(policy: Policy, parts: Parts, examples: Examples) -> Change | None:
    """Measures how much the adapters change answers; None if there are no adapters, or no observations."""
    if not parts.settings.is_lora or examples.obs is None:
        return None
    unadapted = partial(rescale_adapter_scale, parts.model, 0.0)
    return change(policy, policy, examples, parts.device, unadapted)


def _too_much(found: Change | None, moved: Change | None) -> bool:
    """Returns whether rounding loses more than ``auto`` accepts; what could not be measured is not rounded."""
    if found is None or found.logprob_mean > LOSES_MEAN:
        return True
    return moved is not None and found.logprob_mean > LOSES_SHARE * moved.logprob_mean


def _loss_notes(asked: str, tried: list[WrittenFolder], moved: Change | None) -> list[str]:
    found = tried[-1]
    if found.change is None:
        why = ", so auto wrote fp32" if asked == "auto" else ""
        return [f"there were no observations to measure on what writing in {found.dtype} loses{why}"]
    over = f"measured on {found.change.observations} observations of the env"
    beside = "" if moved is None else f"; the adapters themselves: {moved}"
    notes = [f"written in {found.dtype} and read again, {over}: {found.change}{beside}"]
    if len(tried) > 1:
        least = f"{LOSES_MEAN:g} nats on average" + (
            f" or {LOSES_SHARE:.0%} of what the adapters move" if moved else ""
        )
        notes.append(f"auto wrote fp32, as bf16 loses more than {least}: {tried[0].change}")
    if moved is not None and found.dtype != "fp32" and found.change.logprob_mean >= moved.logprob_mean:
        notes.append(
            f"WARNING: {found.dtype} loses more than the adapters have learnt: this folder is not the policy that was "
            "trained; write it with --dtype fp32"
        )
    return notes


def _arithmetic_note(parts: Parts, keys: Mapping[str, Any]) -> list[str]:
    if keys["precision"] == parts.settings.precision:
        return []
    return [
        f"to be computed in {keys['precision']}, although the run computed in {parts.settings.precision}: merged "
        "weights are rounded when they are read in fewer bits"
    ]


def _code_note(parts: Parts) -> list[str]:
    path = parts.settings.model_path
    if path is not None and (found := code_files(Folder.open(path))):
        return [f"with the original's own code from {path}: {', '.join(file.name for file in found)}"]
    where = "the network was made at random" if path is None else f"there is none in {path}"
    return [f"without the original's Python files ({where}): its code registers its classes, or copies them here"]


# -- the adapters alone ----------------------------------------------------------------------------------------------


def _adapter(parts: Parts, folder: Path, dtype: str, options: Mapping[str, Any]) -> Exported:
    base = check_adapters(parts.settings, dtype, options)
    whole = _in_full(parts)
    save_adapter(parts.model, folder, base, whole)
    write_json(folder / "dataset_statistics.json", statistics(parts))
    notes = [f"the network below it: {base}"]
    if whole:
        modules = dict.fromkeys(name.rpartition(".")[0] for name in whole)
        notes.append(f"with modules that were trained in full: {', '.join(modules)}")
    keys: dict[str, Any] = {}
    if _same_statistics(parts, base):
        keys = {**model_keys(parts, dtype), **_adapter_keys(parts), "model_path": base, "lora_path": "."}
    else:
        notes.append(
            f"actions are spread over the statistics '{parts.now.statistics.name}' in dataset_statistics.json, and not "
            f"over those in {base}; --format hf holds both"
        )
    if parts.value_head is not None:
        notes.append("without the value head, which no program needs to act")
    shown = {**keys, "lora_path": "FOLDER"} if keys else {}
    return Exported("peft", ADAPTER.format(base=base, model=command(shown)), tuple(notes), model=keys)


def _adapter_keys(parts: Parts) -> dict[str, Any]:
    """Keys that make the same adapters, which no file but the run's configuration tells."""
    settings = parts.settings
    names = (
        *("precision", "is_lora", "lora_rank", "lora_alpha", "lora_target_modules", "lora_modules_to_save"),
        *("lora_use_rslora", "lora_rank_pattern", "lora_alpha_pattern", "unnorm_key"),
        *("vision_num_attention_heads", "vision_num_layers"),
    )
    return {name: _json(getattr(settings, name)) for name in names} | {"value_head": False}


def _json(value: Any) -> Any:
    """A value of the settings as a value of JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _in_full(parts: Parts) -> dict[str, Tensor]:
    """Tensors of modules that were trained in full, whole modules of them, by their names in the network.

    Raises:
        ConfigError: something was trained that is no layer of its own, or lies below an adapter.
    """
    trained = [name for name, p in parts.model.named_parameters() if p.requires_grad and ".lora_" not in name]
    owners = dict.fromkeys(name.rpartition(".")[0] for name in trained)
    modules = {name: parts.model.get_submodule(name) for name in owners}
    if odd := [name for name in owners if name.endswith(".base_layer") or [*modules[name].children()]]:
        raise ConfigError(
            f"a folder of adapters holds whole layers, and parts of these were trained: {', '.join(odd[:4])}",
            "write --format hf",
        )
    return {f"{name}.{leaf}": p for name, module in modules.items() for leaf, p in module.named_parameters()}


def _same_statistics(parts: Parts, base: str) -> bool:
    """Returns whether the network's folder scales actions and state as the policy does."""
    known = Folder.open(base).known_statistics().get(parts.now.statistics.name, {})
    own = statistics(parts)[parts.now.statistics.name]
    return all(known.get(what, {}).get(name) == value for what, block in own.items() for name, value in block.items())
