"""The metrics of an iteration: of its rollout, its update, and the times of both."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied.learn.batch import Batch
from embodied.learn.trainer import Trainer
from embodied.observe.statistics import wilson
from embodied.observe.timing import Sections
from embodied.parallel.group import Group
from embodied.protocols import Env
from embodied.run.build.action_kind import kind_of
from embodied.run.build.results import add_up, of_problems
from embodied.run.build.simulators import Workers
from embodied.run.training.dynamic_sampling import Collected
from embodied.runtime.memory import proportional_memory
from embodied.runtime.rollout.rollout import RolloutStats
from embodied.types import EpisodeResult, PolicySpec

ROLLOUT_TIMES = ("time/rollout", "rollout/policy", "rollout/wait", "rollout/ranks")
RL_TIMES = ("time/rollout", "time/train", "time/eval", "time/save")
SFT_TIMES = ("time/train", "time/eval")


@dataclass(frozen=True)
class RolloutShare:
    """One process's part of a rollout's measurements, which the processes exchange."""

    stats: RolloutStats
    used: Mapping[str, np.ndarray]  # integer field of its decisions → the values that occurred, each once
    policy_s: float
    wait_s: float  # time spent waiting for env workers
    ranks_s: float  # time spent waiting for other processes
    memory: Mapping[str, int]  # "policy", "template" (the server that forks workers), "slots" → bytes
    engine: Mapping[str, float]  # metrics of the inference engine; empty without one


def of_rollout(
    processes: Group, policy: PolicySpec, workers: Workers, collected: Collected, batch: Batch,
    times: Mapping[str, float], env: Env, most: int | None = None,
) -> dict[str, float]:  # fmt: skip
    """Computes the ``rollout/`` metrics of an iteration, over all its episodes, and who waited for whom in it. A
    collective.

    Args:
        times: seconds of :data:`ROLLOUT_TIMES` in this rollout.
        most: tokens of an answer that sampling allows; None = as many as a record holds.
    """
    rows = batch.rows[(batch.ranks == processes.rank).numpy()]
    used = {name: np.unique(workers.slab.arrays[name][rows]) for name in policy.categories}
    memory = _memory(workers)
    seconds, policy_s, wait_s, ranks_s = (times[name] for name in ROLLOUT_TIMES)
    engine = {} if workers.engine is None else workers.engine.take_metrics()
    shares = processes.gather(RolloutShare(collected.stats, used, policy_s, wait_s, ranks_s, memory, engine))
    results, stats = collected.episodes, add_up([share.stats for share in shares])
    returns = np.array([result.episode_return for result in results])
    successes = sum(result.success for result in results)
    low, high = wilson(successes, len(results))
    ranks_wait = sum(share.ranks_s for share in shares) / len(shares) / seconds
    return {
        "rollout/success_rate": successes / len(results),
        "rollout/success_low": low,
        "rollout/success_high": high,
        "rollout/return_mean": float(returns.mean()),
        "rollout/return_std": float(returns.std()),
        **_progress(results, env),
        "rollout/episode_length_mean": float(np.mean([result.num_steps for result in results])),
        "rollout/episodes": len(results),
        "rollout/records": len(batch),
        "rollout/env_steps": stats.env_steps,
        "rollout/env_steps_per_s": stats.env_steps / seconds,
        "rollout/chunks_per_s": stats.chunks / seconds,
        "rollout/batch_size_mean": stats.policy_rows / max(stats.policy_calls, 1),
        "rollout/worker_restarts": stats.worker_restarts,
        "rollout/zero_advantage_share": batch.groups.zero_share,
        **_usage(policy.categories, [share.used for share in shares]),
        **_lengths(policy, batch, seconds, most),
        **_beside_the_plan(collected),
        **of_problems(env, stats.failures),
        **_of_engines([share.engine for share in shares]),
        "time/policy_share": sum(share.policy_s for share in shares) / len(shares) / seconds,
        "time/env_wait_share": sum(share.wait_s for share in shares) / len(shares) / seconds,
        "time/slot_idle_share": stats.slot_idle_s / max(stats.slot_s, 1e-9),
        **({"time/rank_wait_share": ranks_wait} if processes.size > 1 else {}),
        "time/worker_reset_s": stats.reset_s,
        "time/worker_step_s": stats.step_s,
        "time/worker_render_s": stats.render_s,
        "time/worker_video_s": stats.video_s,
        **_of_memory([share.memory for share in shares]),
    }


def _memory(workers: Workers) -> dict[str, int]:
    """Bytes of this process, of its env workers, and of the server that forks them if there is one."""
    server = {} if workers.server is None else {"template": proportional_memory(workers.server.pid)}
    return {"policy": proportional_memory(os.getpid()), **server, "slots": workers.pool.memory}


def _of_memory(shares: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Returns the memory of all processes, and its parts, of which it is the sum."""
    parts = {name: sum(share[name] for share in shares) / 1e9 for name in shares[0]}
    return {"memory/pss_gb": sum(parts.values()), **{f"memory/pss_{name}_gb": size for name, size in parts.items()}}


