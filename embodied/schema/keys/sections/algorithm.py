"""Section of the algorithm: ``algorithm.*``."""

from __future__ import annotations

from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Annotated, Any, Literal

from pydantic import Field

from embodied.schema.keys.base import Section
from embodied.schema.keys.names import Names
from embodied.schema.keys.sections.off_policy import ReplayConfig, SacConfig
from embodied.schema.keys.sections.start_value import StartValueConfig as StartValueConfig


def _losses() -> tuple[str, ...]:
    """Names of the files with a policy loss. Does not import them, because they need torch."""
    found = find_spec("embodied.algorithms.losses")
    assert found is not None
    return tuple(sorted(module.name for module in iter_modules(found.submodule_search_locations)))


LOSSES = _losses()


class EvalSamplingConfig(Section):
    do_sample: bool | Literal["both"] = Field(
        False,
        description="Draw actions; false = most likely token. both (embodied.eval) = an evaluation each way from the "
        "same starts, and a table of both.",
    )
    temperature: float = Field(1.0, gt=0, description="Temperature of the action logits.")
    top_k: int = Field(0, ge=0, description="Keep the k most likely action tokens; 0 = all.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Keep the most likely action tokens up to this probability; 1 = all."
    )
    repetition_penalty: float = Field(
        1.0,
        gt=0,
        description="Text: logits of tokens that stand in prompt or answer are divided by this if above 0, else "
        "multiplied; 1 = off.",
    )
    max_new_tokens: int | None = Field(
        None, ge=1, description="Text: longest answer, tokens; null = actor.model.max_new_tokens, its upper bound."
    )
    min_new_tokens: int = Field(
        0, ge=0, description="Text: the end of the text is not sampled before that many tokens."
    )
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="Text: an answer ends with the first token that completes one of these."
    )
    include_stop_str_in_output: bool = Field(
        True,
        description="Text: the text that stop names stays at the end of an answer; false = env and verifiers get the "
        "answer without it. The recorded tokens are the same.",
    )
    ignore_eos: bool = Field(False, description="Text: the tokenizer's end of text ends no answer.")


class SamplingConfig(EvalSamplingConfig):
    do_sample: bool = Field(True, description="Draw actions; false = most likely token.")


class KlControlConfig(Section):
    type: Literal["fixed", "adaptive"] = Field(
        "fixed", description="fixed = the KL's weight stays kl_beta; adaptive = it begins there and aims at target_kl."
    )
    target_kl: float = Field(
        0.1,
        gt=0,
        description="adaptive: mean KL of an element (logprob_type) to aim at, nats. The mean is over all elements of "
        "an iteration, so that a long episode counts more than a short one. verl takes the mean of the sequences' "
        "means; the controller's paper (arXiv 1909.08593) and TRL take the sum over a sequence, so divide their "
        "target by the elements of an episode.",
    )
    horizon: int = Field(
        10_000, ge=1, description="adaptive: episodes after which the weight has changed by at most a fifth."
    )


