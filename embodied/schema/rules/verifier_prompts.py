"""Chooses the prompts that verifiers hand to others: ``data.return_raw_chat`` and ``data.return_full_prompt``.

A function of the user and a service are others (:data:`OTHERS`). The options of their verifiers say what they are
handed; one that ``env.train.verifier`` or ``env.eval.verifier`` gives directly stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.targets import arguments_of
from embodied.schema.keys.config import Config

OTHERS = ("custom", "remote")
"""Verifiers that hand a problem to others."""
READER = "prompt_reader"
"""Name of the function, beside a model's ``_target_``, that makes a reader of prompts from those keys of the model that
it takes."""


def with_prompts(config: Config, parts: Any) -> list[dict[str, Any]] | None:
    """Adds to a verifier's parts the options on prompts that the configuration asks for; None if it asks
    for no other ones.

    Raises:
        ConfigError: the policy has no tokenizer that could make full prompts.
    """
    data = config.data
    if not hands_on(parts) or (data.return_raw_chat and not data.return_full_prompt):
        return None
    more: dict[str, Any] = {} if data.return_raw_chat else {"prompt": False}
    if data.return_full_prompt:
        more["full_prompt"] = _reader(config)
    return [{**more, **part} if part.get("name") in OTHERS else dict(part) for part in parts]


def hands_on(parts: Any) -> bool:
    """Returns whether a verifier hands problems to the user's function or to a service."""
    listed = isinstance(parts, Sequence) and all(isinstance(part, Mapping) for part in parts)
    return listed and any(part.get("name") in OTHERS for part in parts)


def check_handed(config: Config, verifiers: Sequence[Any]) -> None:
    """Refuses ``data.return_full_prompt`` where nothing reads full prompts.

    Args:
        verifiers: of the envs, None where one has none.
    """
    read = any(map(hands_on, verifiers)) or config.rollout.print_outputs or config.runner.logger.log_val_generations > 0
    if config.data.return_full_prompt and not read:
        raise ConfigError(
            "data.return_full_prompt is true, and nothing reads full prompts: no verifier is a function of yours or a "
            "service, and no texts are printed or written",
            "set reward.custom_reward_function.path, reward.remote.enable, rollout.print_outputs or "
            "runner.logger.log_val_generations in a run of texts, or leave data.return_full_prompt out",
        )


def check_tokens(config: Config) -> None:
    """Refuses ``rollout.detokenize`` where the texts of tokens are shown nowhere."""
    if config.rollout.detokenize and not (config.rollout.print_outputs or config.runner.logger.log_val_generations > 0):
        raise ConfigError(
            "rollout.detokenize is true, and no answers are printed or written",
            "set rollout.print_outputs=true (episodes of a training) or runner.logger.log_val_generations=50 (answers "
            "of evaluations) in a run of texts, or leave rollout.detokenize out",
        )


def _reader(config: Config) -> dict[str, Any]:
    """The model's function that makes full prompts, and its arguments."""
    model = config.actor.model
    reader, own = f"{model.target.rpartition('.')[0]}.{READER}", model.model_extra or {}
    try:
        takes = arguments_of(reader, "actor.model._target_").named
    except ConfigError as error:
        raise ConfigError(
            f"data.return_full_prompt is true, and {model.target} has no function {READER} beside it, which makes full "
            "prompts with the policy's tokenizer",
            "choose a language model, e.g. model=causal_lm, add that function "
            f"(embodied.models.causal_lm.{READER} is one), or leave data.return_full_prompt out",
        ) from error
    return {"reader": reader, "options": {name: value for name, value in own.items() if name in takes}}
