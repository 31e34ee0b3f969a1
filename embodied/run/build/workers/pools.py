"""Translates the configuration of a side for a pool of env workers.

Imports no torch: recording demonstrations needs none.
"""

from __future__ import annotations

from pathlib import Path

from embodied import schema
from embodied.parallel.group import Group
from embodied.protocols import Batched, BuildsAhead, Env
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.shares import render_gpus_of, workers_of
from embodied.runtime.pool.pool import Deadlines, PoolConfig
from embodied.runtime.worker.declared import Declared
from embodied.runtime.worker.reward import ShapedReward


def pool_config(side: ConfiguredEnv, slots: int, config: schema.Config, logs: Path, processes: Group) -> PoolConfig:
    """Makes the worker pool's settings for a side of the configuration, with ``slots`` env slots in this process."""
    env, commands, completions = config.env, config.rollout.channel, config.env.channel
    return PoolConfig(
        num_slots=slots, num_workers=workers_of(side, config, slots, processes), env_target=side.config.target,
        env_kwargs=side.kwargs, reward=reward_of(side.config), eval_reward=reward_of(env.eval),
        deadlines=Deadlines(env.init_timeout_s, env.reset_timeout_s, env.step_timeout_s), log_dir=logs,
        env_channel=(completions.name, completions.queue_name, completions.queue_size),
        rollout_channel=(commands.name, commands.queue_name, commands.queue_size),
        max_restarts=env.max_worker_restarts, python=env.python, pin=env.pin_workers,
        gpus=render_gpus_of(config, processes), rank=processes.local_rank, ranks=processes.local_size,
        batch=isinstance(side.env, Batched), group_name=env.group_name,
        safe_stop_s=None if side.spec.retry_safe else env.safe_stop_timeout_s, declared=Declared.of(side.env),
    )  # fmt: skip


def reward_of(side: schema.EnvSideConfig) -> ShapedReward:
    """Makes the reward of a side's control steps: sparse or dense, scaled, absolute or relative."""
    return ShapedReward(side.reward_mode, side.reward_coef, side.use_rel_reward)


def forks(config: schema.EnvConfig, *envs: Env) -> bool:
    """Returns whether workers are forked (``env.start_method``)."""
    can = any(isinstance(env, BuildsAhead) and env.spec.retry_safe for env in envs)
    return config.start_method == "forkserver" or (config.start_method == "auto" and can)
