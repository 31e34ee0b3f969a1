"""Writes a folder in LeRobot's layout: the tensors under their names, configuration, processors with statistics.

What was read and not trained is written as it was, bit by bit and in its number format; what was trained is float32.
Tensors that no action depends on are copied from the policy's folder; a network that was made here has ones for them,
because LeRobot expects them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied.errors import CheckpointError

from ...shared.files import cast, read_json, read_safetensors, write_json, write_weights
from ...shared.lora import merged_tensors
from ..inputs.normalization import PAIRS, Scale
from ..network.model import FlowVLA
from ..network.sizes import Sizes
from ..parts import Parts
from .folder import OWN_FILE, Folder, vlm_name
from .load import dead_in_network
from .names import stored_name
from .statistics import ACTION, NORMALIZER, PREPROCESSOR, STATE, read_scales

POSTPROCESSOR, VLM = "policy_postprocessor.json", "vlm"
LEROBOT_EPS = 1e-8
HEADS = ("value_head", "noise_head")


def save_folder(parts: Parts, path: Path, dtype: torch.dtype | None = None) -> None:
    """Writes what ``model_path`` needs. All weights stand in one file, because LeRobot reads no other.

    Args:
        dtype: of all tensors; None = each as it was read, and float32 where it was trained.

    Raises:
        CheckpointError: the folder holds files already, or the policy knows no range of actions.
    """
    if path.exists() and any(path.iterdir()):
        raise CheckpointError(f"{path} is not empty", "give a new folder; nothing is overwritten")
    if parts.now.action.width is None and parts.source is None:
        raise CheckpointError("the policy has no range of actions yet", "bind it to an env before saving")
    path.mkdir(parents=True, exist_ok=True)
    base = None if parts.source is None else Folder.open(str(parts.source))
    state = _state(parts, base)
    write_weights(state if dtype is None else {n: cast(n, t, dtype) for n, t in state.items()}, path, sys.maxsize)
    for name in HEADS:
        head: nn.Module | None = getattr(parts, name)
        if head is not None:
            state = {key: t.detach().float().cpu().contiguous() for key, t in head.state_dict().items()}
            save_file(state, str(path / f"{name}.safetensors"))
    sizes = parts.model.sizes
    write_json(path / OWN_FILE, {"vision_heads": sizes.tower.heads, "head_dim": sizes.head_dim})
    write_json(path / "config.json", _config(parts, base))
    _write_beside(parts, base, path)
    if base is None or not keeps_statistics(parts, base):
        _write_processors(parts, base, path)
    else:
        for file in base.path.glob("policy_p*processor*"):
            shutil.copy(file, path / file.name)


def keeps_statistics(parts: Parts, base: Folder) -> bool:
    """Whether the policy normalises as LeRobot's folder says that it came from."""
    now = parts.now
    if base.openpi:
        return False
    kept = read_scales(base, parts.settings.statistics_key)
    return (now.state, now.action) == (kept.state, kept.action)


# -- tensors ---------------------------------------------------------------------------------------------------------


def _state(parts: Parts, base: Folder | None) -> dict[str, Tensor]:
    sizes = parts.model.sizes
    stored = _stored(base) if base else {}
    names = {own: _lerobot(name) for name, own in base.names.own.items()} if base else {}
    found = {}
    for own, tensor in merged_tensors(parts.model):
        name = names.get(own) or stored_name(own, sizes.layout)
        found[name] = _as_stored(tensor.cpu(), stored.pop(name, None)).contiguous()
    dead = stored if base else dict(_fillers(sizes))
    return found | {name: tensor.contiguous() for name, tensor in dead.items() if name not in found}


def _stored(base: Folder) -> dict[str, Tensor]:
    """All tensors of the policy's folder by LeRobot's names."""
    pairs = (pair for file in base.stored.files for pair in read_safetensors(file))
    return {_lerobot(base.stored.plain[name]): tensor for name, tensor in pairs}


def _lerobot(name: str) -> str:
    return name if name.startswith("model.") else f"model.{name}"


def _as_stored(tensor: Tensor, stored: Tensor | None) -> Tensor:
    """In the number format of the file, if that loses nothing."""
    if stored is None:
        return tensor
    cast = tensor.to(stored.dtype)
    return cast if torch.equal(cast.float(), tensor) else tensor


