"""Keys of other systems for what is always so here. Another value is refused with the reason, and never ignored."""

from __future__ import annotations

from collections.abc import Mapping

from embodied.errors import ConfigError
from embodied.schema.config import Config, defaults
from embodied.schema.links import at

FIXED: Mapping[str, str] = {
    "data.prefetch_factor":
        "a problem is read by its number when its episode begins, so nothing is loaded ahead",
    "data.image_key":
        "problems are texts, without pictures",
    "data.return_raw_chat":
        "a verifier belongs to the env, which knows the prompt as the data has it",
    "data.return_full_prompt":
        "a verifier belongs to the env, and only the policy knows the chat template",
    "actor.sequence_packing":
        "texts are always computed end to end, without padding",
    "actor.enable_dp_load_balance":
        "records stay in the process that has collected them; each process fills its passes evenly "
        "(runner.enable_dynamic_batch_size)",
    "actor.tokenizer.use_fast":
        "tokenizers are those of the package tokenizers",
    "actor.tokenizer.trust_remote_code":
        "code that comes with a tokenizer is never run",
    "actor.tokenizer.padding_side":
        "texts are computed end to end, and rows of prompts are filled up on the right, which changes no result",
    "algorithm.logprob_dtype":
        "log-probs are computed and kept in float32, whatever actor.model.precision is",
}  # fmt: skip
"""Key → why it has no other value than its default."""


def check_fixed(config: Config) -> None:
    """Refuses other values. Raises :class:`ConfigError` with the reason."""
    everything, usual = config.model_dump(by_alias=True), defaults()
    for key, why in FIXED.items():
        if (given := at(everything, key)) != (only := at(usual, key)):
            told = {None: "null", True: "true", False: "false"}.get(only, only)
            raise ConfigError(
                f"{key} is {given!r}, and can only be {told}: {why}", f"leave {key} out, or set it to {told}"
            )
    learns, wanted = config.algorithm.adv_type == "gae", config.critic.use_critic_model
    if wanted is not None and wanted != learns:
        raise ConfigError(
            f"critic.use_critic_model is {str(wanted).lower()}, and algorithm.adv_type {config.algorithm.adv_type} "
            f"{'learns a' if learns else 'uses no'} value function",
            "set algorithm.adv_type=gae (algorithm=ppo) for a value function, another one for none; or leave "
            "critic.use_critic_model out",
        )
