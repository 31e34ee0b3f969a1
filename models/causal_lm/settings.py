"""Keys under ``actor.model`` that this model takes: their defaults and their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from embodied.errors import unknown_name

from ..shared.bits import check_quantization
from ..shared.keys import AdapterKeys, bad, check_known

# Of a tokenizer that is built here: digits, lower-case letters, and what sums and sentences need.
CHARACTERS = " \n0123456789+-*/=()<>.,:;?!'abcdefghijklmnopqrstuvwxyz"
ASCII = "\n" + "".join(map(chr, range(32, 127)))  # meaning of ``characters: ascii``


@dataclass(frozen=True)
class Settings(AdapterKeys):
    """Keyword arguments of :func:`build_policy`, checked."""

    # Hugging Face folder on this machine, or package:NAME of an installed package that brings the weights along; null =
    # a small network at random
    model_path: str | None = None
    model_revision: str | None = None  # revision of a hub checkpoint; nothing is downloaded, so it has to be null
    gguf_file: str | None = None  # name of a GGUF file in that folder, if the weights stand in one (pip install gguf)
    tokenizer_path: str | None = None  # folder of the tokenizer; null = model_path
    # fields of the network's config.json. Without model_path they are the sizes of a Llama, or of the architecture that
    # ``model_type`` names
    override_config: Mapping[str, Any] = field(default_factory=dict)
    # wins over override_config.hidden_size; a checkpoint has to have it
    hidden_size: int | None = None
    vocab_size: int | None = None  # the same
    # ids of tokens that end a text, in place of the tokenizer's; the first is appended to demonstrated answers
    end_tokens: int | Sequence[int] | None = None
    attn_implementation: str = "sdpa"  # torch's, over texts that are laid end to end; there is no other
    # without model_path: each is a token of the tokenizer that is built here; ascii = the line break and all that ASCII
    # can print. Another one in a prompt or in a demonstrated answer is refused
    characters: str = CHARACTERS
    seed: int = 0  # seed of random initialisation: network, adapters, value head
    # format of arithmetic and frozen weights: fp32, bf16 or fp16; trained weights are always float32. With fp16 the
    # trainer scales the loss (actor.grad_scaler)
    precision: str = "fp32"
    max_prompt_tokens: int = 1024  # most tokens of a prompt, with its chat template
    max_new_tokens: int = 256  # most tokens of a response; records have room for so many
    truncation: str = "error"  # treatment of a longer prompt: error, or left or right = cut it on that side
    chat: str = "auto"  # use the chat template: always, never, or auto = if the tokenizer has one
    chat_template: str | None = None  # file with a Jinja template in place of the tokenizer's
    system_prompt: str | None = None  # first message of each conversation that has no system message
    enable_thinking: bool | None = None  # handed to the chat template, which may know it; null = not handed over
    add_generation_prompt: bool = True  # a prompt by the chat template ends with what opens the answer
    # a conversation whose last message is the assistant's is continued within it
    continue_final_message: bool = False
    # the layers' frozen weights in 8 or 4 bits (bitsandbytes: int8 a row, NF4); null = as precision. With is_lora
    quantization_bit: int | None = None
    is_lora: bool = False  # train adapters and heads; false = all weights
    lora_rank: int = 32  # rank of the adapters
    lora_alpha: float | None = None  # null = min(rank, 16)
    lora_dropout: float = 0.0  # share of the adapters' inputs that training drops
    lora_target_modules: str | Sequence[str] | None = None  # name endings; null or all-linear = all in the layers
    lora_modules_to_save: str | Sequence[str] | None = None  # name endings of modules trained in full instead
    lora_path: str | None = None  # peft folder to start the adapters from
    lora_init_weights: bool | str = True  # true (B = 0), gaussian, or false (random, for tests)
    lora_use_rslora: bool = False  # scale by the root of the rank
    lora_rank_pattern: Mapping[str, int] | None = None  # other ranks by name pattern
    lora_alpha_pattern: Mapping[str, float] | None = None  # other scales by name pattern
    trainable_map: Mapping[str, bool] | None = None  # name prefix → train it or not; overrides is_lora
    freeze_pattern: str | Sequence[str] | None = None  # regular expressions of names to freeze; has the last word
    value_head: bool = False  # estimate the return, from the hidden state of the token before
    # values of a record: chunk_level (or action_level) = one, of the prompt; token_level = one before each token
    value_type: str = "chunk_level"
    gradient_checkpointing: bool = False  # recompute each layer in the backward pass: a third slower, less memory
    # a training pass lays texts end to end; false = a row each, filled up to the longest: slower, and the same numbers
    # up to rounding
    sequence_packing: bool = True
    padding_side: str | None = None  # side that an exported tokenizer pads on, left or right; null = as it was read
    pad_token: int | None = None  # id of the token that fills up rows, of an exported tokenizer, too; null = as read
    # processes (GPUs) that compute each text of scoring and learning together, so that long ones fit: each has its part
    # of the tokens (Ulysses). The run's processes are divided into teams of so many; 1 = each computes texts of its own
    context_parallel_size: int = 1
    low_cpu_mem_usage: bool = True  # false permits a second copy of the weights; none is made
    # permits to run the folder's own code for the network; it is run where transformers has no class for it
    trust_remote_code: bool = False
    tokenizer_trust_remote_code: bool = False  # the same for the tokenizer

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> Settings:
        """Makes settings and checks them. Raises UnknownKeyError or ConfigError, naming the key."""
        check_known(kwargs, [f.name for f in fields(cls)])
        settings = cls(**kwargs)
        settings.check()
        return settings

    def check(self) -> None:
        """Refuses values that are wrong for every checkpoint."""
        for key, choices in CHOICES.items():
            if getattr(self, key) not in choices:
                raise unknown_name(key, str(getattr(self, key)), [str(c) for c in choices], f"actor.model.{key}")
        for key in SWITCHES:
            if not isinstance(getattr(self, key), bool):
                raise bad(key, getattr(self, key), "it is a switch", "set it to true or false")
        if self.attn_implementation != "sdpa":
            reason = "texts are laid end to end, for which attention is written here with torch's sdpa"
            raise bad("attn_implementation", self.attn_implementation, reason, "remove the key, or set it to sdpa")
        if self.model_revision is not None:
            reason = "nothing is downloaded: model_path is a folder, which has one revision"
            raise bad(
                "model_revision", self.model_revision, reason, "remove the key, and give the folder of that revision"
            )
        check_quantization(self)
        self._check_numbers()
        self._check_source()
        for pattern in self.freeze_patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise bad("freeze_pattern", pattern, f"not a regular expression: {error}", "correct it") from error

    def _check_numbers(self) -> None:
        for key in COUNTS:
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise bad(key, value, "it counts something", "set it to a whole number of at least 1")
        for key in ("hidden_size", "vocab_size"):
            value = getattr(self, key)
            if value is not None and (type(value) is not int or value < 1):
                raise bad(key, value, "it counts something", "set it to a whole number of at least 1, or remove it")
        if any(type(token) is not int or token < 0 for token in self.ends or ()) or self.ends == ():
            raise bad("end_tokens", self.end_tokens, "these are ids of tokens", "set rollout.eos to one or to several")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise bad("seed", self.seed, "seeds are whole numbers", "set it to 0 or more")
        self.check_lora()

    def _check_source(self) -> None:
        if self.gguf_file and self.model_path is None:
            raise bad("gguf_file", self.gguf_file, "it lies in no folder", "set actor.model.model_path to its folder")
        if self.chat_template and self.chat == "never":
            reason = "chat is never, so it would not be used"
            raise bad("chat_template", self.chat_template, reason, "set actor.model.chat=always or remove the key")
        if self.chat_template and not Path(self.chat_template).is_file():
            raise bad("chat_template", self.chat_template, "there is no such file", "give a file with a Jinja template")
        if len(set(self.alphabet)) != len(self.alphabet) or not self.characters:
            raise bad("characters", self.characters, "each must stand there once", "list each character once")

    @property
    def alphabet(self) -> str:
        """The characters that are tokens where the tokenizer is built here."""
        return ASCII if self.characters == "ascii" else self.characters

    @property
    def values(self) -> int:
        """Number V of values of a record with a value head."""
        return self.max_new_tokens if self.value_type == "token_level" else 1

    @property
    def ends(self) -> tuple[int, ...] | None:
        """Token ids of ``end_tokens``; None = the tokenizer's."""
        given = self.end_tokens
        return None if given is None else (given,) if isinstance(given, int) else tuple(given)

    @property
    def sizes(self) -> dict[str, int]:
        """Configured ``hidden_size`` and ``vocab_size``, those that are set."""
        given = {"hidden_size": self.hidden_size, "vocab_size": self.vocab_size}
        return {key: value for key, value in given.items() if value is not None}


COUNTS = ("max_prompt_tokens", "max_new_tokens", "lora_rank", "context_parallel_size")
SWITCHES = tuple(f.name for f in fields(Settings) if f.type == "bool")
CHOICES: dict[str, tuple[Any, ...]] = {
    "precision": ("fp32", "bf16", "fp16"),
    "truncation": ("error", "left", "right"),
    "padding_side": (None, "left", "right"),
    "value_type": ("chunk_level", "action_level", "token_level"),
    "chat": ("auto", "always", "never"),
    "enable_thinking": (True, False, None),
    "lora_init_weights": (True, False, "gaussian"),
}
