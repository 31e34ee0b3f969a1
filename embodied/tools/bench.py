"""``python -m embodied.tools.bench env=libero_10 …``: measures where a rollout's time goes and proposes sizes.

Takes the same overrides as ``embodied.train``. Runs one env worker and the policy at a few batch sizes; trains nothing
and leaves no files. The worker runs alone: neighbours that share memory bandwidth or a GPU are not measured. The
proposal is simple: workers until cores or memory are used up, a second slot for each worker that would otherwise wait
for the policy, and the smallest batch at which the policy keeps up with all workers. What needs torch is imported when
it is used, so that ``--help`` and a refused key answer at once.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, told
from embodied.observe.console import Console, make_console
from embodied.parallel.group import Group
from embodied.protocols import Batched
from embodied.run.pools import pool_config
from embodied.run.preflight import Checked, check
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.memory import proportional_memory
from embodied.runtime.pool import Pool
from embodied.runtime.slab import Slab, available_memory, info_fields, runtime_fields
from embodied.schema import Config
from embodied.schema.arguments import parse_argv
from embodied.schema.compose import compose

if TYPE_CHECKING:
    import torch

    from embodied.protocols import Policy

CHUNKS = 12  # number of measured chunks
BATCHES = (1, 2, 4, 8, 16)
POLICY_S = 5.0  # time limit for one batch size, but at least three calls
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
    memory: int

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


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an explained error."""
    try:
        overrides, folders, _ = parse_argv(sys.argv[1:] if argv is None else argv, "tools.bench")
        run(check(compose(overrides, "train", folders), Group()), make_console())
    except EmbodiedError as error:
        print(told(error), file=sys.stderr)
        return 2
    return 0


