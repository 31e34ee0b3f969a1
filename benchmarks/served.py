"""A rollout whose policy answers behind a server, beside the same policy in process.

    python benchmarks/served.py --rounds 5

Envs and policy sleep: a chunk of eight actions takes 40 ms in one of eight workers, with an env slot each; a call of
the policy takes 20 ms whatever its rows, as on an accelerator. An observation has two 224×224 pictures and eight
numbers. The server is ``embodied.serving`` in a process of its own, on loopback. Both ways take turns; figures are
medians over rounds. CPU time is that of this process, its workers and the server, for a record.

Schedules: ``min_batch`` 4 is the pipelined one, half of the slots is simulated while the policy answers the other.
With 1, the default of so few slots, a call begins with the first slot that waits. Chunks that all take as long as two
calls, as here, are its worst case: a slot that is late by a moment waits for a whole call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from _envs import CostEnv
from _measure import cpu_seconds, descendants, judge, machine, save, spread
from torch import nn

from embodied.observe.timing import Sections
from embodied.random import Stream
from embodied.runtime.policy.later import Later
from embodied.runtime.policy.policy_port import OnePass, PolicyPort
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Job, Rollout, Schedule
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Episode, Noise, PolicySpec, Sampling, Start

CHUNK, ACTIONS, CALL_S, SLOTS = 8, 7, 0.02, 8
ENV: dict[str, Any] = {"work": "sleep", "step_s": 0.005, "horizon": CHUNK * 20}
SCHEDULES = {"pipelined": 4, "first that waits": 1}  # name → min_batch
BARS = {f"{name}: records a second, served over in process": (">=", 0.9) for name in SCHEDULES}


class SleepingPolicy(nn.Module):
    """Answers with zeros after a call's time."""

    def __init__(self) -> None:
        super().__init__()
        decision = {"actions": ArraySpec((CHUNK, ACTIONS), "float32"), "logprobs": ArraySpec((1,), "float32")}
        self.spec = PolicySpec(CHUNK, decision, Elements((1,)), Noise((1,)))

    def bind(self, env: EnvSpec) -> None:
        """Fits any env."""

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, torch.Tensor]:
        return {}

    def act(self, obs: Mapping[str, torch.Tensor], noise: torch.Tensor, sampling: Sampling) -> Decision:
        time.sleep(CALL_S)
        rows = len(noise)
        return Decision({"actions": torch.zeros(rows, CHUNK, ACTIONS), "logprobs": torch.zeros(rows, 1)})

    def describe(self) -> Mapping[str, str]:
        return {"model": "sleeps"}


async def serve() -> None:
    """Serves the policy until the process is killed; prints the port."""
    from embodied.serving.build import build_server
    from embodied.serving.limits import ServerLimits

    server = build_server(SleepingPolicy(), CostEnv(**ENV).spec, ServerLimits(rate=1e6, burst=10**6))  # type: ignore[arg-type]
    print(await server.start("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


@contextmanager
def served() -> Iterator[int]:
    """The server in a process of its own: its port."""
    words = [sys.executable, __file__, "--serve"]
    server = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, encoding="utf-8"
    )
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


def measure(pool: Pool, port: PolicyPort, slab: Slab, episodes: int, min_batch: int) -> dict[str, float]:
    """Records a second of a rollout, and CPU ms of a record."""
    rollout = Rollout(pool, port, RecordStore(slab), CHUNK, Schedule(False, min_batch), Sections())
    job = Job(Sampling(do_sample=False), 0, Stream.EVAL_NOISE, 0, ENV["horizon"], keep_records=False, num_slots=SLOTS)
    plan = [Episode(number, number, Start(0, 0, number)) for number in range(episodes)]
    cpu, began = cpu_seconds(descendants(os.getpid())), time.perf_counter()
    _, stats = rollout.collect(plan, job)
    seconds = time.perf_counter() - began
    spent = cpu_seconds(descendants(os.getpid())) - cpu
    return {
        "records_per_s": stats.chunks / seconds,
        "cpu_ms_per_record": 1000 * spent / stats.chunks,
        "rows_per_answer": stats.policy_rows / stats.policy_calls,
    }


def run(rounds: int, episodes: int) -> dict[str, dict[str, list[float]]]:
    """What each round measured, all ways in turn: of "schedule: way"."""
    from embodied.models.served import build_policy

    found: dict[str, dict[str, list[float]]] = {}
    env, own = CostEnv(**ENV).spec, SleepingPolicy()
    with tempfile.TemporaryDirectory() as folder, served() as address:
        policy = build_policy(url=f"ws://127.0.0.1:{address}")
        policy.bind(env)
        slab = Slab.create({**env.obs, **own.spec.decision, **runtime_fields(CHUNK)}, 2 * SLOTS)
        deadlines = Deadlines(300, 300, 300)
        pool = Pool(
            PoolConfig(SLOTS, SLOTS, "_envs.CostEnv", ENV, ShapedReward(), deadlines, Path(folder)), slab
        )  # fmt: skip
        cpu = torch.device("cpu")
        ports: dict[str, PolicyPort] = {
            "in process": OnePass(own, slab, env, cpu, SLOTS, fixed_shape=False),  # type: ignore[arg-type]
            "served": Later(policy, slab, env, cpu),
        }
        ways = [(name, way) for name in SCHEDULES for way in ports]
        try:
            for name, way in ways:
                measure(pool, ports[way], slab, SLOTS, SCHEDULES[name])  # connections, first calls
            for name, way in ways * rounds:
                cell = found.setdefault(f"{name}: {way}", {})
                for figure, value in measure(pool, ports[way], slab, episodes, SCHEDULES[name]).items():
                    cell.setdefault(figure, []).append(value)
        finally:
            pool.close()
            slab.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=24, help="of a round, each way; 20 records each")
    parser.add_argument("--name", default="served", help="of the file of results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.serve:
        asyncio.run(serve())
        return
    facts = machine(["torch", "numpy", "websockets", "aiohttp", "msgpack"])
    found = run(args.rounds, args.episodes)
    cells = {way: {name: spread(values) for name, values in figures.items()} for way, figures in found.items()}
    figures: dict[str, float] = {}
    for name, bar in zip(SCHEDULES, BARS, strict=True):
        here, there = (cells[f"{name}: {way}"] for way in ("in process", "served"))
        figures |= {
            f"{name}: records a second, in process": here["records_per_s"]["median"],
            f"{name}: records a second, served": there["records_per_s"]["median"],
            bar: there["records_per_s"]["median"] / here["records_per_s"]["median"],
            f"{name}: CPU ms of a record, in process": here["cpu_ms_per_record"]["median"],
            f"{name}: CPU ms of a record, served": there["cpu_ms_per_record"]["median"],
        }
    kept = judge(figures, BARS)
    settings = {"slots": SLOTS, "call_s": CALL_S, "env": ENV, "rounds": args.rounds, "episodes": args.episodes}
    load = os.getloadavg()[0]
    result = {"machine": facts, "load_after": load, "settings": settings, "figures": figures, "bars_kept": kept}
    print(save(args.name, {**result, "cells": cells, "rounds": found}))


if __name__ == "__main__":
    main()