class AlgorithmConfig(Section):
    learner: Literal["policy_gradient", "sac"] = Field(
        "policy_gradient",
        description="policy_gradient = each iteration trains on its own records; sac = soft actor-critic: records stay "
        "in a replay buffer, and are trained on again (algorithm.sac, algorithm.replay; a model with critics: "
        "model=head).",
    )
    sac: SacConfig = SacConfig()
    replay: ReplayConfig = ReplayConfig()
    adv_type: Literal[
        "grpo",
        "dr_grpo",
        "rloo",
        "raw",
        "remax",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "gae",
        "start_value",
    ] = Field(
        "grpo",
        description="Advantage estimator (embodied.algorithms.advantages.estimators); gae needs a value head, remax "
        "runs one more episode a start, without sampling. With remax each step of an episode has the advantage "
        "R − R_greedy of the whole return, also with dense rewards; verl subtracts R_greedy from the rewards that are "
        "still to come. Both are the same where only the last step has a reward. start_value subtracts what the start "
        "is worth, as it is remembered from earlier iterations and as the group's other episodes have it.",
    )
    start_value: StartValueConfig = StartValueConfig()
    adv_std_ddof: int = Field(
        1, ge=0, le=1, description="Degrees of freedom taken off in the group's standard deviation."
    )
    normalize_advantages: bool = Field(
        False, description="Whiten the advantages over all elements of the iteration that count."
    )
    advantage_clip_low: float | None = Field(
        None,
        le=0,
        description="Advantages below it, after normalize_advantages, become it; null = off. The factor of "
        "data.start_sampling=informative, at most 2, comes later.",
    )
    advantage_clip_high: float | None = Field(
        None,
        ge=0,
        description="Advantages above it, after normalize_advantages, become it; null = off. The factor of "
        "data.start_sampling=informative, at most 2, comes later.",
    )
    gamma: float = Field(
        0.99,
        gt=0,
        le=1,
        description="Discount from one reward (algorithm.reward_type) to the next, for gae and reinforce_plus_plus; "
        "with learner sac from one control step to the next.",
    )
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="gae: how far later rewards count; 0 = the next value alone, 1 = all of them."
    )
    bootstrap_type: Literal["standard", "always"] = Field(
        "standard",
        description="gae: which episodes end with the value of their final observation instead of 0. standard = those "
        "that a step limit cut off, the run's or the env's own; always = those that terminated too.",
    )
    value_loss: Literal["huber", "mse"] = Field("huber", description="Loss of the value head.")
    huber_delta: float = Field(10.0, gt=0, description="Error beyond which the Huber loss grows linearly.")
    value_clip: float | None = Field(
        None,
        gt=0,
        description="How far a value may move from that at action time before its gradient ends; null = off.",
    )
    critic_warmup_steps: int = Field(
        0, ge=0, description="gae: optimizer steps at the start of a run that train the value head alone."
    )
    loss_type: Annotated[str, Names(LOSSES)] = Field(
        "ppo",
        description=f"Policy loss: {', '.join(LOSSES)} (the files of embodied/algorithms/losses), or the dotted path "
        "of one of yours (docs/how_to/add_a_loss.md).",
    )
    loss: dict[str, Any] = Field(
        {}, description="Options of a loss of yours that are no other key of algorithm, by name."
    )
    terms: dict[str, dict[str, Any]] = Field(
        {},
        description="Terms of yours that are added to the loss, by names of your choice: `_target_`, the dotted path "
        "of its class, and its options (docs/how_to/add_a_loss.md).",
    )
    behav_imp_weight_cap: float | None = Field(
        2.0,
        gt=0,
        description="loss_type tis: largest weight of an element for the probability that was recorded when it acted; "
        "null = no cap.",
    )
    behav_imp_weight_mode: Literal["cap", "mask"] = Field(
        "cap", description="loss_type tis: what a weight beyond the cap becomes: the cap, or 0."
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="1 = while an update runs, the next iteration's episodes run beside it, so that simulators do not "
        "wait for updates: a copy of the policy acts in them, with the weights that the update began with. An "
        "iteration then trains on what the weights of one iteration before have done; of s, on what those of s "
        "iterations before have done, and the first s have the first weights. From 2 on an env slot that finds no "
        "episode left in an iteration runs one of the next, so that none waits for the last episodes; this takes s "
        "copies of what is trained, and of texts keys and values of s + 1 versions. The lag depends on the iteration "
        "alone, never on time. 0 = rollout and update in turn. Evaluations always have the present weights.",
    )
    aipo_rho: float = Field(
        5.0,
        gt=1,
        description="loss_type aipo: largest ratio that counts. An element with a larger ratio has no gradient, as in "
        "Cosmos-RL. In the LlamaRL paper it keeps one of weight aipo_rho; for that, set loss_type cispo, "
        "clip_ratio_high to the paper's limit − 1 and clip_ratio_low to 0.999.",
    )
    off_policy_masking_delta: float | None = Field(
        None,
        gt=0,
        description="Drop negative advantages of episodes whose mean log-prob has fallen by more than this since they "
        "acted, nats; null = off.",
    )
    positive_nll_coef: float = Field(
        0.0, ge=0, description="Weight of the mean of −log-prob over episodes with a positive return; 0 = off."
    )
    early_stop_imp_ratio: float | None = Field(
        None,
        gt=1,
        description="Mean ratio of an optimizer batch beyond which it and the rest of its epoch are not trained on; "
        "null = off.",
    )
    unbiased_loss_max_tokens: int | None = Field(
        None,
        ge=1,
        description="Constant of seq-mean-token-sum-norm: elements (logprob_type) of the longest episode; null = "
        "derived from the step limit.",
    )
    loss_agg_func: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = Field("seq-mean-token-mean", description="How token losses become one number, over the whole optimizer batch.")
    group_size: int = Field(8, ge=1, description="Episodes of one start whose returns are compared.")
    min_filter_prefix_tokens: int | None = Field(
        None,
        ge=1,
        description="Text: first answers of a group that begin with the same tokens, more than this many, and have "
        "different returns: what they have in common does not count in the losses, because it is both right and "
        "wrong. null = off.",
    )
    filter_rewards: bool = Field(
        False,
        description="Train only on groups whose mean return lies between the two bounds; the others leave the "
        "denominators as well.",
    )
    rewards_lower_bound: float = Field(0.1, description="filter_rewards: least mean return of a group.")
    rewards_upper_bound: float = Field(0.9, description="filter_rewards: largest mean return of a group.")
    dynamic_sampling: bool = Field(
        False,
        description="Replace groups without a gradient (all scores equal, or beyond filter_rewards) by groups of new "
        "starts, before training.",
    )
    max_sampling_rounds: int = Field(
        3,
        ge=1,
        description="dynamic_sampling: rollouts of an iteration at most, the first included. What is missing then "
        "stays as it is.",
    )
    filter_reward_metric: Literal["return", "success"] = Field(
        "return",
        description="dynamic_sampling: which score of the episodes must differ: return = rewards with the overlong "
        "penalty, success.",
    )
    rollout_epoch: int = Field(
        1, ge=1, description="Episodes of an iteration = rollout_epoch · env.train.total_num_envs."
    )
    update_epoch: int = Field(1, ge=1, description="Passes over an iteration's records.")
    shuffle_rollout: bool = Field(
        True, description="Each of these passes takes the records in a new random order; false = in that of the plan."
    )
    clip_ratio_low: float = Field(0.2, ge=0, lt=1, description="Lower clip of the ratio: 1 − this.")
    clip_ratio_high: float = Field(0.28, ge=0, description="Upper clip of the ratio: 1 + this.")
    clip_ratio_c: float | None = Field(None, gt=1, description="Dual clip for negative advantages; null = off.")
    kl_beta: float = Field(
        0.0, ge=0, description="Weight of the KL penalty towards the policy that training began with; 0 = none is kept."
    )
    use_kl_in_reward: bool = Field(
        False,
        description="The penalty stands in the rewards, before advantages are made of them, instead of in the loss.",
    )
    kl_penalty_type: Literal["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl", "full"] = Field(
        "low_var_kl",
        description="Estimate of that KL (embodied.algorithms.kl); full = the KL itself, from the distributions over "
        "all action tokens, or in closed form from Gaussians.",
    )
    kl_ctrl: KlControlConfig = KlControlConfig()
    logprob_forward_micro_batch_size: int | None = Field(
        None,
        ge=1,
        description="Records of one pass without gradients (reference in the rewards, loss_type tis); null = "
        "actor.micro_batch_size.",
    )
    logprob_forward_max_tokens: int | None = Field(
        None,
        ge=1,
        description="Text, with runner.enable_dynamic_batch_size: most tokens of a pass without gradients (loss_type "
        "tis, losses with one ratio a sequence); null = runner.max_tokens_per_mbs.",
    )
    logprob_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Number format in which log-probs are computed from logits in a training, both when the policy "
        "acts and when it learns; they are kept in float32. Evaluations and supervised training compute in float32. "
        "In 16 bits, logits that differ by rounding may give log-probs that differ by a step of the format: texts, "
        "whose two passes agree within 1e-4 nats, then begin with ratios beside 1.",
    )
    rollout_batch_size_per_gpu: int | None = Field(
        None,
        ge=1,
        description="Observations that the policy of a process answers at the same time; sets rollout.policy_batch. "
        "null = that key says it.",
    )
    val_rollout_batch_size_per_gpu: int | None = Field(
        None, ge=1, description="The same in evaluations, if env.eval has workers of its own; null = as in training."
    )
    reference_reset_interval: int | None = Field(
        None,
        ge=1,
        description="Iterations after which the present policy becomes the one that the KL is measured from; null = "
        "never.",
    )
    reset_optimizer_with_reference: bool = Field(
        True, description="reference_reset_interval: forget the optimizer's moments at the same time."
    )
    unbiased_kl_estimate: bool = Field(
        False, description="Multiply the estimate by the ratio to the acting policy; for k3 (low_var_kl) alone."
    )
    entropy_bonus: float = Field(0.0, ge=0, description="Weight of the entropy in the loss.")
    calculate_entropy: bool = Field(
        True, description="Log the entropy (train/entropy) without a bonus, too; false = only with entropy_bonus."
    )
    calculate_noise_scale: bool = Field(
        True,
        description="Measure how noisy an iteration's gradient is, from the gradients of its groups "
        "(train/noise_scale_episodes, train/signal_to_noise; docs/internals/learning.md); false = no such metrics. It "
        "changes no other number.",
    )
    reward_type: Literal["chunk_level", "action_level", "token_level"] = Field(
        "chunk_level",
        description="One reward, value and advantage a record, one a control step, or one a token of a text "
        "(token_level): the reward of a text then stands at its last token, and use_kl_in_reward has a KL at each.",
    )
    logprob_type: Literal["token_level", "action_level", "chunk_level"] = Field(
        "token_level", description="One ratio a token, an action, or a chunk."
    )
    entropy_type: Literal["token_level", "action_level", "chunk_level"] = Field(
        "token_level", description="How entropy is summed before averaging."
    )
    sampling_params: SamplingConfig = SamplingConfig()
    val_sampling_params: EvalSamplingConfig = EvalSamplingConfig()
    val_group_size: int = Field(
        1,
        ge=1,
        description="Evaluation episodes of each start; more than 1 give eval/pass_at/K. env.eval.episodes_per_task "
        "counts the starts.",
    )

    @property
    def bootstraps(self) -> bool:
        """Whether the last observations of episodes that were cut off are recorded, because their values are read."""
        return self.adv_type == "gae" or self.learner == "sac"
