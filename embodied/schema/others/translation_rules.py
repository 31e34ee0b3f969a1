"""Table of rules for keys of other systems whose values mean something else here, or depend on other keys of theirs.

All other keys are renamed, and their values translated by :mod:`embodied.schema.others.values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.schema.others import counts as counts
from embodied.schema.others import translation as say
from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation
from embodied.schema.others.translations import cosmos, rlinf, rlinf_openpi, roll, trl, verl
from embodied.schema.others.values import translated

_NUMBER_FORMAT = "the number format is actor.model.precision"
_KEEP_ONE = {"runner.checkpoint.max_keep": 1}
_PLACEMENT = say.nothing(
    "a process has its device: torchrun --nproc-per-node says how many; policy and trainer share them"
)
CRITIC = (
    "critic.model.path", "critic.model.tokenizer_path", "critic.model.enable_gradient_checkpointing",
    "critic.model.use_remove_padding", "critic.model.fsdp_config.param_offload",
    "critic.model.fsdp_config.optimizer_offload", "critic.ppo_micro_batch_size_per_gpu", "critic.use_dynamic_bsz",
    "critic.ppo_max_token_len_per_gpu",
)  # fmt: skip
"""What verl says of a network that is a part of the policy here."""
OVERLONG = tuple(
    f"{section}.reward_kwargs.overlong_buffer_cfg.{name}"
    for section in ("reward", "reward_model") for name in ("len", "penalty_factor")
)  # fmt: skip
_POLICY = "train.train_policy."

RULES: Mapping[str | tuple[str, str], Rule] = {
    **rlinf.RULES, **rlinf_openpi.RULES, **verl.RULES, **roll.RULES, **cosmos.RULES, **trl.RULES,
    "algorithm.n_minibatches": counts.steps,
    "algorithm.num_group_envs": counts.groups,
    "algorithm.use_valid_token_scale": say.nothing("losses are always averaged over elements that count"),
    "algorithm.length_params.max_length": say.positive,
    "algorithm.sampling_params.use_greedy": say.opposite,
    "actor.model.do_sample": say.nothing("algorithm.sampling_params.do_sample is for training, val_… for evaluations"),
    "actor.model.use_wrist_image": say.wrist,
    "actor.model.attn_implementation": say.flash,
    "actor.optim.bf16": say.either({"actor.model.precision": "bf16"}, why=_NUMBER_FORMAT),
    "actor.optim.fp16": say.either({"actor.model.precision": "fp16"}, why=_NUMBER_FORMAT),
    "actor.enable_offload": say.offload,
    "actor.seed": lambda row, value, get: Translation({"runner.seed": value}, "renamed"),
    "runner.logger.tensorboard.enable": say.switched("tensorboard"),
    "runner.logger.wandb.enable": say.switched("wandb"),
    "runner.logger.logger_backends": say.loggers,
    "rollout.pipeline_stage_num": counts.stages,
    "policy.model_max_length": counts.whole_length,
    "rollout.mode": say.nothing("policy and trainer share their devices"),
    "hydra.searchpath": say.nothing("--config-dir says it"),
    ("verl", "data.train_batch_size"): counts.starts,
    "data.return_raw_input_ids": say.nothing("texts are never tokenized anew"),
    "actor_rollout_ref.hybrid_engine": _PLACEMENT,
    "actor_rollout_ref.model.lora_rank": say.adapters, "model.lora_rank": say.adapters,
    "actor_rollout_ref.model.override_config.model_config": say.positive,
    "actor_rollout_ref.model.override_config.moe_config.freeze_moe_router": say.only_off("freeze_pattern says it"),
    "actor_rollout_ref.actor.strategy": say.strategy,
    "actor_rollout_ref.actor.ppo_mini_batch_size": counts.prompts,
    "actor_rollout_ref.actor.use_kl_loss": say.kl_loss, "actor_rollout_ref.actor.kl_loss_coef": say.kl_loss,
    "actor_rollout_ref.actor.clip_ratio": say.clip_ratio,
    "actor_rollout_ref.actor.data_loader_seed": say.positive,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": say.warmup, "optim.lr_warmup_steps": say.warmup,
    "actor_rollout_ref.actor.optim.total_training_steps": say.positive, "optim.total_training_steps": say.positive,
    "optim.use_checkpoint_opt_param_scheduler": say.nothing("a run that goes on has its schedule's state"),
    "actor_rollout_ref.rollout.mode": say.schedule,
    "actor_rollout_ref.rollout.val_kwargs.temperature": say.cold,
    "actor_rollout_ref.rollout.val_kwargs.top_k": lambda row, value, get: Translation(translated(row.ours[0], value)),
    "algorithm.filter_groups.metric": say.filtered, "algorithm.filter_groups.max_num_gen_batches": say.positive,
    "data.gen_batch_size": say.nothing("algorithm.dynamic_sampling draws as many problems as are still missing"),
    "reward_model.overlong_buffer.len": say.positive, "reward_model.overlong_buffer.penalty_factor": say.positive,
    **dict.fromkeys(CRITIC, say.nothing("the critic is a value head of the policy here: actor.model.value_head")),
    "trainer.total_epochs": counts.passes, "train.epoch": counts.passes,
    "reward_model.reward_manager": say.nothing(
        "env workers judge the answers; reward.num_workers says how many processes"
    ),
    ("verl", "algorithm.kl_penalty"): say.kl_reward, "algorithm.kl_ctrl.kl_coef": say.kl_reward,
    "trainer.logger": say.loggers, "logging.logger": say.loggers, "track_with": say.loggers,
    "trainer.save_freq": say.frequency, "trainer.test_freq": say.frequency, "eval_steps": say.frequency,
    "trainer.resume_mode": say.resume, "trainer.resume_from_path": say.resume, "train.resume": say.resume,
    "resume_from_checkpoint": say.resume,
    "init_kl_coef": say.kl_reward, "use_kl_loss": say.kl_loss, "kl_loss_coef": say.kl_loss,
    "use_pg_clip_range": say.clip_range, "pg_clip": say.clip_range, "pg_clip_low": say.clip_range,
    "pg_clip_high": say.clip_range, "dual_clip_loss": say.dual_clip, "advantage_clip": say.both_sides,
    "value_clip": say.positive, "validation.generating_args.temperature": say.cold,
    "trainer.remove_previous_ckpt_in_save": say.either(_KEEP_ONE, why="max_keep says how many stay"),
    "trainer.max_actor_ckpt_to_keep": say.positive, "trainer.total_training_steps": say.positive,
    **dict.fromkeys(
        ("data.task_suite_name", "actor_rollout_ref.rollout.task_suite_name"),
        lambda row, value, get: Translation({"env": value}, "renamed"),
    ),
    "actor_rollout_ref.rollout.micro_batch_size": say.nothing("rollout.policy_batch follows from the env slots"),
    "custom": say.nothing("free keys of theirs"),
    _POLICY + "trainer_type": say.nothing("runner.task_type follows from the env"),
    _POLICY + "bypass_reward": say.either({"reward.reward_type": "zero"}),
    _POLICY + "allowed_outdated_steps": say.staleness, _POLICY + "on_policy": say.staleness,
    _POLICY + "outdated_rollout_fetch_batch_size": say.staleness,
    _POLICY + "max_retry_for_on_policy": say.positive,
    _POLICY + "balance_dp_token": say.nothing("losses are always averaged over the elements of all processes"),
    _POLICY + "rollout_as_token_ids": say.nothing("tokens are always recorded"),
    _POLICY + "collect_rollout_logprobs": say.nothing("log-probs are always recorded when a policy acts"),
    _POLICY + "use_rollout_logprobs_for_loss": say.either({"rollout.recompute_logprobs": False}),
    _POLICY + "use_remote_reward": say.either({"reward.remote.enable": True}),
    _POLICY + "remote_reward.enabled": say.nothing("use_remote_reward says it"),
    "train.train_batch_per_replica": counts.per_replica,
    "train.optm_betas": say.betas, "train.optm_warmup_steps": say.warmup,
    "train.fsdp_reshard_after_forward": say.reshard,
    "train.fa_version": say.flash,
    "train.ckpt.enable_checkpoint": say.unless("train.ckpt.enable_checkpoint"),
    "train.ckpt.save_freq": say.unless("train.ckpt.enable_checkpoint"),
    "train.ckpt.max_keep": say.positive,
    "validation.enable": say.unless("validation.enable"), "validation.freq": say.unless("validation.enable"),
    "validation.temperature": say.cold, "validation.top_k": say.cold,
    "rollout.parallelism.n_init_replicas": _PLACEMENT, "rollout.parallelism.dp_replicate_size": _PLACEMENT,
    "policy.parallelism.n_init_replicas": _PLACEMENT, "mode": _PLACEMENT,
    "policy.parallelism.dp_shard_size": say.shard, "policy.parallelism.dp_replicate_size": say.shard,
    "rollout.multi_turn_config.enable": say.turns, "rollout.multi_turn_config.max_assistant_turns": say.turns,
    ("cosmos-rl", "rollout.mode"): say.schedule, "vla.continuous": say.schedule,
    "actor_train.model_args.disable_gradient_checkpointing": say.opposite,
    "actor_train.data_args.template": say.template,
    "actor_train.strategy_args.strategy_name": say.strategy, "reference.strategy_args.strategy_name": say.strategy,
    **dict.fromkeys(
        [f"{role}.device_mapping" for role in ("actor_train", "actor_infer", "reference", "critic")], _PLACEMENT
    ),
    **dict.fromkeys(OVERLONG, say.positive),
    "actor_train.training_args.num_train_epochs": say.nothing("max_steps says how long it trains"),
    "actor_rollout_ref.model.lora.rank": say.adapters,
}  # fmt: skip
"""Their key, with its system where another has the same → what it says."""


def translate_key(row: Row, value: Any, get: Lookup | None = None) -> Translation:
    """Translates a key of another system, by its rule if it has one.

    Args:
        value: as it stands in their file.
        get: the other keys there; None = they are not known, so that what follows from several is said in words.
    """
    rule = RULES.get((row.system, row.key)) or RULES.get(row.key)
    if not row.ours and not rule:
        neutral = say.plain(value) == say.plain(row.default) or value in (None, False, "", [], {})
        return Translation(how="nothing" if neutral else "refused", why=row.meaning)
    if rule:
        return rule(row, value, get or say.unknown)
    if value is None or value == "":
        return Translation(how="nothing", why="nothing is set")
    settings: dict[str, Any] = {}
    for key in row.ours:
        settings |= translated(key, value)
    same = settings == {row.key: value}
    return Translation(settings, "same" if same else "renamed")
