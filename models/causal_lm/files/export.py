"""Folders for other programs: the whole model, or its adapters alone (``embodied.tools.export``)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from embodied import instructions
from embodied.errors import ConfigError
from embodied.protocols import Examples, Exported, Policy
from embodied.types import Sampling

from ...shared.adapter_folder import check_adapters
from ...shared.exporting import LOSES_MEAN, check_dtype, check_plain, precision_of, shard_bytes
from ...shared.lora import save_adapter
from ...shared.precision import rounding_of
from ..parts import Parts
from .load import FORMATS
from .save import merged_weights, save_folder

KINDS = {
    "hf": "a Hugging Face folder: weights with adapters merged, tokenizer, generation_config.json",
    "adapter": "a peft folder: the LoRA adapters alone, with the tokenizer",
}
PROMPTS = ("12+34=", "7*8=?", "Hello!")  # prompts to measure with if no others are given
MOST_PROMPTS, MOST_TOKENS = 8, 64
TARGET = "embodied.models.causal_lm.build_policy"
# Keys that a folder's own files do not tell.
CARRIED = (
    *("max_prompt_tokens", "max_new_tokens", "truncation", "chat", "chat_template", "system_prompt", "enable_thinking"),
    *("add_generation_prompt", "value_head", "value_type"),
)

WHOLE_WITH_PICTURES = """\
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("FOLDER")
processor = AutoProcessor.from_pretrained("FOLDER")
# in embodied: model=causal_lm actor.model.model_path=FOLDER"""
WHOLE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
# in embodied: model=causal_lm actor.model.model_path=FOLDER"""
ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), "FOLDER")
# in embodied: model=causal_lm actor.model.model_path={base} actor.model.lora_path=FOLDER"""


def export(
    policy: Policy, parts: Parts, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes the policy in one of the export formats. See :meth:`embodied.protocols.Exports.export`.

    Args:
        parts: of the policy.
    """
    assert kind in KINDS
    check_dtype(dtype)
    if kind == "adapter":
        return _adapter(parts, folder, dtype, options)
    check_plain(options, "hf")
    known = [prompt for prompt in examples.prompts if parts.vision is None or instructions.PICTURE not in prompt]
    prompts = known[:MOST_PROMPTS] or PROMPTS
    asked = "bf16" if dtype == "auto" else dtype
    found = None if asked == "fp32" else rounding(policy, parts, FORMATS[asked], prompts)
    chosen = "fp32" if dtype == "auto" and found is not None and found.mean > LOSES_MEAN else asked
    save_folder(parts, folder, shard_bytes(options), FORMATS[chosen])
    notes = [] if parts.settings.system_prompt is None else [f"system prompt: {parts.settings.system_prompt!r}"]
    if found is not None:
        notes.append(str(found))
    if chosen != asked:
        notes.append(f"auto wrote fp32, as bf16 loses more than {LOSES_MEAN:g} nats on average")
    measured = {} if found is None else {asked: {"logprob_largest": found.largest, "logprob_mean": found.mean}}
    keys = _keys(parts, chosen)
    rounded = rounding_of(chosen, keys["precision"], parts.settings.precision)
    usage = WHOLE if parts.vision is None else WHOLE_WITH_PICTURES
    return Exported("transformers", usage, tuple(notes), chosen, keys, measured, rounded)


def _keys(parts: Parts, dtype: str) -> dict[str, Any]:
    """Returns the keys that build the policy from a whole folder (``Exported.model``)."""
    settings = parts.settings
    keys = {name: getattr(settings, name) for name in CARRIED}
    merged = {"precision": precision_of(settings, dtype), "is_lora": False}
    return {"_target_": TARGET, "model_path": ".", **keys, **merged}


def _adapter(parts: Parts, folder: Path, dtype: str, options: Mapping[str, Any]) -> Exported:
    settings, network = parts.settings, parts.network
    base = check_adapters(settings, dtype, options)
    trained = (name for name, p in network.named_parameters() if p.requires_grad)
    if whole := [f"network.{name}" for name in trained if ".lora_" not in name]:
        raise ConfigError(
            f"an adapter holds no layers that were trained in full, and these were: {', '.join(whole[:4])}",
            "write --format hf",
        )
    if parts.vision is not None:
        raise ConfigError(
            "the adapters are those of the language model inside a vision-language network, where peft's names of its "
            "layers are others",
            "write --format hf",
        )
    if settings.gguf_file is not None:
        raise ConfigError(
            f"the network below the adapters was read from {settings.gguf_file}, where peft cannot find it",
            "write --format hf",
        )
    save_adapter(network, folder, base)
    parts.tokenizer.tokenizer.save_pretrained(folder)
    return Exported("peft", ADAPTER.format(base=base), (f"the network below it: {base}",))


class Rounding(NamedTuple):
    """Change of log-probs when the merged weights are rounded."""

    dtype: torch.dtype
    largest: float  # nats
    mean: float  # mean size of the changes, nats
    tokens: int
    answers: int

    def __str__(self) -> str:
        return (
            f"rounding the merged weights to {str(self.dtype).removeprefix('torch.')} changes log-probs by at most "
            f"{self.largest:.2g} nats (mean {self.mean:.2g}), measured on the {self.tokens} tokens of {self.answers} "
            "greedy answers; --dtype fp32 changes none"
        )


@torch.no_grad()
def rounding(policy: Policy, parts: Parts, dtype: torch.dtype, prompts: Sequence[str]) -> Rounding:
    """Measures how rounding the merged weights changes log-probs, on the policy's greedy answers, at most
    :data:`MOST_TOKENS` tokens each."""
    told = {name: value.to(parts.device) for name, value in policy.encode_instructions(prompts).items()}
    noise = torch.zeros(len(prompts), *policy.spec.noise.shape, device=parts.device)
    greedy = Sampling(do_sample=False, max_new_tokens=min(MOST_TOKENS, parts.settings.max_new_tokens))
    records = {**told, **policy.act(told, noise, greedy).fields}
    network = _merged(parts)
    exact = torch.cat([*_logprobs(network, records)])
    for parameter in network.parameters():
        parameter.copy_(parameter.to(dtype))
    change = (torch.cat([*_logprobs(network, records)]) - exact).abs()
    return Rounding(dtype, change.max().item(), change.mean().item(), len(change), len(prompts))


def _merged(parts: Parts) -> Any:
    """The network in float32 with adapters merged, as transformers runs it."""
    config = copy.deepcopy(parts.network.config)
    network: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    network.load_state_dict(merged_weights(parts))
    return network.to(parts.device).eval()


def _logprobs(network: Any, records: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Log-probs of the tokens of each answer, float32 [length]."""
    names = ("prompt_ids", "prompt_length", "tokens", "length")
    for prompt, size, tokens, length in zip(*(records[name] for name in names), strict=True):
        ids = torch.cat([prompt[:size], tokens[:length]]).long()
        logits = network(input_ids=ids.unsqueeze(0), use_cache=False).logits[0, size - 1 : -1]
        yield logits.float().log_softmax(-1).gather(1, ids[size:].unsqueeze(1)).squeeze(1)
