"""``python -m embodied.tools.bench env=libero_10 …``: measures where a rollout's time goes and proposes sizes.

Takes the same overrides as ``embodied.train``. Runs one env worker and the policy at a few batch sizes; trains nothing
and leaves no files. The worker runs alone: neighbours that share memory bandwidth or a GPU are not measured. How sizes
follow from the seconds says :mod:`embodied.tools.library.sizes`. What needs torch is imported when it is used, so that
``--help`` and a refused key answer at once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, printed
from embodied.observe.terminal.console import Console, make_console
from embodied.parallel.group import Group
from embodied.protocols import Batched
from embodied.run.arguments import parse_argv
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.preflight import check
from embodied.run.build.workers.pools import pool_config
from embodied.run.build.workers.worker_memory import UNKNOWN, WorkerMemory
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.memory import free_memory, proportional_memory
from embodied.runtime.pool.pool import Pool
from embodied.runtime.slab import Slab, info_fields, runtime_fields
from embodied.schema import Config
from embodied.schema.compose.compose import compose
from embodied.tools.library.sizes import EnvCost, Machine, Proposal, call_s, filled_up, propose

if TYPE_CHECKING:
    import torch

    from embodied.protocols import Policy
    from embodied.types import EnvSpec, Sampling

CHUNKS = 12  # number of measured chunks
BATCHES = (1, 2, 4, 8, 16)
NOT_KNOWN = 2**62  # bytes of a machine whose kernel does not say what is free
POLICY_S = 5.0  # time limit for one batch size, but at least three calls


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an explained error."""
    try:
        overrides, folders, _ = parse_argv(sys.argv[1:] if argv is None else argv, "tools.bench")
        checked = check(compose(overrides, "train", folders), Group())
        run(checked.config, checked.sides, make_console())
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    return 0


def run(config: Config, sides: Sides, console: Console) -> None:
    side = sides.train
    if isinstance(side.env, Batched):
        raise ConfigError(
            f"{side.config.target} hosts all slots of a worker in one simulator, and this measures one slot",
            "set env.num_workers to 1 or 2 a GPU, and env.train.total_num_envs as large as its memory allows",
        )
    with console.progress("building the policy", brief=True):
        from embodied.run.build.policy import build_policy, sampling

        policy, device = build_policy(config, Group(), sides)
    with tempfile.TemporaryDirectory() as folder:
        console.say("one env worker: starting, building the simulator, two episodes' beginnings …")
        with console.progress("measuring an env worker", brief=True):
            env, obs = measure_env(config, side, policy, Path(folder))
    console.say("the policy …")
    with console.progress("measuring the policy", brief=True):
        calls = measure_policy(sampling(config.algorithm.sampling_params), side.spec, policy, device, obs)
    machine = Machine(len(os.sched_getaffinity(0)), free_memory() or NOT_KNOWN)
    chunks = -(-side.max_steps // policy.spec.num_action_chunks)
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


def measure_env(
    config: Config, side: ConfiguredEnv, policy: Policy, folder: Path
) -> tuple[EnvCost, dict[str, np.ndarray]]:  # fmt: skip
    """Measures the cost of one env worker with one slot: its start, resets to two starts of a task, chunks of random
    actions.

    Returns:
        its cost, and its last observation.
    """
    spec = policy.spec
    own = runtime_fields(spec.num_action_chunks) | info_fields(side.spec.info)
    fields = {**side.spec.obs, **spec.decision, **own}
    slab = Slab.create(fields, 2, "bench.slab")
    drawn = side.spec.action.sample(np.random.default_rng(0), CHUNKS * spec.num_action_chunks)
    actions = drawn.reshape(CHUNKS, spec.num_action_chunks, *drawn.shape[1:])
    try:
        began = time.monotonic()
        pool = Pool(replace(pool_config(side, 1, config, folder, Group()), max_restarts=0), slab)
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
    says = WorkerMemory.of(side, 1, 1, "spawn")
    cost = EnvCost(
        start_s, resets[0].reset_s, resets[1].reset_s, median(c.step_s for c in full), median(c.render_s for c in full),
        min(1.0, cpu / worked), max(memory, says.worker), None if says.says == UNKNOWN else says.further,
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
    return (
        sum(int(t.read_text(encoding="utf-8").split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    )


def measure_policy(
    drawn: Sampling, env: EnvSpec, policy: Policy, device: torch.device, obs: Mapping[str, np.ndarray]
) -> dict[int, float]:
    """Measures the seconds of a policy call for several numbers of rows: rows → median of at least three."""
    import torch

    policy.bind(env)
    noise = policy.spec.noise.shape
    seconds = {}
    with torch.inference_mode():
        for rows in BATCHES:
            batch = {name: torch.from_numpy(np.repeat(value, rows, 0)).to(device) for name, value in obs.items()}
            printed = policy.encode_instructions([env.tasks[0]] * rows)
            batch |= {name: values.to(device) for name, values in printed.items()}
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


# -- saying ----------------------------------------------------------------------------------------------------------


def env_rows(env: EnvCost) -> list[list[object]]:
    return [
        ["start", f"{env.start_s:.3g} s"],
        ["reset, the first of a task", f"{env.first_reset_s:.3g} s"],
        ["reset, to another start", f"{env.reset_s:.3g} s"],
        ["steps of a chunk", f"{env.step_s:.3g} s"],
        ["render of a chunk", f"{env.render_s:.3g} s"],
        ["CPU while it works", f"{env.cpu_share:.0%} of a core"],
        ["memory, with its tasks", f"{env.memory / 1e9:.3g} GB"],
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
    from embodied.run.build.simulators import policy_batch

    most = policy_batch(config.rollout, proposal.total_num_envs)
    filled = filled_up(config) and proposal.min_batch % most
    return f"{proposal.min_batch}, filled up to whole calls of {most}" if filled else f"{proposal.min_batch}"


if __name__ == "__main__":
    sys.exit(piped(main))
