"""Gives the policy to an inference engine, and takes its results (:class:`embodied.protocols.ServedByEngine`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from embodied.errors import ConfigError
from embodied.protocols import EngineFacts, EngineText
from embodied.types import Decision, Sampling

from ..shared.bits import KEY
from ..shared.keys import bad
from ..shared.lora import merged_tensors
from .decoding.lane_decoding import answer_bytes
from .decoding.prompts import prompts_of
from .files.load import FORMATS
from .files.own_code import is_own
from .files.save import save_config
from .parts import Parts


def facts(parts: Parts) -> EngineFacts:
    """Returns the inference engine's number format, limits and ends.

    Raises:
        ConfigError: the policy learns on layers of 8 or 4 bits, and the engine would answer with others; or its network
            is of a class that came with the checkpoint, or reads pictures.
    """
    settings = parts.settings
    if settings.quantization_bit is not None:
        reason = "an inference engine gets the weights in 16 bits or more, so its log-probs would be another policy's"
        raise bad(
            KEY,
            settings.quantization_bit,
            reason,
            "set it to null, or let the policy write itself (no rollout.backend)",
        )
    if is_own(parts.network) or is_own(parts.tokenizer.tokenizer):
        reason = "the checkpoint's own code is run, which an inference engine does not have"
        raise bad("trust_remote_code", True, reason, "let the policy write itself: rollout.backend=native")
    if parts.vision is not None:
        raise ConfigError(
            "rollout.backend names an inference engine, and the network reads pictures: an engine is given texts alone",
            "let the policy write itself: rollout.backend=native",
        )
    dtype = str(FORMATS[settings.precision]).removeprefix("torch.")
    most = settings.max_prompt_tokens + settings.max_new_tokens
    return EngineFacts(dtype, most, settings.max_new_tokens, parts.tokenizer.ends)


def write_folder(parts: Parts, folder: Path) -> None:
    """Writes configuration and tokenizer for an inference engine."""
    folder.mkdir(parents=True, exist_ok=True)
    save_config(parts, folder)


def weights(parts: Parts) -> Iterator[tuple[str, Tensor]]:
    """Yields the merged weights for an inference engine, each rounded once to the arithmetic's format; of tied ones the
    embedding alone."""
    dtype, tied = FORMATS[parts.settings.precision], parts.network.config.tie_word_embeddings
    with torch.no_grad():
        for name, tensor in merged_tensors(parts.network):
            if not (tied and name == "lm_head.weight"):
                yield name, tensor.to(dtype)


def prompts(obs: Mapping[str, Tensor]) -> list[list[int]]:
    """Reads the prompts' tokens from an observation, without padding."""
    return [list(prompt.ids) for prompt in prompts_of(obs)]


def decision(parts: Parts, texts: Sequence[EngineText], sampling: Sampling) -> Decision:
    """Makes the decisions of texts that an inference engine wrote."""
    n, tokenizer = parts.settings.max_new_tokens, parts.tokenizer
    tokens, logprobs = torch.zeros(len(texts), n, dtype=torch.int32), torch.zeros(len(texts), n)
    sizes = [stopped(parts, text.tokens, sampling) for text in texts]
    for row, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        tokens[row, :size] = torch.tensor(text.tokens[:size], dtype=torch.int32)
        logprobs[row, :size] = torch.tensor(text.logprobs[:size])
    said = (tokenizer.answer(text.tokens[:size], sampling) for text, size in zip(texts, sizes, strict=True))
    return Decision(
        {
            "tokens": tokens,
            "length": torch.tensor(sizes, dtype=torch.int32),
            "actions": torch.from_numpy(answer_bytes(said, len(texts), parts.now.max_bytes)),
            "logprobs": logprobs,
        }
    )


def stopped(parts: Parts, tokens: Sequence[int], sampling: Sampling) -> int:
    """Returns how many tokens of a text are kept when it ends with the first that completes one of
    ``sampling.stop``."""
    if not sampling.stop:
        return len(tokens)
    may, tokenizer = parts.tokenizer.may_complete(sampling.stop), parts.tokenizer
    for made in range(1, len(tokens)):
        last = tokens[made - 1]
        if last < len(may) and may[last] and tokenizer.completes(tokens[:made], sampling.stop):
            return made
    return len(tokens)