def _progress(results: Sequence[EpisodeResult], env: Env) -> dict[str, float]:
    """Returns how far robots got; nothing of texts, whose reward is a verdict."""
    if not kind_of(env.spec).has_steps:
        return {}
    return {"rollout/progress_mean": float(np.mean([result.progress for result in results]))}


def _usage(categories: Mapping[str, int], used: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Returns the share of a policy's discrete values that occurred in any process; nothing of a continuous policy."""
    if not categories:
        return {}
    occurred = sum(len(np.unique(np.concatenate([part[name] for part in used]))) for name in categories)
    return {"rollout/action_bin_usage": occurred / sum(categories.values())}


def _lengths(policy: PolicySpec, batch: Batch, seconds: float, most: int | None) -> dict[str, float]:
    """Returns how long the decisions were of a policy whose decisions differ in length, such as texts."""
    axis, lengths = policy.elements.length_axis, batch.counts.lengths
    if axis is None or lengths is None:
        return {}
    tokens, room = int(lengths.sum()), policy.elements.shape[axis]
    return {
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds,
        "rollout/tokens_mean": tokens / max(len(lengths), 1),
        "rollout/full_length_share": float((lengths == min(room, most or room)).float().mean()),
    }


def _of_engines(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of the processes' inference engines: restarts of all, else the largest."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for one in measured for name in one):
        values = [one[name] for one in measured if name in one]
        found[name] = sum(values) if name == "rollout/engine_restarts" else max(values)
    return found


def _beside_the_plan(collected: Collected) -> dict[str, float]:
    """Returns the metrics of refills, greedy episodes and a reward model, if there were any."""
    found: dict[str, float] = {}
    if collected.rounds > 1 or collected.dropped_groups:
        found |= {"rollout/sampling_rounds": collected.rounds, "rollout/dropped_groups": collected.dropped_groups}
    if collected.greedy:
        returns = [result.episode_return for result in collected.greedy]
        found |= {"rollout/greedy_episodes": len(returns), "rollout/greedy_return_mean": float(np.mean(returns))}
    if scores := [result.model_score for result in collected.episodes if result.model_score is not None]:
        found["rollout/reward_model_mean"] = float(np.mean(scores))
    return found


def of_update(processes: Group, trainer: Trainer, device: torch.device, seconds: float) -> dict[str, float]:
    """Computes the rates of an iteration's update over all processes, and its peak of device memory. A collective.

    Args:
        seconds: that the update took.
    """
    elements = trainer.policy.spec.elements
    found = {"train/samples_per_s": trainer.samples / seconds}
    if elements.length_axis is None:
        found["train/tokens_per_s"] = trainer.samples * math.prod(elements.shape) / seconds
    if trainer.flops:
        found["train/tflops_per_s"] = trainer.flops / seconds / 1e12
        if trainer.peak_flops is not None:
            found["time/train_mfu"] = trainer.flops / seconds / (trainer.peak_flops * processes.size)
    return found | {name: max(processes.gather(value)) for name, value in device_memory(device).items()}


def device_memory(device: torch.device) -> dict[str, float]:
    """Returns a GPU's peak memory (GB) since the last call; nothing for a CPU, as ``memory/pss_gb`` covers its
    processes."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"memory/device_peak_gb": peak / 1e9}


def with_times(metrics: Mapping[str, float], sections: Sections, together: bool = False) -> dict[str, float]:
    """Adds the ``time/`` metrics of an iteration of reinforcement learning to ``metrics``: seconds and shares.

    Seconds that ``metrics`` has already stay: another process may have begun the iteration.

    Args:
        together: rollouts run beside updates. The iteration's rollout has then run beside the update before.
    """
    seconds = {f"{name}_s": metrics.get(f"{name}_s") or sections.seconds(name) for name in RL_TIMES}
    least = seconds["time/train_s"] if together else sum(seconds.values())
    elapsed = max(sections.elapsed, least)
    seconds |= {f"{name}_share": seconds[f"{name}_s"] / elapsed for name in RL_TIMES}
    return {**metrics, **{name: value for name, value in seconds.items() if value}, "time/iteration_s": elapsed}


def with_sft_times(metrics: Mapping[str, float], sections: Sections, samples: int) -> dict[str, float]:
    """Adds the ``time/`` metrics of an iteration of supervised training, and the rate of the ``samples`` that all
    processes have trained on."""
    seconds = {name: sections.seconds(name) for name in SFT_TIMES}
    return {
        **metrics,
        **({"sft/samples_per_s": samples / seconds["time/train"]} if samples else {}),
        **{f"{name}_s": value for name, value in seconds.items() if value},
        "time/iteration_s": sections.elapsed,
    }
