"""Any causal language model of Hugging Face as a policy that answers text with text.

``build_policy`` is the ``_target_`` of ``config/model/causal_lm*.yaml``; its keyword arguments, with defaults and
meanings, are the fields of :class:`~.settings.Settings`. ``build_reward_model`` is that of ``reward.model``.
Importing this package imports neither torch nor transformers.

| file | what it does |
|---|---|
| ``policy.py`` | what the runtime drives |
| ``parts.py`` | what a policy consists of, for all that is done with it |
| ``evaluating.py`` | log-probs, entropies and values of recorded texts |
| ``serving.py`` | what an inference engine gets of the policy, and gives back |
| ``reward_model.py`` | a sequence classifier that scores answers |
| ``counting.py`` | prompts by the tokenizer alone: their numbers of tokens before a run begins, their texts |
| ``files/`` | folders of Hugging Face: found, checked, loaded, written; code that comes with them |
| ``text/`` | text ↔ tokens: chat template, truncation, ends of a text; the tokens of a picture |
| ``network/`` | runs the layers on tokens laid end to end, also by several processes; reads pictures |
| ``decoding/`` | the distribution of the next token; generates texts in lanes |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import CHARACTERS, Settings

if TYPE_CHECKING:
    from .policy import CausalLMPolicy
    from .reward_model import RewardModel

__all__ = [
    "Settings", "build_policy", "build_reward_model", "image_size", "prompt_counter", "prompt_counter_files",
    "prompt_reader", "reads",
]  # fmt: skip


def build_policy(**kwargs: Any) -> CausalLMPolicy:
    """Build the policy on the CPU, from a Hugging Face folder or at random.

    Raises:
        ConfigError: a key under ``actor.model`` is unknown, has a wrong value, or contradicts the checkpoint.
        CheckpointError: the folder is missing, damaged, or of an architecture that cannot be run here.
    """
    from .build import build

    return build(Settings.from_kwargs(kwargs))


def reads(model_path: str | None = None) -> str:
    """Returns what a policy with such a key reads, for the page of models."""
    return "text; pictures, if the checkpoint reads them" if model_path == "???" else "text"


def prompt_counter(
    model_path: str | None = None,
    tokenizer_path: str | None = None,
    gguf_file: str | None = None,
    characters: str = CHARACTERS,
    chat: str = "auto",
    chat_template: str | None = None,
    system_prompt: str | None = None,
    enable_thinking: bool | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tokenizer_trust_remote_code: bool = False,
) -> Callable[[Sequence[str]], list[int]]:
    """Makes a function that counts the tokens of prompts as the policy would, without its network. An env of texts
    leaves out prompts by it (``data.filter_overlong_prompts``). The arguments are the fields of Settings of that name.

    Raises:
        ConfigError: a key has a wrong value.
        CheckpointError: the folder has no tokenizer that can be read.
    """
    from .counting import PromptCounter

    return PromptCounter(
        Settings.from_kwargs(
            {
                "model_path": model_path, "tokenizer_path": tokenizer_path, "gguf_file": gguf_file,
                "characters": characters, "chat": chat, "chat_template": chat_template, "system_prompt": system_prompt,
                "enable_thinking": enable_thinking, "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
                "tokenizer_trust_remote_code": tokenizer_trust_remote_code,
            }
        )
    )  # fmt: skip


def prompt_counter_files(
    model_path: str | None = None,
    tokenizer_path: str | None = None,
    chat_template: str | None = None,
    **others: Any,
) -> list[Path]:
    """Lists the files that the counts of :func:`prompt_counter` depend on. The arguments are the same."""
    from .files.source import tokenizer_files

    return tokenizer_files(model_path, tokenizer_path, chat_template)


def image_size(model_path: str | None) -> int | None:
    """Reads how many pixels each side of a picture has in the network of a folder. None if it reads no pictures, or if
    its config.json does not say it."""
    from .text.pictures import configured_size

    return None if model_path is None else configured_size(Path(model_path).expanduser())


def prompt_reader(max_prompt_tokens: int, truncation: str, **others: Any) -> Callable[[Sequence[str]], list[str]]:
    """Makes a function that gives the texts of prompts as the policy reads them, without its network: by the chat
    template, with special tokens, cut where the policy cuts. Verifiers hand them to others
    (``data.return_full_prompt``). The arguments are the fields of Settings of that name; the others are those of
    :func:`prompt_counter`.

    Raises:
        ConfigError: a key has a wrong value.
        CheckpointError: the folder has no tokenizer that can be read.
    """
    from .counting import PromptReader

    given = {"max_prompt_tokens": max_prompt_tokens, "truncation": truncation, **others}
    return PromptReader(Settings.from_kwargs(given))


def build_reward_model(
    model_path: str, tokenizer_path: str | None = None, max_length: int = 2048, micro_batch_size: int = 16,
    precision: str = "fp32", offload_weight: bool = False, trust_remote_code: bool = False,
) -> RewardModel:  # fmt: skip
    """Build a reward model on the CPU from a Hugging Face folder of a sequence classifier with one logit.

    Args:
        model_path: the folder.
        tokenizer_path: folder of the tokenizer; None = ``model_path``. If it has a chat template, the classifier reads
            the conversation with the answer as its last message, else prompt and answer end to end.
        max_length: tokens that it reads; of a longer text the beginning is left out.
        micro_batch_size: texts of one forward pass.
        precision: fp32, bf16 or fp16. With 16 bits a score has three significant digits or fewer.
        offload_weight: keep the weights in host memory but for the moment of scoring; slower by two copies.
        trust_remote_code: the folders' own code may be run, where transformers has no class for the network or the
            tokenizer.

    Raises:
        ConfigError: a value is impossible.
        CheckpointError: a folder is missing or damaged, or holds no such classifier.
    """
    from .reward_model import load

    return load(model_path, tokenizer_path, max_length, micro_batch_size, precision, offload_weight, trust_remote_code)


# The configuration is checked against this signature. Taking it from the dataclass keeps one list of keys.
build_policy.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Settings).parameters.values()]
)
# Which keys of the model it is given is taken from this one.
prompt_reader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        p.replace(kind=p.KEYWORD_ONLY)
        for function in (prompt_counter, prompt_reader)
        for p in inspect.signature(function).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
)
