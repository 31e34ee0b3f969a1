"""Section of the rewards: ``reward.*``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from embodied.schema.keys.base import OpenSection, Section


class OverlongPenaltyConfig(Section):
    enable: bool = Field(False, description="Take something from the last reward of episodes near the step limit.")
    buffer_length: int = Field(
        16,
        ge=1,
        description="Control steps before the step limit in which the penalty grows from 0; of texts tokens before "
        "the longest text that there may be.",
    )
    factor: float = Field(1.0, gt=0, description="The penalty of an episode that reaches the step limit.")


class OwnSuccessesConfig(Section):
    per_task: int = Field(
        32,
        ge=1,
        description="env.train.reward_mode own_successes: successful episodes that are remembered of each task, the "
        "newest. A checkpoint and each process that trains hold 4 bytes for each of them, each task, each chunk of the "
        "longest episode and each of the env's num_progress_features.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        le=1,
        description="env.train.reward_mode own_successes: what coming all the way to a success is worth, as a share of "
        "a success.",
    )


class RewardFunctionConfig(Section):
    path: str | None = Field(
        None,
        min_length=1,
        description="Text: file with a reward function of yours, in the signature of verl, TRL or Cosmos-RL; null = "
        "none. Its number is the reward of both envs (reward_mode dense), and 1 or more is right.",
    )
    name: str = Field("compute_score", min_length=1, description="Text: name of that function.")


class RemoteRewardConfig(Section):
    enable: bool = Field(False, description="Text: a service judges the answers of both envs (verifier remote).")
    url: str | None = Field(None, min_length=1, description="Text: address that it is asked at, with POST.")
    score_key: str = Field("score", min_length=1, description="Text: where the score stands in its answer.")
    scale: float = Field(1.0, description="Text: factor on that score.")
    functions: dict[str, float] | None = Field(
        None,
        min_length=1,
        description="Text: names of the service's reward functions with their weights, which it is sent with each "
        "answer, under reward_fn; null = nothing is sent.",
    )


class RewardUnitsConfig(Section):
    min_num_params: int = Field(
        0,
        ge=0,
        description="strategy fsdp2: a layer with fewer weights than this is gathered with the rest of the reward "
        "model.",
    )


class RewardModelConfig(OpenSection):
    target: str = Field(
        "embodied.models.causal_lm.build_reward_model",
        alias="_target_",
        description="What builds the reward model (embodied.protocols.RewardModel). Its keyword arguments are further "
        "keys here, and its docstring says what they mean: model_path, tokenizer_path, max_length, micro_batch_size, "
        "precision, offload_weight.",
    )
    strategy: Literal["replicate", "fsdp2", "fsdp"] = Field(
        "replicate",
        description="How several processes share the reward model. replicate = each holds all of it, and scores as "
        "soon as its own rollout has ended; fsdp2 (or fsdp) = each holds a part, layers are gathered in each pass, and "
        "all score together. Scores are the same. One process holds all of it.",
    )
    wrap_policy: RewardUnitsConfig = RewardUnitsConfig()

    @property
    def sharded(self) -> bool:
        """Returns whether several processes would hold a part of it each."""
        return self.strategy != "replicate"


RewardType = str | dict[str, float] | list[str] | None


class RewardConfig(Section):
    reward_type: RewardType = Field(
        None,
        description="Text: the verifier of both envs, by name (math, boxed, gsm8k, choice, format, …), or several with "
        "weights: {boxed: 1.0, format: 0.1}; zero = none, each answer is worth 0. Scores are the reward (reward_mode "
        "dense), the first name decides on success. null = env.train.verifier, env.eval.verifier.",
    )
    val_reward_type: RewardType = Field(None, description="Text: the same of env.eval; null = reward_type.")
    reward_scale: float | None = Field(
        None, gt=0, description="Text: a right answer pays this, a wrong one as much less than nothing; null = the "
        "verifier's score.",
    )  # fmt: skip
    clip_min: float | None = Field(
        None, description="Text: least that the weighted score of a verifier counts; null = off."
    )
    clip_max: float | None = Field(
        None, description="Text: most that the weighted score of a verifier counts; null = off."
    )
    num_workers: int | None = Field(
        None,
        ge=1,
        description="Text: processes that verify answers, of each process that trains: sets env.num_workers; null = "
        "that key says it.",
    )
    custom_reward_function: RewardFunctionConfig = RewardFunctionConfig()
    remote: RemoteRewardConfig = RemoteRewardConfig()
    overlong_penalty: OverlongPenaltyConfig = OverlongPenaltyConfig()
    own_successes: OwnSuccessesConfig = OwnSuccessesConfig()
    use_reward_model: bool = Field(
        False,
        description="Text: add the score of a learned reward model (reward.model) to the last reward of each episode "
        "of a training, beside what the env pays (env.train.reward_coef). Filters and dynamic_sampling see the sum; "
        "success and evaluations are the env's alone.",
    )
    reward_model_weight: float = Field(1.0, description="use_reward_model: factor on its score.")
    model: RewardModelConfig = RewardModelConfig()