def run(checked: Checked, console: Console) -> None:
    config = checked.config
    if isinstance(checked.train.env, Batched):
        raise ConfigError(
            f"{checked.train.config.target} hosts all slots of a worker in one simulator, and this measures one slot",
            "set env.num_workers to 1 or 2 a GPU, and env.train.total_num_envs as large as its memory allows",
        )
    with console.progress("building the policy", brief=True):
        from embodied.run.build import build_policy

        policy, device = build_policy(checked)
    with tempfile.TemporaryDirectory() as folder:
        console.say("one env worker: starting, building the simulator, two episodes' beginnings …")
        with console.progress("measuring an env worker", brief=True):
            env, obs = measure_env(checked, policy, Path(folder))
    console.say("the policy …")
    with console.progress("measuring the policy", brief=True):
        calls = measure_policy(checked, policy, device, obs)
    machine = Machine(len(os.sched_getaffinity(0)), available_memory())
    chunks = -(-checked.train.max_steps // policy.spec.num_action_chunks)
    proposal = propose(env, calls, machine, config, chunks)
    console.table("one worker, alone", env_rows(env))
    console.table(
        f"policy on {device}",
        [["rows", "s a call", "rows/s"], *([b, f"{s:.3g}", f"{b / s:.3g}"] for b, s in calls.items())],
    )
    console.table("where the time of a record goes", time_rows(env, calls, proposal, config, chunks))
    console.table("proposal", [[name, reason] for name, reason in proposal.reasons.items()])
    console.say(f"python -m embodied.train … {proposal.overrides}")


# -- measuring -------------------------------------------------------------------------------------------------------


def measure_env(checked: Checked, policy: Policy, folder: Path) -> tuple[EnvCost, dict[str, np.ndarray]]:
    """Measures one worker with one slot: its start, resets to two starts of a task, chunks of random actions.

    Returns:
        its cost, and its last observation.
    """
    side, spec = checked.train, policy.spec
    own = runtime_fields(spec.num_action_chunks) | info_fields(side.spec.info)
    fields = {**side.spec.obs, **spec.decision, **own}
    slab = Slab.create(fields, 2, "bench.slab")
    drawn = side.spec.action.sample(np.random.default_rng(0), CHUNKS * spec.num_action_chunks)
    actions = drawn.reshape(CHUNKS, spec.num_action_chunks, *drawn.shape[1:])
    try:
        began = time.monotonic()
        pool = Pool(replace(pool_config(side, 1, checked.config, folder, Group()), max_restarts=0), slab)
        try:
            start_s = time.monotonic() - began
            resets = [_reset(pool, side.max_steps, start) for start in (0, min(1, side.spec.num_init_states[0] - 1))]
            cpu, chunks = _cpu_seconds(pool.pids[0]), []
            for number in range(CHUNKS):
                slab.arrays["actions"][number % 2] = actions[number]
                chunks.append(_do(pool, Command(Kind.STEP, 0, row=number % 2, next_row=1 - number % 2)))
                if chunks[-1].ended:
                    _reset(pool, side.max_steps, 0)
            cpu = _cpu_seconds(pool.pids[0]) - cpu
            memory = proportional_memory(pool.pids[0])
            obs = {name: slab.arrays[name][:1].copy() for name in side.spec.obs}
        finally:
            pool.close()
    finally:
        slab.close()
    full = [chunk for chunk in chunks if chunk.num_steps == spec.num_action_chunks] or chunks
    worked = sum(chunk.step_s + chunk.render_s for chunk in chunks)
    cost = EnvCost(
        start_s, resets[0].reset_s, resets[1].reset_s, median(c.step_s for c in full), median(c.render_s for c in full),
        min(1.0, cpu / worked), memory,
    )  # fmt: skip
    return cost, obs


def _reset(pool: Pool, max_steps: int, start: int) -> Completion:
    """Resets to one of the first task's starts. Returning to a start costs less than the first visit."""
    command = Command(
        Kind.RESET, 0, next_row=0, task_id=0, init_state_id=start, seed=start, max_steps=max_steps,
        ignore_terminations=True,
    )  # fmt: skip
    return _do(pool, command)


def _do(pool: Pool, command: Command) -> Completion:
    pool.send(command)
    (done,) = pool.recv(1)
    assert isinstance(done, Completion)
    return done


def _cpu_seconds(pid: int) -> float:
    return sum(int(t.read_text().split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def measure_policy(
    checked: Checked, policy: Policy, device: torch.device, obs: Mapping[str, np.ndarray]
) -> dict[int, float]:
    """Measures the seconds of a policy call by its rows: the median of at least three."""
    import torch

    from embodied.run.build import sampling

    policy.bind(checked.train.spec)
    drawn = sampling(checked.config.algorithm.sampling_params)
    noise = policy.spec.noise.shape
    seconds = {}
    with torch.inference_mode():
        for rows in BATCHES:
            batch = {name: torch.from_numpy(np.repeat(value, rows, 0)).to(device) for name, value in obs.items()}
            told = policy.encode_instructions([checked.train.spec.tasks[0]] * rows)
            batch |= {name: values.to(device) for name, values in told.items()}
            drawn_noise = torch.rand(rows, *noise, device=device)

            def call(batch: Any = batch, noise: torch.Tensor = drawn_noise) -> None:
                decision = policy.act(batch, noise, drawn)
                decision.fields["actions"].cpu()  # wait for the device, as the rollout does

            seconds[rows] = _median_seconds(call)
    return seconds


def _median_seconds(call: Callable[[], None]) -> float:
    call()
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < POLICY_S and len(taken) < 10):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken)


# -- proposing -------------------------------------------------------------------------------------------------------


def propose(env: EnvCost, calls: Mapping[int, float], machine: Machine, config: Config, chunks: int) -> Proposal:
    """Proposes sizes for this machine.

    Args:
        calls: seconds of a policy call by its rows.
        chunks: chunks of an episode that runs to its step limit.
    """
    reasons: dict[str, str] = {}
    workers = _workers(env, machine, reasons)
    rate = workers / (env.chunk_s + env.reset_s / chunks)  # records per second that the workers can make
    fits = max(workers, int(MEMORY_SHARE * machine.free_memory / max(env.memory, 1)))
    wait = call_s(calls, config, workers, workers) / env.chunk_s
    slots = min(2 * workers, fits) if wait > WORTH_A_SLOT else workers
    because = {
        True: f"2 a worker: it works while the other waits for the policy ({wait:.0%} of a chunk's time)",
        False: f"1 a worker: the policy's answer takes {wait:.0%} of a chunk's time",
    }[slots > workers]
    reasons["env.train.total_num_envs"] = f"{slots}; {because}"
    episodes = config.algorithm.rollout_epoch * config.env.train.total_num_envs
    epochs = math.ceil(episodes / slots)
    while (epochs * slots) % config.algorithm.group_size:
        epochs += 1
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
    from embodied.run.simulators import policy_batch

    most = policy_batch(config.rollout, slots)
    whole, rest = divmod(rows, most)
    return whole * _seconds(calls, most) + (_seconds(calls, most if _filled_up(config) else rest) if rest else 0.0)


def _filled_up(config: Config) -> bool:
    """Whether the policy's calls have one shape, so that smaller batches cost as much as full ones."""
    return config.runner.deterministic or not config.rollout.enforce_eager


def _seconds(calls: Mapping[int, float], rows: int) -> float:
    """Interpolates between the measured batch sizes, and scales in proportion beyond them."""
    sizes = sorted(calls)
    if rows > sizes[-1]:
        return calls[sizes[-1]] * rows / sizes[-1]
    return float(np.interp(rows, sizes, [calls[size] for size in sizes]))


# -- saying ----------------------------------------------------------------------------------------------------------


def env_rows(env: EnvCost) -> list[list[object]]:
    return [
        ["start", f"{env.start_s:.3g} s"],
        ["reset, the first of a task", f"{env.first_reset_s:.3g} s"],
        ["reset, to another start", f"{env.reset_s:.3g} s"],
        ["steps of a chunk", f"{env.step_s:.3g} s"],
        ["render of a chunk", f"{env.render_s:.3g} s"],
        ["CPU while it works", f"{env.cpu_share:.0%} of a core"],
        ["memory", f"{env.memory / 1e9:.3g} GB"],
    ]


def time_rows(
    env: EnvCost, calls: Mapping[int, float], proposal: Proposal, config: Config, chunks: int
) -> list[list[object]]:
    """Returns rows with the seconds of worker and policy for one record, with the proposed batch."""
    policy = call_s(calls, config, proposal.total_num_envs, proposal.min_batch) / proposal.min_batch
    worker = env.step_s + env.render_s + env.reset_s / chunks
    parts = {"steps": env.step_s, "render": env.render_s, "reset, its share": env.reset_s / chunks}
    rows: list[list[object]] = [["of a worker", "s a record", "share"]]
    rows += [[name, f"{seconds:.3g}", f"{seconds / worker:.0%}"] for name, seconds in parts.items()]
    rows.append([f"all {proposal.num_workers} workers", f"{worker / proposal.num_workers:.3g}", ""])
    rows.append([f"policy, rows a call: {_rows_said(config, proposal)}", f"{policy:.3g}", ""])
    return rows


def _rows_said(config: Config, proposal: Proposal) -> str:
    from embodied.run.simulators import policy_batch

    most = policy_batch(config.rollout, proposal.total_num_envs)
    filled = _filled_up(config) and proposal.min_batch % most
    return f"{proposal.min_batch}, filled up to whole calls of {most}" if filled else f"{proposal.min_batch}"


if __name__ == "__main__":
    sys.exit(piped(main))
