"""Builds a policy from settings: sizes → weights → adapters → trained parameters → number formats."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from embodied.errors import CheckpointError
from embodied.lib.files import check_export, reading

from ..shared.compiled import CompiledBlocks
from ..shared.files import FORMATS, read_safetensors
from ..shared.keys import bad
from ..shared.lora import inject, load_adapter
from ..shared.trained import choose_trained, lora_config
from ..shared.weights.adapter import MERGE_OFT
from ..shared.weights.finite import check_range
from .files.checkpoint import VALUE_HEAD_FILE, Folder, adapter_folder, ignored, load_exact
from .files.load import build_network
from .network.config import NetConfig
from .network.initialize import initialize
from .network.model import OpenVLAOFT
from .network.value_head import ValueHead
from .parts import Parts, Situation
from .policy import OpenVLAOFTPolicy
from .settings import Settings
from .tokens.action_tokenizer import ENTRIES, ActionTokenizer
from .tokens.normalization import Normalization, Statistics, action_block
from .tokens.processing import PixelProcessor
from .tokens.statistics import check_constant
from .tokens.tokenizer import EMBEDDED, PromptTokenizer

TRAINED_IN_FULL = ("proprio_projector", "scale", "shift")  # start from scratch (FiLM's too), so they get no adapters


def build(settings: Settings, device: torch.device | str = "cpu") -> OpenVLAOFTPolicy:
    """Builds the policy. See :func:`embodied.models.openvla_oft.build_policy`.

    Args:
        device: where random weights are drawn and weights of 8 or 4 bits are made: 7B of them then need no host memory.
            The caller still moves the whole policy there (``policy.to(device)``).
    """
    folder = None if settings.model_path is None else Folder.open(settings.model_path)
    net = _net_config(settings, folder)
    tokenizer = PromptTokenizer(EMBEDDED if folder is None else folder.tokenizer, net.vocab_size)
    model = build_network(settings, net, tokenizer.eos_id, folder, device)
    colours = folder.pixel_statistics if folder else None
    pixels = PixelProcessor(net.image_size, settings.center_crop, colours, settings.image_preset)
    statistics = _statistics(settings, net, folder)
    value_head = _value_head(settings, net, folder)
    _prepare(model, value_head, settings)
    now = Situation(statistics, statistics.action, _is_open(settings, folder))
    words = ActionTokenizer(net.vocab_size)
    policy = OpenVLAOFTPolicy(
        Parts(model, tokenizer, words, pixels, value_head, settings, _compiled(model, settings), now)
    )
    policy.find_training_modules()
    return policy


def _prepare(model: OpenVLAOFT, value_head: ValueHead | None, settings: Settings) -> None:
    """Add adapters; choose what is trained, number formats and recomputation."""
    if settings.is_lora:
        _add_adapters(model, settings)
    weights = nn.ModuleDict({"model": model} if value_head is None else {"model": model, "value_head": value_head})
    choose_trained(weights, settings, ("value_head", *TRAINED_IN_FULL), prefix="model.")
    _set_precision(weights, settings.precision)
    if settings.gradient_checkpointing:
        _enable_checkpointing(model)


def _compiled(model: OpenVLAOFT, settings: Settings) -> CompiledBlocks | None:
    if not settings.compiles:
        return None
    names, backend = OpenVLAOFTPolicy._no_split_modules, settings.torch_compile_backend
    return CompiledBlocks(model, names, backend, on=settings.torch_compile)


def _net_config(settings: Settings, folder: Folder | None) -> NetConfig:
    if folder is None:
        return settings.net_config()
    for key in ("center_crop", "image_preset", "policy_setup"):
        said = folder.policy.get(key, getattr(settings, key))
        if said != getattr(settings, key):
            raise bad(key, getattr(settings, key), f"{folder.path}/policy.json says {said!r}", f"set it to {said!r}")
    return settings.net_config(folder.net_config(settings.tower_hints), with_conventions=bool(folder.policy))


def _is_open(settings: Settings, folder: Folder | None) -> bool:
    """Returns whether the checkpoint's attention mask is still unknown and the first observations must settle it."""
    if folder is None or settings.attention != "auto" or settings.decoding == "autoregressive":
        return False
    return folder.policy.get("attention_open", "net" not in folder.policy)


def _value_head(settings: Settings, net: NetConfig, folder: Folder | None) -> ValueHead | None:
    if not settings.value_head:
        return None
    with torch.device("meta"):
        head = ValueHead(net.hidden_size, settings.values)
    if folder is not None and (folder.path / VALUE_HEAD_FILE).is_file():
        file = folder.path / VALUE_HEAD_FILE
        load_exact(head, read_safetensors(file), [], source=file)
    else:
        head.to_empty(device="cpu")
        initialize(head, net, settings.seed, prefix="value_head.")
    return head


def _statistics(settings: Settings, net: NetConfig, folder: Folder | None) -> Statistics:
    if folder is None:
        if settings.unnorm_key is not None:
            reason = "there is no checkpoint with dataset statistics"
            raise bad("unnorm_key", settings.unnorm_key, reason, "set it to null, or set actor.model.model_path")
        return Statistics(normalization=Normalization.asked(settings.action_normalization))
    name, values = folder.statistics(settings.unnorm_key)
    file = folder.statistics_file(name)
    with reading(file, f"the statistics '{name}' cannot be read"):
        key, action = settings.action_normalization, action_block(name, values)
        try:
            normalization = Normalization.of_checkpoint(folder, action, key, net)
            found = Statistics.from_block(name, values, net, normalization)
            check_constant(action, "action", ENTRIES[normalization.kind])
        except CheckpointError as error:
            raise CheckpointError(f"{file}, '{name}': {error.message}", error.remedy) from error
    return found


def _add_adapters(model: OpenVLAOFT, settings: Settings) -> None:
    whole = r"proprio_projector\..*" if model.net.proprio_dim else None  # the projector is trained in full
    config = lora_config(settings, settings.lora_targets, exclude=whole)
    inject(model, config, settings.seed, cast_input=settings.precision == "fp32")
    if settings.lora_path is not None:
        check_export(folder := adapter_folder(settings.lora_path))
        load_adapter(model, folder, ignored(model.net), MERGE_OFT)


def _set_precision(weights: nn.Module, precision: str) -> None:
    """Put frozen weights in the arithmetic's format. Trained ones stay float32: 16 bits would round updates away. Codes
    stay codes."""
    for name, parameter in weights.named_parameters():
        if parameter.is_floating_point():
            dtype = torch.float32 if parameter.requires_grad else FORMATS[precision]
            if dtype == torch.float16:
                check_range(parameter, name, dtype)
            parameter.data = parameter.data.to(dtype)


def _enable_checkpointing(model: OpenVLAOFT) -> None:
    """Set it on the layers: transformers renamed its own switch within version 5."""
    layers: Any = model.language_model.model.layers
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    for tower in (model.vision_backbone.featurizer, model.vision_backbone.fused_featurizer):
        tower.gradient_checkpointing = True
