"""What is said of an iteration: metrics for the trackers, one line for the person."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied import schema
from embodied.learn.batch import Batch
from embodied.learn.trainer import Trainer
from embodied.observe.statistics import wilson
from embodied.observe.timing import Sections
from embodied.parallel.group import World
from embodied.run.build import Parts
from embodied.run.collector import Collector
from embodied.run.conditions import conditions, limit_of
from embodied.run.dynamic_sampling import Collected, add_up
from embodied.run.preflight import EnvSide, slots_of, workers_of
from embodied.runtime.rollout import RolloutStats
from embodied.types import PolicySpec


@dataclass(frozen=True)
class Share:
    """What one rank knows of an iteration's rollout that the others do not."""

    stats: RolloutStats
    used: Mapping[str, np.ndarray]  # integer field of its decisions → the values that occurred, each once
    policy_s: float
    wait_s: float  # for env workers
    ranks_s: float  # for other ranks
    memory: int  # bytes


def rollout(
    world: World, policy: PolicySpec, collector: Collector, collected: Collected, batch: Batch, sections: Sections
) -> dict[str, float]:  # fmt: skip
    """The ``rollout/`` metrics of an iteration, of all its episodes, and who waited for whom in it: over all ranks,
    which meet here."""
    rows = batch.rows[(batch.ranks == world.rank).numpy()]
    used = {name: np.unique(collector.slab.arrays[name][rows]) for name in policy.categories}
    memory = sum(map(proportional_memory, [os.getpid(), *collector.pool.pids]))
    policy_s, wait_s, ranks_s = map(sections.seconds, ("rollout/policy", "rollout/wait", "rollout/ranks"))
    shares = world.gather(Share(collected.stats, used, policy_s, wait_s, ranks_s, memory))
    results, stats = collected.episodes, add_up([share.stats for share in shares])
    returns = np.array([result.episode_return for result in results])
    successes, seconds = sum(result.success for result in results), sections.seconds("time/rollout")
    low, high = wilson(successes, len(results))
    return {
        "rollout/success_rate": successes / len(results),
        "rollout/success_low": low,
        "rollout/success_high": high,
        "rollout/return_mean": float(returns.mean()),
        "rollout/return_std": float(returns.std()),
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
        **_beside_the_plan(collected),
        "time/policy_share": sum(share.policy_s for share in shares) / len(shares) / seconds,
        "time/env_wait_share": sum(share.wait_s for share in shares) / len(shares) / seconds,
        "time/slot_idle_share": stats.slot_idle_s / max(stats.slot_s, 1e-9),
        **({"time/rank_wait_share": sum(s.ranks_s for s in shares) / len(shares) / seconds} if world.size > 1 else {}),
        "time/worker_reset_s": stats.reset_s,
        "time/worker_step_s": stats.step_s,
        "time/worker_render_s": stats.render_s,
        "time/worker_video_s": stats.video_s,
        "memory/pss_gb": sum(share.memory for share in shares) / 1e9,
    }


def _usage(categories: Mapping[str, int], used: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """The share of a policy's discrete values that occurred in any rank's records; nothing of a continuous policy."""
    if not categories:
        return {}
    occurred = sum(len(np.unique(np.concatenate([part[name] for part in used]))) for name in categories)
    return {"rollout/action_bin_usage": occurred / sum(categories.values())}


def _beside_the_plan(collected: Collected) -> dict[str, float]:
    """Of refills and greedy episodes, if there were any."""
    found: dict[str, float] = {}
    if collected.rounds > 1 or collected.dropped_groups:
        found |= {"rollout/sampling_rounds": collected.rounds, "rollout/dropped_groups": collected.dropped_groups}
    if collected.greedy:
        returns = [result.episode_return for result in collected.greedy]
        found |= {"rollout/greedy_episodes": len(returns), "rollout/greedy_return_mean": float(np.mean(returns))}
    return found


def training(parts: Parts) -> dict[str, float]:
    """The rates of an iteration's updates over all ranks, and the most that they took of a device's memory."""
    trainer, seconds = parts.trainer, parts.sections.seconds("time/train")
    assert isinstance(trainer, Trainer)
    elements = math.prod(parts.policy.spec.elements.shape)
    found = {
        "train/samples_per_s": trainer.samples / seconds,
        "train/tokens_per_s": trainer.samples * elements / seconds,
    }
    if trainer.flops:
        found["train/tflops_per_s"] = trainer.flops / seconds / 1e12
        if trainer.peak_flops is not None:
            found["time/train_mfu"] = trainer.flops / seconds / (trainer.peak_flops * parts.world.size)
    return found | {name: max(parts.world.gather(value)) for name, value in device_memory(parts.device).items()}


def device_memory(device: torch.device) -> dict[str, float]:
    """The peak since the last call, of a GPU; nothing on a CPU, whose processes ``memory/pss_gb`` covers."""
    if device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"memory/device_peak_gb": peak / 1e9}


