"""A fake env, a fake policy, and what stands between them, built in one call for tests of the runtime."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied.observe.timing import Sections
from embodied.random import Stream
from embodied.runtime.policy.policy_port import OnePass, PolicyPort
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.records import RecordStore
from embodied.runtime.remote.hosts import HostsConfig, RemotePool
from embodied.runtime.remote.local import LocalStarter
from embodied.runtime.remote.starter import HostStarter
from embodied.runtime.rollout.rollout import Job, Rollout, Schedule
from embodied.runtime.rollout.traces import Traces
from embodied.runtime.slab import Slab, info_fields, intervention_fields, runtime_fields
from embodied.runtime.worker.declared import Declared
from embodied.runtime.worker.reward import ShapedReward
from embodied.testing import DecoderPort, FakeEnv, FakePolicy
from embodied.types import EpisodeResult, Sampling

CPU = torch.device("cpu")
BOTH_STARTS = pytest.mark.parametrize("start_method", ["spawn", "forkserver"], indirect=True)
"""For tests with ``make_rig``: once with spawned workers, once with forked ones."""
FAST = Deadlines(init=30.0, reset=10.0, step=10.0)


@dataclass
class Rig:
    """An open pool with its slab and the parts that fit it. K = 4 actions of A = 7 numbers."""

    env: Any  # FakeEnv, unless another was asked for
    policy: Any
    slab: Slab
    pool: Any  # Pool, or a RemotePool if hosts were asked for

    def rollout(
        self, lockstep: bool = False, min_batch: int = 1, policy_batch: int = 4, fixed_shape: bool = True,
        traces: Traces | None = None, lanes: int | None = None, **schedule: Any,
    ) -> Rollout:  # fmt: skip
        """``lanes``: of a decoder that stands between rollout and policy; None: the policy answers in one pass."""
        rule, chunk = Schedule(lockstep, min_batch, **schedule), self.policy.spec.num_action_chunks
        port: PolicyPort = OnePass(self.policy, self.slab, self.env.spec, CPU, policy_batch, fixed_shape)
        if lanes is not None:
            port = DecoderPort(port, lanes)
        return Rollout(self.pool, port, RecordStore(self.slab), chunk, rule, Sections(), traces)

    def job(self, **changes: Any) -> Job:
        usual: dict[str, Any] = {
            "sampling": Sampling(), "seed": 7, "stream": Stream.TRAIN_NOISE, "version": 5, "max_steps": 10,
            "keep_records": True, "num_slots": self.pool.num_slots,
        }  # fmt: skip
        return Job(**{**usual, **changes})


@contextmanager
def open_rig(
    log_dir: Path, slots: int = 2, workers: int = 2, rows: int = 64, target: str = "embodied.testing.FakeEnv",
    deadlines: Deadlines = FAST, reward: ShapedReward | None = None, queue_size: int = 0,
    policy: Mapping[str, Any] | None = None, max_restarts: int = 0, say: Callable[[str], None] = lambda text: None,
    pool: Mapping[str, Any] | None = None, net: Any = None, kind: Callable[..., Any] = FakeEnv, hosts: int = 0,
    starter: HostStarter | None = None, node_timeout_s: float = 20.0, **env_kwargs: Any,
) -> Iterator[Rig]:  # fmt: skip
    """``env_kwargs`` go to the env of the workers; a ``target`` other than FakeEnv must be one with its spec, or with
    that of ``kind``; it may take more. ``net``: a policy in the place of the fake one. ``hosts``: simulator hosts that
    have the slots, started by ``starter``, else by one of this machine."""
    known = inspect.signature(kind).parameters
    env = kind(**{name: value for name, value in env_kwargs.items() if name in known})
    net = net or FakePolicy(**(policy or {}))
    net.bind(env.spec)
    own = runtime_fields(net.spec.num_action_chunks) | info_fields(env.spec.info)
    own |= intervention_fields() if env.spec.interventions else {}
    slab = Slab.create({**env.spec.obs, **net.spec.decision, **own}, rows)
    declared = Declared.of(env) if target == "embodied.testing.FakeEnv" else None
    config = PoolConfig(
        num_slots=slots, num_workers=workers, env_target=target, env_kwargs=env_kwargs,
        reward=reward or ShapedReward("dense"), deadlines=deadlines, log_dir=log_dir,
        env_channel=("test", "done", queue_size), rollout_channel=("test", "todo", queue_size),
        max_restarts=max_restarts, **{"declared": declared, **(pool or {})},
    )  # fmt: skip
    try:
        opened: Any
        if hosts:
            remote = HostsConfig(config, hosts, tuple(env.spec.obs), node_timeout_s, gpus=())
            opened = RemotePool(remote, slab, starter or LocalStarter(), say)
        else:
            opened = Pool(config, slab, say)
        try:
            yield Rig(env, net, slab, opened)
        finally:
            opened.close()
    finally:
        slab.close()


def records(rig: Rig, results: Sequence[EpisodeResult]) -> dict[tuple[int, int], dict[str, bytes]]:
    """Every field of every record, bit by bit, under (episode, t)."""
    return {
        (result.episode.episode_id, t): {name: array[row].tobytes() for name, array in rig.slab.arrays.items()}
        for result in results
        for t, row in enumerate(result.rows)
    }
