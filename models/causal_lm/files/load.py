"""The network and its tokenizer: from a Hugging Face folder, from a GGUF file in one, or made at random."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from embodied.errors import CheckpointError, UnknownKeyError, did_you_mean, unknown_name
from embodied.lib.files import check_content

from ...shared.files import FORMATS as FORMATS
from ...shared.files import read_json
from ...shared.keys import bad
from ...shared.quantized import quantized_layers
from ...shared.weights.finite import check_numbers
from ..network.vision import Vision, taken_apart
from ..settings import Settings
from ..text.characters import character_tokenizer
from ..text.pictures import KINDS, REFUSED, Pictures, kind_of, processors_template
from .own_code import may_run, network_code, own_tokenizer, tokenizer_code
from .weights import Weights, check_jsons, check_tied

# Sizes of a network that is made here, where override_config names no others: 0.34 M parameters in its layers.
SMALL = {
    "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, StrictDataclassError, SafetensorError,
    IndexError, struct.error,  # raised while a GGUF file is read
)  # fmt: skip


def load_tokenizer(settings: Settings) -> Any:
    """Loads the tokenizer of ``tokenizer_path`` or ``model_path``, or makes one of characters, and sets its padding.

    Raises:
        CheckpointError: the folder has none that can be read.
        ConfigError: ``pad_token`` is no token.
    """
    tokenizer = _tokenizer_of(settings)
    if settings.padding_side is not None:
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = settings.padding_side
    if settings.pad_token is not None:
        if not 0 <= settings.pad_token < len(tokenizer):
            reason = f"the tokenizer has {len(tokenizer)} tokens"
            raise bad("pad_token", settings.pad_token, reason, "set rollout.padding to an id below that")
        tokenizer.pad_token_id = settings.pad_token
    return tokenizer


def _tokenizer_of(settings: Settings) -> Any:
    path = settings.tokenizer_path or settings.model_path
    if path is None:
        return character_tokenizer(settings.alphabet)
    from_file = settings.gguf_file is not None and settings.tokenizer_path is None
    keys: dict[str, Any] = {"gguf_file": settings.gguf_file} if from_file else {}
    folder = folder_of(path, "actor.model.tokenizer_path" if settings.tokenizer_path else "actor.model.model_path")
    trusted = settings.tokenizer_trust_remote_code, "actor.tokenizer.trust_remote_code"
    found = read_tokenizer(folder, "actor.model.tokenizer_path", trusted, **keys)
    if found.chat_template is None:
        found.chat_template = processors_template(folder)
    return found


def read_tokenizer(folder: Path, key: str, trusted: tuple[bool, str], **keys: Any) -> Any:
    """Reads the tokenizer in a folder.

    Args:
        key: of the configuration that may name another folder.
        trusted: whether code of the folder may be run, and the key that says so.
        keys: arguments of ``from_pretrained``.

    Raises:
        CheckpointError: the folder has none that can be read, or needs code that may not be run.
    """
    if keys:
        check_content(folder / keys["gguf_file"])
    else:
        check_jsons(folder)
    code = tokenizer_code(folder)
    runs = may_run(code, folder, *trusted)
    kind = PreTrainedTokenizerFast if keys else _tokenizer_class(folder)  # a GGUF file says itself what to build
    try:
        if runs and code is not None:
            return own_tokenizer(code, folder)
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **keys)
    except UNREADABLE as error:
        raise CheckpointError(
            f"{folder} has no tokenizer that can be read: {short(error)}",
            f"copy tokenizer.json and tokenizer_config.json into it, or set {key}",
        ) from error


def _tokenizer_class(folder: Path) -> Any:
    """The class that reads the folder. ``AutoTokenizer`` goes by config.json first: beside a Qwen network it would read
    any tokenizer as one of Qwen, and change what it does to spaces."""
    file = folder / "tokenizer_config.json"
    said = read_json(file).get("tokenizer_class") if file.is_file() else None
    return PreTrainedTokenizerFast if said in ("TokenizersBackend", "PreTrainedTokenizerFast") else AutoTokenizer


def load_network(settings: Settings, tokenizer: Any) -> tuple[Any, Vision | None]:
    """Loads the network on the CPU, in the number format of its arithmetic if it stays frozen, else in float32. Of a
    vision-language network this is the language model; beside it stands the part that reads pictures.

    Raises:
        ConfigError: ``override_config`` has an unknown field or an impossible value.
        CheckpointError: the folder is missing or damaged, or its vocabulary is smaller than the tokenizer's.
    """
    # Frozen weights never exist in float32. The trained lora_modules_to_save therefore start rounded.
    dtype = FORMATS[settings.precision] if settings.is_lora else torch.float32
    network, vision = (
        (_made(settings, tokenizer, dtype), None)
        if settings.model_path is None
        else _loaded(settings, tokenizer, dtype)
    )
    for key, wanted in settings.sizes.items():
        if (found := getattr(network.config, key)) != wanted:
            raise bad(key, wanted, f"the checkpoint's is {found}", "remove the key, which the checkpoint says itself")
    if len(tokenizer) > network.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer)} tokens, the network's vocabulary {network.config.vocab_size}",
            "use the tokenizer of the checkpoint",
        )
    return network.eval(), vision


def full_weights(network: nn.Module, settings: Settings, tokenizer: Any) -> dict[str, Tensor]:
    """Reads in full the base weights that ``network`` holds in 8 or 4 bits; by their names without adapters."""
    names = quantized_layers(network)
    if not names:
        return {}
    base, _ = load_network(replace(settings, quantization_bit=None), tokenizer)
    own = (name.removesuffix(".base_layer") for name in names)
    return {f"{name}.weight": base.get_parameter(f"{name}.weight").detach() for name in own}


def _made(settings: Settings, tokenizer: Any, dtype: torch.dtype) -> Any:
    sizes = {**settings.override_config, **settings.sizes}
    kind = sizes.pop("model_type", "llama")
    try:
        known = AutoConfig.for_model(kind).to_dict()
    except ValueError:
        raise unknown_name("model_type", str(kind), ["llama", "qwen2", "qwen3", "gemma"], f"{KEY}.model_type") from None
    for key in sizes:
        if key not in known:
            raise UnknownKeyError(
                f"unknown key '{KEY}.{key}'.{did_you_mean(key, known)}", f"see a config.json of {kind}"
            )
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    wanted = {"vocab_size": len(tokenizer), **ids, **SMALL, **sizes}
    wanted.setdefault("num_key_value_heads", wanted["num_attention_heads"])
    wanted.setdefault("head_dim", wanted["hidden_size"] // wanted["num_attention_heads"])
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            config = AutoConfig.for_model(kind, **wanted)
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError, StrictDataclassError) as error:
        raise bad("override_config", sizes, short(error), "choose sizes that fit together") from error


def _loaded(settings: Settings, tokenizer: Any, dtype: torch.dtype) -> tuple[Any, Vision | None]:
    assert settings.model_path is not None
    folder = folder_of(settings.model_path, "actor.model.model_path")
    if settings.gguf_file:
        return _of_gguf(settings, tokenizer, folder, dtype), None
    weights = Weights.of(folder, "actor.model.")
    code = network_code(folder, "AutoModelForCausalLM")
    runs = may_run(code, folder, settings.trust_remote_code, "actor.model.trust_remote_code")
    pictures, vision = Pictures.of(folder), None
    maker = AutoModelForCausalLM if pictures is None else AutoModelForImageTextToText
    try:
        found, loaded = weights.load(maker, runs, settings.override_config, dtype)
        weights.check_loaded(loaded, found.config)
        if pictures is None and found.config.get_text_config() is not found.config:
            raise _reads_pictures(folder, found.config.model_type)
        if pictures is not None:
            found, vision = taken_apart(folder, pictures, found)
    except UNREADABLE as error:
        if (kind := kind_of(folder)) in REFUSED:
            raise _reads_pictures(folder, kind) from error
        fix = "give a folder with config.json and model.safetensors (model.safetensors.index.json) of a causal LM"
        raise CheckpointError(f"{folder} cannot be loaded: {short(error)}", fix) from error
    weights.check_numbers({**_by_name(found), **({} if vision is None else _by_name(vision.tower, "model."))})
    check_tied(found, folder)
    return found, vision


def _reads_pictures(folder: Path, kind: str) -> CheckpointError:
    why = REFUSED.get(kind, "how it does so is not known here")
    return CheckpointError(
        f"{folder} is a network of {kind} that reads pictures, which cannot be run here: {why}",
        f"choose a checkpoint of {', '.join(KINDS)}, or of a language model alone",
    )


def _by_name(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    return {f"{prefix}{name}": parameter for name, parameter in module.named_parameters()}


def _of_gguf(settings: Settings, tokenizer: Any, folder: Path, dtype: torch.dtype) -> Any:
    assert settings.gguf_file is not None
    file = folder / settings.gguf_file
    check_content(file)
    keys: dict[str, Any] = {"gguf_file": settings.gguf_file}
    try:  # the configuration is passed on: else transformers parses the file twice, with its vocabulary
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **keys)
        if _has_no_memory():
            return _fresh(AutoModelForCausalLM.from_config(config, dtype=dtype), tokenizer)
        found, loaded = cast(Any, AutoModelForCausalLM).from_pretrained(
            folder, local_files_only=True, dtype=dtype, output_loading_info=True, trust_remote_code=False,
            config=config, **keys, **settings.override_config,
        )  # fmt: skip
    except UNREADABLE as error:
        fix = "download or copy the file again, or give another network"
        raise CheckpointError(f"{file} cannot be loaded: {short(error)}", fix) from error
    if missing := sorted(loaded["missing_keys"]):  # transformers would go on with random numbers
        raise CheckpointError(f"{file} lacks {len(missing)} weights: {', '.join(missing[:4])}", "use another GGUF file")
    for name, parameter in found.named_parameters():
        check_numbers(parameter, name, file)
    return _fresh(found, tokenizer)


def _has_no_memory() -> bool:
    """Returns whether tensors have sizes alone, as where the memory of a large policy is counted. transformers cannot
    fill these from GGUF."""
    return isinstance(torch.empty(0), FakeTensor)


def _fresh(network: nn.Module, tokenizer: Any) -> Any:
    """A network of the same configuration and weights: transformers refuses to save one that was read from GGUF. Its
    special tokens are the tokenizer's: those of the configuration are the architecture's usual ones."""
    config: Any = network.config
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(tokenizer, name))
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn at random
        fresh = AutoModelForCausalLM.from_config(config, dtype=next(network.parameters()).dtype)
    fresh.load_state_dict(network.state_dict())
    return fresh


def end_tokens(network: Any, tokenizer: Any, configured: Sequence[int] | None = None) -> list[int]:
    """Determines the ids of tokens that end a text: those that are given, else the tokenizer's first, then those of the
    checkpoint's generation_config.json.

    Raises:
        CheckpointError: there is none.
        ConfigError: one that is given is no token.
    """
    if configured is not None:
        if (most := network.config.vocab_size) <= max(configured):
            raise bad(
                "end_tokens", list(configured), f"the network has {most} tokens", "set rollout.eos to ids below that"
            )
        return list(configured)
    generation, config = network.generation_config, network.config
    theirs = [*_listed(generation.eos_token_id), *_listed(getattr(config, "eos_token_id", None))]
    configured = [tokenizer.eos_token_id, *theirs]
    ends = list(dict.fromkeys(index for index in configured if index is not None and index < config.vocab_size))
    if not ends:
        raise CheckpointError("no token ends a text", "give the tokenizer an eos_token in tokenizer_config.json")
    return ends


def _listed(ids: int | list[int] | None) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def folder_of(path: str, key: str) -> Path:
    """Resolves a configured path to a folder. Raises :class:`CheckpointError`, naming ``key``, if there is none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise CheckpointError(
            f"no folder {folder}",
            f"set {key} to a Hugging Face folder on this machine; nothing is downloaded",
        )
    return folder


def short(error: Exception) -> str:
    """Returns the first line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:200]


KEY = "actor.model.override_config"