def log(parts: Parts, iteration: int, metrics: dict[str, float], left_s: float) -> None:
    """To the trackers and the console, which rank 0 has; ``left_s``: estimated seconds until the end of the run."""
    if not parts.world.is_main:
        return
    sections = parts.sections
    names = ("time/rollout", "time/train", "time/eval", "time/save")
    times = {f"{name}_s": sections.seconds(name) or metrics.get(f"{name}_s", 0.0) for name in names}
    elapsed = max(sections.elapsed, sum(times.values()))  # longer, if another process has begun the iteration
    times |= {f"{name}_share": times[f"{name}_s"] / elapsed for name in names}
    metrics = {**metrics, **{name: value for name, value in times.items() if value}, "time/iteration_s": elapsed}
    assert parts.trackers is not None
    parts.trackers.log(iteration, metrics)
    place = {"iteration": iteration, "iterations": parts.config.runner.max_epochs, "left_s": left_s}
    parts.console.iteration({**metrics, **place})
    if metrics["rollout/zero_advantage_share"] == 1:
        parts.console.say(
            "  nothing was learnt: in every group all returns were equal. A policy that never (or always) succeeds "
            "gives no signal: start from a better checkpoint, use easier tasks, or env.train.reward_mode=dense"
        )


def proportional_memory(pid: int) -> int:
    """Bytes of memory that a process accounts for, shared pages divided among their users (PSS); 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except OSError:
        return 0


def plan_lines(parts: Parts) -> list[list[str]]:
    """The derived numbers of a run, for ``runner.dry_run`` and the top of the log."""
    if parts.config.runner.only_eval:
        return evaluation_lines(parts)
    config, sizes, train, world = parts.config, parts.sizes, parts.checked.train, parts.world
    algorithm, actor = config.algorithm, config.actor
    chunk = parts.policy.spec.num_action_chunks
    return [
        ["tasks", f"{len(train.spec.tasks)} ({sum(train.spec.num_init_states)} starts)"],
        ["episodes per iteration", f"{sizes.episodes} = {sizes.groups} starts × {algorithm.group_size}{_extra(parts)}"],
        [
            "steps of an episode",
            f"at most {train.max_steps} control steps = {-(-train.max_steps // chunk)} chunks of {chunk}"
            + limit_of(train),
        ],
        [
            "optimizer steps per iteration",
            f"at most {sizes.optimizer_steps} of {actor.global_batch_size} records",
        ],
        [
            "gradient accumulation",
            f"{-(-actor.global_batch_size // actor.micro_batch_size)} parts of at most {actor.micro_batch_size}",
        ],
        *_evaluations(parts),
        *([["processes", f"{world.size}, {parts.parallel}"]] if world.size > 1 else []),
        *_slot_lines(parts, train, world.divide(train.config.total_num_envs)),
        *policy_lines(parts),
        ["device", f"{parts.device}, {threads(config)}, {_peak(parts)}"],
        ["run folder", str(parts.folder.path)],
    ]


def evaluation_lines(parts: Parts) -> list[list[str]]:
    """The same for an evaluation alone."""
    under, side, world = conditions(parts, 0), parts.checked.eval, parts.world
    tasks, chunk = len(side.spec.tasks), parts.policy.spec.num_action_chunks
    episodes, replaced = tasks * under.episodes_per_task, parts.config.runner.ckpt_path is not None
    return [
        [
            "evaluated",
            under.weights + (" (its weights replace those that the policy was built with)" if replaced else ""),
        ],
        ["episodes", f"{episodes} = {tasks} tasks × {under.episodes_per_task}, {under.starts}"],
        ["steps of an episode", f"{under.limit}; {-(-under.max_steps // chunk)} chunks of {chunk}"],
        ["steps in all", f"at most {episodes * under.max_steps:,} control steps"],
        ["reward", f"{under.reward_mode} × {under.reward_coef:g}{', changes of it' if under.use_rel_reward else ''}"],
        *([["processes", f"{world.size}"]] if world.size > 1 else []),
        *_slot_lines(parts, side, slots_of(parts.config, world)),
        ["policy", _described(parts)],
        ["device", f"{parts.device}, {threads(parts.config)}"],
        ["run folder", str(parts.folder.path)],
    ]


def _evaluations(parts: Parts) -> list[list[str]]:
    """When a training evaluates, and under which conditions."""
    interval = parts.config.runner.val_check_interval
    if interval <= 0:
        return []
    under, tasks = conditions(parts, 0), len(parts.checked.eval.spec.tasks)
    episodes = f"{tasks * under.episodes_per_task} episodes = {tasks} tasks × {under.episodes_per_task}"
    return [["evaluation", f"every {interval} iterations and at the end: {episodes}, each {under.limit}"]]


def _slot_lines(parts: Parts, side: EnvSide, slots: int) -> list[list[str]]:
    from embodied.runtime.slab import slab_bytes

    sizes, world = parts.sizes, parts.world
    each = " in each process" if world.size > 1 else ""
    observation = (f"{name} {field.dtype}{list(field.shape)}" for name, field in side.spec.obs.items())
    return [
        ["env slots, workers", f"{slots}, {workers_of(side, parts.config, slots, world)}{each}"],
        ["observation", ", ".join(observation)],
        ["slab", f"{sizes.rows} records, {slab_bytes(sizes.fields, sizes.rows) / 2**20:.1f} MiB{each}"],
    ]


def policy_lines(parts: Parts) -> list[list[str]]:
    """What the policy says of itself, and the checkpoint whose weights replaced those that it was built with."""
    rows = [["policy", _described(parts)]]
    if (checkpoint := parts.config.runner.ckpt_path) is not None:
        rows.append(["starts from the weights of", checkpoint])
    return rows


def _described(parts: Parts) -> str:
    return ", ".join(f"{name} {fact}" for name, fact in parts.policy.describe().items())


def threads(config: schema.Config) -> str:
    """Of torch on the CPU, for a line of the plan."""
    training = config.actor.num_threads
    return f"{config.runner.num_threads} threads" + ("" if training is None else f", {training} in training")


def _peak(parts: Parts) -> str:
    assert isinstance(parts.trainer, Trainer)
    peak, setting = parts.trainer.peak_flops, parts.config.runner.peak_tflops
    if peak is None:
        return "no MFU (runner.peak_tflops is null)"
    return f"peak {peak / 1e12:.3g} TFLOP/s ({'measured' if setting == 'measure' else 'runner.peak_tflops'})"


def _extra(parts: Parts) -> str:
    """What an iteration may run beside its plan; all of it fits into the same rows."""
    algorithm, groups = parts.config.algorithm, parts.sizes.groups
    texts = []
    if algorithm.dynamic_sampling:
        refills = algorithm.max_sampling_rounds - 1
        texts.append(f"at most {refills} refills of groups without a gradient, into the rows of those")
    if algorithm.adv_type == "remax":
        starts = groups if parts.checked.train.config.use_fixed_reset_state_ids else parts.sizes.episodes
        texts.append(f"{starts} greedy episodes, whose records are not kept")
    return "".join(f"; {text}" for text in texts)


def places(parts: Parts) -> list[list[str]]:
    """Where a run left what it made."""
    folder, config = parts.folder.path, parts.config
    rows = [["run folder", str(folder)]]
    if "jsonl" in config.runner.logger.logger_backends and (folder / "metrics.jsonl").exists():
        rows.append(["metrics", str(folder / "metrics.jsonl")])
    if (folder / "tensorboard").exists():
        rows.append(["TensorBoard", f"tensorboard --logdir {folder / 'tensorboard'}"])
    if (folder / "eval").exists():
        rows.append(["evaluations", str(folder / "eval")])
    if saved := parts.checkpoints.all():
        rows.append(["checkpoint", str(saved[-1])])
    for side in (parts.checked.train, parts.checked.eval):
        videos = side.config.video_cfg
        if videos.save_video:
            rows.append([f"videos ({side.name})", videos.video_base_dir])
    return rows
