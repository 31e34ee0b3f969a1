"""Sizes of a rollout for a machine, from what ``embodied.tools.bench`` has measured on it.

Workers until cores or memory are used up, a second slot for each worker that would otherwise wait for the policy, and
the smallest batch at which the policy keeps up with all workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embodied.run.memory.fitting import whole_groups
from embodied.schema import Config

WORTH_A_SLOT = 0.1  # share of a chunk's time; a longer wait for the policy is worth a second slot
MEMORY_SHARE = 0.8  # share of the free memory for workers


@dataclass(frozen=True)
class EnvCost:
    """Seconds and bytes of one worker with one slot. ``step_s`` and ``render_s`` are for one chunk."""

    start_s: float
    first_reset_s: float
    reset_s: float
    step_s: float
    render_s: float
    cpu_share: float  # CPU seconds per second of work; the rest is waiting (GPU, device, other process)
    memory: int  # with all tasks that it keeps
    slot: int | None = None  # bytes of a further slot; None = not known, as much as a worker

    @property
    def chunk_s(self) -> float:
        return self.step_s + self.render_s


@dataclass(frozen=True)
class Machine:
    cores: int
    free_memory: int


@dataclass(frozen=True)
class Proposal:
    """Sizes, each with its reason."""

    num_workers: int
    total_num_envs: int
    rollout_epoch: int
    min_batch: int
    reasons: Mapping[str, str]

    @property
    def overrides(self) -> str:
        return (
            f"env.num_workers={self.num_workers} env.train.total_num_envs={self.total_num_envs} "
            f"algorithm.rollout_epoch={self.rollout_epoch} rollout.min_batch={self.min_batch}"
        )


def propose(env: EnvCost, calls: Mapping[int, float], machine: Machine, config: Config, chunks: int) -> Proposal:
    """Proposes sizes for this machine.

    Args:
        calls: seconds of a policy call by its rows.
        chunks: chunks of an episode that runs to its step limit.
    """
    reasons: dict[str, str] = {}
    workers = _workers(env, machine, reasons)
    rate = workers / (env.chunk_s + env.reset_s / chunks)  # records per second that the workers can make
    left = MEMORY_SHARE * machine.free_memory - workers * env.memory
    fits = workers + max(0, int(left / max(env.memory if env.slot is None else env.slot, 1)))
    wait = call_s(calls, config, workers, workers) / env.chunk_s
    slots = min(2 * workers, fits) if wait > WORTH_A_SLOT else workers
    because = {
        True: f"2 a worker: it works while the other waits for the policy ({wait:.0%} of a chunk's time)",
        False: f"1 a worker: the policy's answer takes {wait:.0%} of a chunk's time",
    }[slots > workers]
    reasons["env.train.total_num_envs"] = f"{slots}; {because}"
    episodes = config.algorithm.rollout_epoch * config.env.train.total_num_envs
    epochs = whole_groups(config, slots)
    reasons["algorithm.rollout_epoch"] = (
        f"{epochs}; keeps {epochs * slots} episodes an iteration (now {episodes}), whole groups of "
        f"{config.algorithm.group_size}"
    )
    batch = next((b for b in range(1, slots + 1) if b / call_s(calls, config, slots, b) >= rate), 0)
    if batch:
        why = f"the workers make {rate:.3g} records a second, and the policy answers as many with a batch of {batch}"
    else:
        batch = max(1, slots // 2)
        why = (
            f"the policy is slower than the {rate:.3g} records a second of the workers at any batch; half of the slots"
        )
    reasons["rollout.min_batch"] = f"{batch}; {why}"
    return Proposal(workers, slots, epochs, batch, reasons)


def _workers(env: EnvCost, machine: Machine, reasons: dict[str, str]) -> int:
    by_cpu = max(1, int(machine.cores / max(env.cpu_share, 0.05)))
    by_memory = max(1, int(MEMORY_SHARE * machine.free_memory / max(env.memory, 1)))
    workers = min(by_cpu, by_memory)
    if by_memory < by_cpu:
        why = f"memory: {machine.free_memory / 1e9:.1f} GB are free and a worker takes {env.memory / 1e9:.2f} GB"
    else:
        why = f"{machine.cores} cores, and a worker uses {env.cpu_share:.0%} of one while it works"
    reasons["env.num_workers"] = f"{workers}; {why}"
    return workers


def call_s(calls: Mapping[int, float], config: Config, slots: int, rows: int) -> float:
    """Returns the seconds in which the policy answers ``rows`` of ``slots``.

    A call has at most ``rollout.policy_batch`` rows. It is filled up if its shape is fixed.
    """
    from embodied.run.build.simulators import policy_batch

    most = policy_batch(config.rollout, slots)
    whole, rest = divmod(rows, most)
    return whole * _seconds(calls, most) + (_seconds(calls, most if filled_up(config) else rest) if rest else 0.0)


def filled_up(config: Config) -> bool:
    """Whether the policy's calls have one shape, so that smaller batches cost as much as full ones."""
    return config.runner.deterministic or not config.rollout.enforce_eager


def _seconds(calls: Mapping[int, float], rows: int) -> float:
    """Interpolates between the measured batch sizes, and scales in proportion beyond them."""
    sizes = sorted(calls)
    if rows > sizes[-1]:
        return calls[sizes[-1]] * rows / sizes[-1]
    return float(np.interp(rows, sizes, [calls[size] for size in sizes]))
