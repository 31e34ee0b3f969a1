"""Builds a policy from settings: tokenizer and network → adapters → trained parameters → number formats."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from embodied.errors import CheckpointError
from embodied.lib.files import PACKAGE, check_export

from ..shared.files import read_safetensors
from ..shared.keys import bad
from ..shared.quantized import QuantizedLinear, replace_linears
from ..shared.trained import choose_trained
from ..shared.weights.stored import check_no_adapter
from .files.load import FORMATS, end_tokens, load_network, load_tokenizer
from .files.save import VALUE_HEAD_FILE
from .files.source import located
from .network.adapters import add_adapters
from .network.context_parallel import check_heads
from .network.trunk import Trunk, check_against_transformers
from .network.value_head import ValueHead
from .parts import Parts, Situation
from .policy import CausalLMPolicy
from .settings import Settings
from .text.tokenizer import TextTokenizer


def build(settings: Settings) -> CausalLMPolicy:
    """Builds the policy on the CPU. See :func:`embodied.models.causal_lm.build_policy`."""
    _check_folder(settings)
    settings = located(settings)
    if settings.model_path is not None and settings.gguf_file is None:
        check_no_adapter(Path(settings.model_path).expanduser(), "actor.model.")
    tokenizer = load_tokenizer(settings)
    network, vision = load_network(settings, tokenizer)
    pictures = None
    if vision is not None:
        pictures = vision.pictures
        check_alone(settings)
        vision.check()
    check_against_transformers(network, Trunk(network))
    check_heads(settings.context_parallel_size, network.config.num_attention_heads)
    if settings.quantization_bit is not None:
        replace_linears(network.model.layers, settings.quantization_bit, QuantizedLinear.quantize)
    parts = Parts(
        network,
        Trunk(network),
        TextTokenizer(tokenizer, settings, end_tokens(network, tokenizer, settings.ends), pictures),
        _value_head(settings, network.config.hidden_size) if settings.value_head else None,
        vision,
        settings,
        Situation(max_bytes=4 * settings.max_new_tokens),  # limit until an env is bound
    )
    policy = CausalLMPolicy(parts)
    if settings.is_lora:
        add_adapters(network, settings)
    _choose_trained(parts)
    _set_precision(policy, settings.precision)
    if settings.gradient_checkpointing:
        _enable_checkpointing(network)
    policy.find_training_modules()
    return policy


def _choose_trained(parts: Parts) -> None:
    """Choose among the weights of network and value head. What reads pictures is left out, so no pattern trains it."""
    modules = {"network": parts.network} | ({} if parts.value_head is None else {"value_head": parts.value_head})
    hint = " (tied weights bear the name embed_tokens)"
    choose_trained(nn.ModuleDict(modules), parts.settings, ("value_head",), prefix="network.", hint=hint)


def check_alone(settings: Settings) -> None:
    """Raises ConfigError if a vision-language model is to compute each text with several processes: they would need
    each other's pictures."""
    if settings.context_parallel_size > 1:
        reason = "the network reads pictures, whose features are put into whole prompts"
        raise bad("context_parallel_size", settings.context_parallel_size, reason, "set it to 1")


def _check_folder(settings: Settings) -> None:
    """Raises CheckpointError if the network's folder has links that leave it, or was damaged since it was exported."""
    for path in dict.fromkeys((settings.model_path, settings.lora_path)):
        if path is not None and not path.startswith(PACKAGE) and (folder := Path(path).expanduser()).is_dir():
            check_export(folder)


def _value_head(settings: Settings, width: int) -> ValueHead:
    head = ValueHead(width)
    file = Path(settings.model_path or "").expanduser() / VALUE_HEAD_FILE
    if settings.model_path is None or not file.is_file():
        return head
    found = dict(read_safetensors(file))
    if {name: tensor.shape for name, tensor in found.items()} != {n: p.shape for n, p in head.named_parameters()}:
        raise CheckpointError(f"{file} is not the value head of a network of width {width}", "remove the file")
    head.load_state_dict(found)
    return head


def _set_precision(policy: nn.Module, precision: str) -> None:
    """Put frozen weights in the arithmetic's format. Trained ones stay float32: 16 bits would round updates away. Codes
    stay codes."""
    for parameter in filter(torch.is_floating_point, policy.parameters()):
        parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else FORMATS[precision])


def _enable_checkpointing(network: Any) -> None:
    """Set it on the layers: transformers renamed its own switch within version 5. A layer recomputes only where its own
    ``training`` is set; that of what it consists of stays, so nothing is dropped out."""
    for layer in network.model.layers:
        layer.training = True
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