def _fillers(sizes: Sizes) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the layout that a network made here lacks."""
    with torch.device("meta"):
        whole = FlowVLA(Sizes(**{**sizes.__dict__, "read_out": True}))
    dead = dead_in_network(sizes)
    yield from (
        (stored_name(n, sizes.layout), torch.ones(p.shape)) for n, p in whole.named_parameters() if dead.match(n)
    )
    if sizes.gemma:
        yield "model.paligemma_with_expert.gemma_expert.lm_head.weight", torch.ones(sizes.vocab, sizes.expert.width)
    else:
        yield "model.vlm_with_expert.vlm.lm_head.weight", torch.ones(sizes.vocab, sizes.trunk.width)


# -- configuration ---------------------------------------------------------------------------------------------------


def _config(parts: Parts, base: Folder | None) -> dict[str, Any]:
    if base is not None and not base.openpi:
        return dict(base.config)
    sizes, now = parts.model.sizes, parts.now
    smol, size = not sizes.gemma, [sizes.image_size] * 2
    visual = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, *size]} for name in _cameras(parts)}
    state = {STATE: {"type": "STATE", "shape": [_state_width(parts)]}}
    common = {
        "type": sizes.layout, "n_obs_steps": 1, "input_features": {**visual, **state},
        "output_features": {ACTION: {"type": "ACTION", "shape": [now.action.width or sizes.action_width]}},
        "normalization_mapping": _modes(parts), "chunk_size": sizes.horizon,
        "n_action_steps": parts.settings.num_action_chunks, "max_state_dim": sizes.state_width,
        "max_action_dim": sizes.action_width, "tokenizer_max_length": parts.prompt_tokens,
        "min_period": sizes.min_period, "max_period": sizes.max_period,
    }  # fmt: skip
    if smol:
        own = {
            "resize_imgs_with_padding": size, "num_steps": parts.settings.num_steps, "vlm_model_name": VLM,
            "num_vlm_layers": sizes.layers, "num_expert_layers": -1, "attention_mode": "cross_attn",
            "self_attn_every_n_layers": sizes.cross_every, "load_vlm_weights": False,
            "expert_width_multiplier": sizes.expert.width / sizes.trunk.width,
        }  # fmt: skip
        return {**common, **own}
    return {
        **common, "image_resolution": size, "num_inference_steps": parts.settings.num_steps, "dtype": "float32",
        "paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m",
    }  # fmt: skip


def _cameras(parts: Parts) -> tuple[str, ...]:
    if parts.places is not None:
        return parts.places
    env = parts.now.env
    return () if env is None else tuple(env.cameras[number] for number in parts.now.order)


def _modes(parts: Parts) -> dict[str, str]:
    kinds = {"STATE": parts.now.state.kind, "ACTION": parts.now.action.kind}
    return {"VISUAL": "IDENTITY", **{feature: kind.upper() for feature, kind in kinds.items()}}


def _write_beside(parts: Parts, base: Folder | None, path: Path) -> None:
    """Tokenizer, and for SmolVLA the configuration of its VLM."""
    if parts.tokenizer is not None:
        parts.tokenizer.write(path / "tokenizer.json")
    if base is not None:
        inner = base.path / vlm_name(base.config)
        if not parts.model.sizes.gemma and (inner / "config.json").is_file():
            (path / inner.name).mkdir()
            shutil.copy(inner / "config.json", path / inner.name / "config.json")
        return
    sizes = parts.model.sizes
    if not sizes.gemma:
        (path / VLM).mkdir()
        text = {
            "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim,
            "hidden_size": sizes.trunk.width, "intermediate_size": sizes.trunk.mlp, "vocab_size": sizes.vocab,
            "num_hidden_layers": sizes.layers, "rms_norm_eps": sizes.norm_eps, "model_type": "llama",
        }  # fmt: skip
        tower = sizes.tower
        eyes = {
            "num_attention_heads": tower.heads, "hidden_size": tower.width, "intermediate_size": tower.mlp,
            "num_hidden_layers": tower.layers, "image_size": tower.image_size, "patch_size": tower.patch,
            "model_type": "smolvlm_vision",
        }  # fmt: skip
        values = {"model_type": "smolvlm", "scale_factor": sizes.shuffle, "text_config": text, "vision_config": eyes}
        write_json(path / VLM / "config.json", values)


# -- statistics ------------------------------------------------------------------------------------------------------


def _write_processors(parts: Parts, base: Folder | None, path: Path) -> None:
    """Processors with the statistics of now, under names without a data set. Other steps of LeRobot's folder that the
    policy came from stay: they make tokens of the instruction."""
    now = parts.now
    tables = {STATE: _table(now.state), ACTION: _table(now.action)}
    state = {f"{f}.{name}": torch.tensor(numbers) for f, table in tables.items() for name, numbers in table.items()}
    features = {
        STATE: {"type": "STATE", "shape": [_state_width(parts)]},
        ACTION: {"type": "ACTION", "shape": [now.action.width or 0]},
    }
    eps = LEROBOT_EPS if now.action.openpi else now.action.eps
    for file, kind in ((PREPROCESSOR, NORMALIZER), (POSTPROCESSOR, "unnormalizer_processor")):
        name = file.removesuffix(".json")
        tensors = f"{name}_step_0_{kind}.safetensors"
        save_file(state, str(path / tensors))
        config = {"eps": eps, "features": features, "norm_map": _modes(parts)}
        step: Mapping[str, Any] = {"registry_name": kind, "config": config, "state_file": tensors}
        before = [] if base is None or base.openpi else _steps(base.path / file)
        steps = [step if one.get("registry_name") == kind else one for one in before]
        write_json(path / file, {"name": name, "steps": steps if step in steps else [step]})


def _steps(file: Path) -> list[Mapping[str, Any]]:
    return [dict(step) for step in read_json(file)["steps"]] if file.is_file() else []


def _state_width(parts: Parts) -> int:
    """Numbers of the state, as far as they are known."""
    now = parts.now
    told = now.env.obs["state"].shape[0] if now.env is not None else parts.model.sizes.state_width
    return now.state.width or told


def _table(scale: Scale) -> dict[str, tuple[float, ...]]:
    """All statistics of a feature. openpi's ε stands in none of LeRobot's formulas, so it becomes part of them."""
    table = dict(scale.note) or dict(zip(PAIRS[scale.kind], (scale.first, scale.second), strict=False))
    if scale.openpi and scale.kind != "identity":
        upper = PAIRS[scale.kind][1]
        table[upper] = tuple(number + scale.eps for number in scale.second)
    return table
