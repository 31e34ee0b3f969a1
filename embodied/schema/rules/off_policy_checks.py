"""Refuses settings that mean nothing where records are replayed (``algorithm.learner: sac``), or that cannot work."""

from __future__ import annotations

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config
from embodied.schema.keys.sections.algorithm import AlgorithmConfig
from embodied.schema.keys.sections.off_policy import ReplayConfig, SacConfig

READ = frozenset({
    "learner", "sac", "replay", "adv_type", "gamma", "max_staleness", "group_size", "rollout_epoch", "sampling_params",
    "val_sampling_params", "val_group_size", "rollout_batch_size_per_gpu", "val_rollout_batch_size_per_gpu",
    "calculate_entropy", "calculate_noise_scale",
})  # fmt: skip
"""Keys of ``algorithm`` that learner sac reads, or that are off in its preset."""


def check_off_policy(config: Config) -> None:
    """Refuses keys of the one learner where the other one learns, and sizes that do not fit. Raises ConfigError."""
    algorithm = config.algorithm
    if algorithm.learner != "sac":
        for key, usual in (("sac", SacConfig()), ("replay", ReplayConfig())):
            if getattr(algorithm, key) != usual:
                raise ConfigError(
                    f"algorithm.{key} is set, and algorithm.learner is {algorithm.learner}: nothing is replayed",
                    f"leave algorithm.{key} out, or set algorithm=sac",
                )
        return
    _check_demonstrations(config)
    _check_keys(algorithm)
    _check_sizes(algorithm)
    _check_others(config)


def _check_keys(algorithm: AlgorithmConfig) -> None:
    usual = AlgorithmConfig()
    if algorithm.adv_type != "raw":
        raise ConfigError(
            f"algorithm.adv_type is {algorithm.adv_type}, and algorithm.learner sac makes no advantages",
            "set algorithm.adv_type=raw, as algorithm=sac does",
        )
    for name in sorted({*AlgorithmConfig.model_fields} - READ):
        if getattr(algorithm, name) != getattr(usual, name):
            raise ConfigError(
                f"algorithm.{name} is for learners of a policy gradient, and algorithm.learner is sac, which has "
                "neither groups, ratios nor advantages",
                f"leave algorithm.{name} out",
            )
    if not algorithm.sampling_params.do_sample:
        raise ConfigError(
            "algorithm.sampling_params.do_sample is false, and algorithm.learner sac explores by what the actor draws",
            "set algorithm.sampling_params.do_sample=true",
        )


def _check_demonstrations(config: Config) -> None:
    replay, batch = config.algorithm.replay, config.actor.global_batch_size
    share, mode = replay.share(intervenes=False), config.env.train.reward_mode
    if replay.demonstrations and not share:
        raise ConfigError(
            "algorithm.replay.demonstrated_share is 0, and no update would read algorithm.replay.demonstrations",
            "leave algorithm.replay.demonstrated_share out, or algorithm.replay.demonstrations",
        )
    if replay.demonstrations and mode != "sparse":
        raise ConfigError(
            f"env.train.reward_mode is {mode}, and algorithm.replay.demonstrations have no rewards but the success "
            "that each ends with",
            "set env.train.reward_mode=sparse",
        )
    if share and not 0 < round(batch * share) < batch:
        raise ConfigError(
            f"algorithm.replay.demonstrated_share {share:g} of actor.global_batch_size {batch} leaves an update "
            f"{'no record of the run' if share > 0.5 else 'no demonstration'}",
            "raise actor.global_batch_size",
        )


def _check_sizes(algorithm: AlgorithmConfig) -> None:
    starts, capacity = algorithm.sac.learning_starts, algorithm.replay.capacity
    if capacity < starts:
        raise ConfigError(
            f"algorithm.replay.capacity {capacity} is less than algorithm.sac.learning_starts {starts}: records would "
            "be dropped before anything is learnt from them",
            f"set algorithm.replay.capacity to {starts} or more",
        )
    if algorithm.max_staleness > 1:
        raise ConfigError(
            f"algorithm.max_staleness is {algorithm.max_staleness}, and with algorithm.learner sac one rollout runs "
            "beside an update, no more",
            "set algorithm.max_staleness=1 or 0",
        )
    if algorithm.max_staleness and algorithm.sac.reset_beside_update:
        raise ConfigError(
            "algorithm.sac.reset_beside_update is true, and with algorithm.max_staleness=1 a whole rollout runs beside "
            "the update, with its resets",
            "leave algorithm.sac.reset_beside_update out",
        )


def _check_others(config: Config) -> None:
    refused = {
        "rollout.recompute_logprobs=true": (config.rollout.recompute_logprobs, "reads no recorded log-probs"),
        f"rollout.backend={config.rollout.backend}": (config.rollout.backend != "native", "acts with its actor"),
        "data.start_sampling=informative": (config.data.start_sampling == "informative", "compares no returns"),
        "actor.enable_dp_load_balance=true": (
            config.actor.enable_dp_load_balance, "has each process read its own records",
        ),
        f"actor.fsdp_config.strategy={config.actor.fsdp_config.strategy}": (
            config.actor.fsdp_config.strategy in ("fsdp", "fsdp2"), "has critics that are not sharded",
        ),
        "actor.training_backend": (
            config.actor.training_backend in ("fsdp", "fsdp2"), "has critics that are not sharded",
        ),
        "runner.enable_dynamic_batch_size=true": (
            config.runner.enable_dynamic_batch_size, "counts its batches in records",
        ),
        "reward.use_reward_model": (config.reward.use_reward_model, "is for robots, and reward models are for texts"),
    }  # fmt: skip
    for key, (set_, why) in refused.items():
        if set_:
            raise ConfigError(f"{key} cannot be: algorithm.learner sac {why}", f"leave {key.partition('=')[0]} out")
