"""Real observations of a checkpoint's env, for exports to measure on: a few starts, and what the policy sees after its
first decisions.

The env is built in a worker process, as in a run; nothing of the run's configuration is needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from embodied.errors import CheckpointError, ConfigError, EnvsDifferError
from embodied.instructions import of_rows
from embodied.learn.origin import Origin
from embodied.lib.spec_json import to_json
from embodied.lib.targets import load_target
from embodied.observe.timing import Sections
from embodied.protocols import Batched, Env, Examples, Policy
from embodied.random import Stream
from embodied.run.build.action_kind import kind_of
from embodied.runtime.plan import eval_plan
from embodied.runtime.policy.policy_port import OnePass
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Job, Rollout, Schedule
from embodied.runtime.slab import Slab, info_fields, runtime_fields
from embodied.runtime.worker.declared import Declared, differences
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import EnvSpec, Episode, Sampling

PLANNED = ("obs", "cameras", "action", "tasks", "num_init_states")
"""What of an env's spec the policy and the plan of the episodes stand on."""
OF_A_START = 3  # observations: at the start, and after one and two decisions
DEADLINES = Deadlines(init=120.0, reset=600.0, step=120.0)
GREEDY = Sampling(do_sample=False)


def observe(
    origin: Origin, policy: Policy, count: int, device: torch.device, say: Callable[[str], None] = print
) -> Examples:  # fmt: skip
    """Runs episodes in the policy's own simulator and returns up to ``count`` of their observations, for an export to
    measure on.

    Args:
        policy: bound to the env's spec; it decides greedily.
        say: is told of workers that had to be replaced.

    Raises:
        EmbodiedError: the simulator is not here, fails, or moves something that an export may not move.
    """
    env = _env_of(origin)
    env.preflight()
    spec = origin.env
    plan = spread(spec, -(-count // OF_A_START))
    chunk = policy.spec.num_action_chunks
    job = Job(GREEDY, 0, Stream.EVAL_NOISE, 0, OF_A_START * chunk, keep_records=True, num_slots=1)
    own = {**runtime_fields(chunk), **info_fields(spec.info)}
    slab = Slab.create({**spec.obs, **policy.spec.decision, **own}, len(plan) * job.rows_needed(chunk), "export")
    try:
        with tempfile.TemporaryDirectory(prefix="embodied-export-") as logs:
            pool = Pool(_config(origin, env, Path(logs)), slab, say)
            try:
                port = OnePass(policy, slab, spec, device, batch=1)
                rollout = Rollout(pool, port, RecordStore(slab), chunk, Schedule(False, 1), Sections())
                results, _ = rollout.collect(plan, job)
            finally:
                pool.close()
        return examples_of(spec, slab, [row for result in results for row in result.rows][:count])
    finally:
        slab.close()


def examples_of(spec: EnvSpec, slab: Slab, rows: Sequence[int]) -> Examples:
    """Copies the observations in rows of a slab, with their instructions."""
    obs = {name: np.array(slab.arrays[name][[*rows]]) for name in spec.obs}
    return Examples((), obs, tuple(of_rows(spec, slab.arrays, [*rows])))


def spread(spec: EnvSpec, count: int) -> list[Episode]:
    """Plans ``count`` episodes of an evaluation (:func:`embodied.runtime.plan.eval_plan`), spread over the tasks."""
    tasks = len(spec.tasks)
    plan = eval_plan(spec, episodes_per_task=-(-count // tasks))
    return sorted(plan, key=lambda one: (one.start.seed, one.start.task_id))[:count]


def _env_of(origin: Origin) -> Env:
    texts = ConfigError("its env is of texts, which are measured on prompts", "nothing is wrong")
    kind_of(origin.env).refuse_texts(texts)
    if not origin.env.retry_safe:
        raise ConfigError(
            "its env is no simulator (EnvSpec.retry_safe is False), and an export moves no robot",
            "evaluate what was exported with --verify, where it is safe",
        )
    if origin.simulator is None:
        raise CheckpointError(
            "the checkpoint does not say what simulates its env: it was written by an earlier version",
            "resume its run for one iteration, which writes a checkpoint that does",
        )
    env: Env = load_target(origin.simulator.target, "env.train._target_")(**origin.simulator.kwargs)
    trained, made = ({name: to_json(spec)[name] for name in PLANNED} for spec in (origin.env, env.spec))
    if lines := [f"  {line}" for line in differences(trained, made, ("the checkpoint", "the env here"))]:
        raise EnvsDifferError(
            f"{origin.simulator.target} is another env here than the one that the checkpoint was trained in:\n"
            + "\n".join(lines),
            "export it where the env is as it was; the run's starts.jsonl has the versions",
        )
    return env


def _config(origin: Origin, env: Env, logs: Path) -> PoolConfig:
    assert origin.simulator is not None
    return PoolConfig(
        num_slots=1, num_workers=1, env_target=origin.simulator.target, env_kwargs=origin.simulator.kwargs,
        reward=ShapedReward("sparse"), deadlines=DEADLINES, log_dir=logs, python=origin.simulator.python,
        batch=isinstance(env, Batched), declared=Declared.of(env),
    )  # fmt: skip
