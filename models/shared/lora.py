"""Adds peft's LoRA to plain modules. Beyond peft: slices of an adapted layer, and merging into a copy.

An adapted layer computes ``W x + s · B A x`` (Hu et al., arXiv 2106.09685, eq. 3).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied.errors import CheckpointError, ConfigError, did_you_mean

from .weights.adapter import CONFIG, MERGE, adapter_settings, check_plain, merge_fix, read_adapter
from .weights.adapter import FILE as ADAPTER_FILE

_PREFIX = "base_model.model."
NONE: Mapping[str, Tensor] = MappingProxyType({})


def inject(model: nn.Module, config: LoraConfig, seed: int, cast_input: bool) -> None:
    """Wraps the target layers of ``model`` in LoRA adapters, in place.

    Args:
        config: peft's; ``target_modules`` are endings of names.
        seed: decides the adapters' initial values.
        cast_input: False leaves the number format to autocast instead of casting activations to float32.

    Raises:
        ConfigError: no layer has a target's name.
    """
    _check_targets(model, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    for layer in lora_layers(model).values():
        layer.cast_input_dtype_enabled = cast_input


def _check_targets(model: nn.Module, config: LoraConfig) -> None:
    known = {
        name.rsplit(".", 1)[-1] for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))
    }
    for target in config.target_modules or ():
        if target.rsplit(".", 1)[-1] not in known:
            raise ConfigError(
                f"actor.model.lora_target_modules: no layer is called '{target}'.{did_you_mean(target, known)}",
                f"use names out of: {', '.join(sorted(known))}; or null for the targets of the released adapters",
            )


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Lists the layers of ``model`` that have adapters, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def sliced_linear(layer: nn.Module, x: Tensor, rows: slice) -> Tensor:
    """Computes outputs ``rows`` of a linear layer without bias, adapted or not, and no others; in float32.

    Reading ``layer.weight[rows]`` alone would silently leave the adapter out.
    """
    x = x.float()
    if not isinstance(layer, LoraLayer):
        return F.linear(x, _weight(layer)[rows].float())
    out = F.linear(x, _weight(layer.get_base_layer())[rows].float())
    for name in layer.active_adapters:
        low_rank = F.linear(layer.lora_dropout[name](x), _weight(layer.lora_A[name]).float())
        out = out + F.linear(low_rank, _weight(layer.lora_B[name])[rows].float()) * layer.scaling[name]
    return out


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def merged_state(model: nn.Module, full: Mapping[str, Tensor] = NONE) -> dict[str, Tensor]:
    """Returns a float32 state dict on the CPU under the names without adapters, with their deltas added. See
    :func:`merged_tensors`."""
    return {name: tensor.cpu().contiguous() for name, tensor in merged_tensors(model, full)}


def merged_tensors(model: nn.Module, full: Mapping[str, Tensor] = NONE) -> Iterator[tuple[str, Tensor]]:
    """Yields each tensor of the state dict in float32 under its name without adapters, with their deltas added.

    ``model`` itself is not touched: merging in place and in bf16 destroys a small delta.

    Args:
        full: weights that ``model`` holds in 8 or 4 bits, as its base has them, by names without adapters.
    """
    layers = lora_layers(model)
    for name, value in model.state_dict().items():
        if ".lora_" in name:
            continue
        owner, _, leaf = name.rpartition(".base_layer.")
        tensor = full.get(name.replace(".base_layer.", "."), value).detach().to(value.device).float()
        if owner and leaf == "weight":
            for adapter in layers[owner].active_adapters:
                tensor = tensor + layers[owner].get_delta_weight(adapter).detach().float()  # type: ignore[attr-defined]
        yield name.replace(".base_layer.", "."), tensor


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns the adapters' tensors under peft's file names (``base_model.model.….lora_A.weight``)."""
    state = {name: value for name, value in model.state_dict().items() if ".lora_" in name}
    return {
        _PREFIX + name.replace(".default.", "."): value.detach().cpu().contiguous() for name, value in state.items()
    }


