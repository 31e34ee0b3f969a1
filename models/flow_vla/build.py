"""Builds a policy from settings: sizes → weights → adapters → trained parameters → number formats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from embodied.errors import CheckpointError

from ..shared.compiled import CompiledBlocks
from ..shared.files import FORMATS, read_safetensors
from ..shared.keys import bad
from ..shared.quantized import QuantizedLinear, replace_linears
from ..shared.trained import choose_trained
from ..shared.weights.finite import check_range
from .adapters import add_adapters
from .files.folder import Folder
from .files.load import load
from .files.statistics import read_scales
from .fit import IDENTITY
from .inputs.texts import ByteTokenizer, FileTokenizer, Tokenizer
from .network.heads import NoiseHead, NoisePolicyHead, ValueHead, feature_width
from .network.model import FlowVLA
from .network.sizes import Sizes
from .noise_policy import NoisePolicy
from .parts import Parts, Situation
from .policy import FlowVLAPolicy
from .sampling.steps import plain_steps, sde_steps
from .settings import EXPERT, STATE, TRUNK, Settings

BYTE_PROMPT = 160  # bytes of a prompt at most, with random weights


def build(settings: Settings) -> FlowVLAPolicy:
    """Builds the policy. See :func:`embodied.models.flow_vla.build_policy`."""
    folder = None if settings.model_path is None else Folder.open(settings.model_path)
    tokenizer = _tokenizer(settings, folder)
    model = _random(settings, tokenizer) if folder is None else _read(settings, folder)
    settings.check_horizon(model.sizes.horizon)
    settings.check_state(model.sizes.state_place)
    heads = _heads(settings, model.sizes, None if folder is None else folder.path)
    _prepare(model, heads, settings)
    level = settings.noise_level if settings.noise_method == "flow_sde" else None
    steps = plain_steps(settings.num_steps) if level is None else sde_steps(settings.num_steps, level)
    most = settings.max_prompt_length or (BYTE_PROMPT if folder is None else folder.prompt_tokens)
    source, places = (None, None) if folder is None else (folder.path, folder.cameras)
    now = _situation(settings, folder)
    kind = NoisePolicy if settings.steers else FlowVLAPolicy
    return kind(Parts(model, *heads, tokenizer, settings, steps, most, source, places, now, _compiled(model, settings)))


def _compiled(model: FlowVLA, settings: Settings) -> CompiledBlocks | None:
    if not settings.compiles:
        return None
    names = FlowVLAPolicy._no_split_modules
    return CompiledBlocks(model, names, settings.torch_compile_backend, on=settings.torch_compile)


def _situation(settings: Settings, folder: Folder | None) -> Situation:
    if folder is None:
        return Situation(IDENTITY, IDENTITY)
    scales = read_scales(folder, settings.statistics_key)
    return Situation(scales.state, scales.action, scales.name)


def _tokenizer(settings: Settings, folder: Folder | None) -> Tokenizer | None:
    path = None if folder is None else folder.tokenizer
    if settings.tokenizer_path is not None:
        path = Path(settings.tokenizer_path).expanduser()
    if path is not None:
        return FileTokenizer(path)
    return ByteTokenizer() if folder is None else None


def _random(settings: Settings, tokenizer: Tokenizer | None) -> FlowVLA:
    assert tokenizer is not None
    sizes = settings.random_sizes(tokenizer.vocab)
    if settings.image_size % settings.patch_size:
        reason = f"patches of {settings.patch_size} pixels do not fill it"
        raise bad("image_size", settings.image_size, reason, f"set a multiple of {settings.patch_size}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = FlowVLA(sizes)
        nn.init.normal_(model.embed_tokens.weight, std=sizes.trunk.width**-0.5)  # it is multiplied by √width
        nn.init.normal_(model.vision.embeddings.position_embedding.weight, std=0.02)
    return model


def _read(settings: Settings, folder: Folder) -> FlowVLA:
    if settings.layout not in (None, folder.layout):
        raise bad(
            "layout", settings.layout, f"{folder.path} is {folder.layout}", "remove the key, or change model_path"
        )
    if settings.action_horizon not in (None, folder.horizon):
        reason = f"{folder.path} was trained with chunks of {folder.horizon}"
        raise bad("action_horizon", settings.action_horizon, reason, "remove the key")
    return load(folder, folder.sizes(settings.vision_heads, settings.head_dim, settings.reads_out)).model


class Heads(NamedTuple):
    """Small heads beside the network, those that the settings ask for."""

    value_head: ValueHead | None
    noise_head: NoiseHead | None
    noise_policy: NoisePolicyHead | None

    def there(self) -> dict[str, nn.Module]:
        """Returns those that there are, by name."""
        return {name: head for name, head in self._asdict().items() if head is not None}


def _heads(settings: Settings, sizes: Sizes, folder: Path | None) -> Heads:
    feature, method = feature_width(sizes, settings.num_action_chunks), settings.noise_method
    value = noise = steering = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed + 1)
        if settings.value_head:
            value = ValueHead(feature if settings.steers else sizes.trunk.width, settings.values)
        if method == "flow_noise":
            noise = NoiseHead(sizes.expert.width, sizes.action_width, *settings.noise_range)
        if settings.steers:
            steering = NoisePolicyHead(feature, settings.num_action_chunks, sizes.action_width)
    heads = Heads(value, noise, steering)
    for name, head in heads.there().items():
        if folder is not None and (file := folder / f"{name}.safetensors").is_file():
            _fill(head, file)
    return heads


def _fill(head: nn.Module, file: Path) -> None:
    """Fills a head from a file. Raises CheckpointError if it is of other sizes."""
    state = dict(read_safetensors(file))
    shapes, wanted = ({n: tuple(t.shape) for n, t in found.items()} for found in (state, head.state_dict()))
    if shapes != wanted:
        raise CheckpointError(
            f"{file} is of other sizes: {sorted(shapes.items())}, expected {sorted(wanted.items())}",
            "set actor.model.num_action_chunks, value_type and noise_method as they were when it was saved, or remove "
            "the file to begin with a new head",
        )
    head.load_state_dict(state)


def _prepare(model: FlowVLA, heads: Heads, settings: Settings) -> None:
    """Adds adapters; chooses what is trained, number formats and recomputation."""
    if settings.quantization_bit is not None:
        for layer in model.layers:
            replace_linears(layer.trunk, settings.quantization_bit, QuantizedLinear.quantize)  # type: ignore[arg-type]
    if settings.is_lora:
        add_adapters(model, settings)
    weights = nn.ModuleDict({"model": model, **heads.there()})
    state_first = model.sizes.state_place == "prefix" and not settings.train_state_proj
    if settings.steers:
        model.requires_grad_(False)
    asked = settings
    if settings.quantization_bit is not None and not settings.is_lora:  # codes are never chosen, also not to be frozen
        asked = replace(settings, freeze_pattern=[*settings.freeze_patterns, TRUNK.pattern])
    choose_trained(
        nn.ModuleDict(heads.there()) if settings.steers else weights, asked,
        ("value_head", *EXPERT, *(() if state_first else ("state_proj",))), prefix="model.",
    )  # fmt: skip
    for name, parameter in weights.named_parameters():
        in_front = TRUNK.match(name) or (state_first and STATE.match(name))
        if settings.train_expert_only and in_front and ".lora_" not in name:
            _check_unasked(name, parameter, settings)
            parameter.requires_grad_(False)
        if not parameter.is_floating_point():
            continue  # codes of frozen weights
        dtype = torch.float32 if parameter.requires_grad else FORMATS[settings.precision]
        if dtype == torch.float16:
            check_range(parameter, name, dtype)
        parameter.data = parameter.data.to(dtype)
    _enable_checkpointing(model, settings)


def _check_unasked(name: str, parameter: nn.Parameter, settings: Settings) -> None:
    """Refuses to freeze what a key names for training: with adapters nothing else of the trunk is trained."""
    if settings.is_lora and parameter.requires_grad:
        reason = f"{name} is to be trained (lora_modules_to_save or trainable_map)"
        raise bad("train_expert_only", True, reason, "set it to false, or leave that part out")


def _enable_checkpointing(model: FlowVLA, settings: Settings) -> None:
    if settings.gradient_checkpointing:
        for layer in (*model.layers, *model.vision.encoder.layers):
            layer.gradient_checkpointing = True