def save_adapter(
    model: nn.Module, folder: Path, base: str | None = None, in_full: Mapping[str, Tensor] = NONE
) -> None:  # fmt: skip
    """Writes a folder that peft and ``lora_path`` read. For adapted models only.

    Args:
        base: where the network below lies, for peft's configuration.
        in_full: tensors of modules that were trained in full, by name; peft calls them ``modules_to_save``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = adapter_state(model) | {_PREFIX + name: t.detach().cpu().contiguous() for name, t in in_full.items()}
    save_file(state, str(folder / ADAPTER_FILE), metadata={"format": "pt"})
    config: LoraConfig = copy.copy(model.peft_config["default"])  # type: ignore[index, assignment]
    config.base_model_name_or_path = base or config.base_model_name_or_path
    config.modules_to_save = sorted({name.rpartition(".")[0] for name in in_full}) or None
    config.save_pretrained(str(folder))


def load_adapter(model: nn.Module, folder: Path, ignore: Sequence[Any], merge: str = MERGE) -> None:
    """Fills the injected adapters from a peft folder, and modules that it holds in full. Every adapter is filled, every
    tensor of the file is used.

    Args:
        ignore: compiled patterns of base names that are not built (dead modules).
        merge: how an adapter is merged that cannot be read, for a fix.

    Raises:
        CheckpointError: no such file, more than LoRA, other layers, or another rank.
    """
    given, said = read_adapter(folder), adapter_settings(folder)
    check_plain(said, folder, merge)
    given = {name: tensor for name, tensor in given.items() if not any(p.match(name) for p in ignore)}
    given = _without_copies(model, given)
    own = {name.removeprefix(_PREFIX): t.shape for name, t in adapter_state(model).items()}
    plain = {
        name: p.shape for name, p in model.named_parameters() if ".lora_" not in name and ".base_layer." not in name
    }
    config: LoraConfig = model.peft_config["default"]  # type: ignore[index, assignment]
    wanted = own | {name: shape for name, shape in plain.items() if name in given}
    if problems := _misfit(given, wanted):
        fix = _fix_of_adapter(said, config, given, wanted, merge_fix(said, folder, merge))
        raise CheckpointError(f"adapter {folder} does not fit: {problems}{_of_base(said)}", fix)
    _check_scales(folder / CONFIG, said, config)
    for name in plain.keys() & given.keys():  # becomes float32: its present format may have fewer bits
        model.get_parameter(name).data = given.pop(name).float().clone()
    renamed = {name.replace(".weight", ".default.weight"): tensor for name, tensor in given.items()}
    model.load_state_dict(renamed, strict=False)


def _without_copies(model: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what peft saves of an adapted embedding or head itself, where it is what the network has."""
    layers = {f"{name}.weight": layer.get_base_layer() for name, layer in lora_layers(model).items()}

    def is_copy(name: str, tensor: Tensor) -> bool:
        weight = layers[name].weight if name in layers else None
        return isinstance(weight, Tensor) and weight.shape == tensor.shape and torch.equal(tensor.to(weight), weight)

    return {name: tensor for name, tensor in given.items() if not is_copy(name, tensor)}


def _misfit(given: Mapping[str, Tensor], own: Mapping[str, torch.Size]) -> str:
    """Describes in words what does not fit; "" if all does."""
    shapes = [
        f"{n}: {tuple(given[n].shape)} ≠ {tuple(own[n])}"
        for n in sorted(given.keys() & own.keys())
        if given[n].shape != own[n]
    ]
    found = {
        "missing": sorted(own.keys() - given.keys()), "unknown": sorted(given.keys() - own.keys()),
        "of another shape": shapes,
    }  # fmt: skip
    return ", ".join(f"{len(names)} {what} ({', '.join(names[:3])})" for what, names in found.items() if names)


def _of_base(said: Mapping[str, Any]) -> str:
    base = said.get("base_model_name_or_path")
    return f"; it was trained on {base}" if base else ""


def _fix_of_adapter(
    said: Mapping[str, Any], config: LoraConfig, given: Mapping[str, Tensor], own: Mapping[str, torch.Size], merge: str
) -> str:
    """Returns the fix for an adapter that does not fit: our keys where they can be set so, else merging it."""
    if (rank := said.get("r")) is not None and rank != config.r:
        return f"set actor.model.lora_rank={rank}, as {CONFIG} says"
    for field in ("rank_pattern", "alpha_pattern"):
        if (value := said.get(field) or {}) != (getattr(config, field) or {}):
            return f"set actor.model.lora_{field}={_as_override(value)}, as {CONFIG} says"
    missing, unknown = own.keys() - given.keys(), given.keys() - own.keys()
    if not missing and not unknown:
        return "set actor.model.model_path to the network that the adapter was trained on: its layers have other sizes"
    theirs = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in given if ".lora_" in name})
    adapted = {name.split(".lora_")[0] for name in given if ".lora_" in name}
    every = {name.split(".lora_")[0] for name in own if name.split(".lora_")[0].rsplit(".", 1)[-1] in theirs}
    whole = sorted({name.rpartition(".")[0].rsplit(".", 1)[-1] for name in unknown if ".lora_" not in name})
    if not whole and every == adapted and set(theirs) < _targets(own):
        return f"set actor.model.lora_target_modules=[{','.join(theirs)}], the layers that the adapter has"
    return (
        f"if these layers exist in the network, set actor.model.lora_target_modules=[{','.join(theirs)}]; else {merge}"
    )


def _targets(own: Mapping[str, torch.Size]) -> set[str]:
    return {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in own if ".lora_" in name}


def _as_override(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return "{" + ",".join(f"{key}:{number}" for key, number in value.items()) + "}"


# What scales an adapter: field of peft's configuration → key under actor.model.
SCALES = {
    "lora_alpha": "lora_alpha",
    "use_rslora": "lora_use_rslora",
    "rank_pattern": "lora_rank_pattern",
    "alpha_pattern": "lora_alpha_pattern",
}

USUAL: Mapping[str, Any] = {"lora_alpha": 8, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}}
"""What peft takes for fields of :data:`SCALES` that stand nowhere."""


def _check_scales(path: Path, said: Mapping[str, Any], own: LoraConfig) -> None:
    """Compares the scales in the adapter's configuration with ours: no tensor tells the scale."""
    there = {field: said.get(field) or usual for field, usual in USUAL.items()}
    wrong = {SCALES[field]: value for field, value in there.items() if value != (getattr(own, field) or USUAL[field])}
    if wrong:
        raise CheckpointError(
            f"{path} says {', '.join(f'{key} {value!r}' for key, value in wrong.items())}, the configuration another",
            "; ".join(f"set actor.model.{key}={_as_override(value)}" for key, value in wrong.items()),
        )
