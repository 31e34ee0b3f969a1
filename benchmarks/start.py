"""What it costs to start env workers: a fresh interpreter each (spawn) against forks of one process (forkserver).

    python benchmarks/start.py --rounds 3

For each env, number of workers and start method, in turn, medians over rounds:
- ``ready_s``: wall clock until all workers have imported their simulator and found a renderer, from nothing; for
  forkserver with the start of the server. No simulator is built by then: a worker does that in its first reset.
- ``cpu_s``: CPU time of all processes for that, those that tried the renderer included.
- ``again_s``: the same wall clock for a second set of workers beside the first, as an evaluation of its own opens.
- ``detect_ms``: from SIGKILL of a worker until the pool has said so, with its exit status.
- ``replaced_s``: from then until its replacement serves.
- ``pss_mb``: memory of a worker, shared pages divided among their users; that of the server is ``server_pss_mb``.
- ``faults``: minor page faults a chunk of a worker in steady state (fake env only).

A run starts the server before it loads its policy, so that there the imports take no time of their own; that is not
counted here in favour of forkserver.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _measure import descendants, machine, minor_faults, pss_bytes, save, spread

from embodied.lib.targets import load_target
from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool.fork_server import ForkServer
from embodied.runtime.pool.pool import Back, Deadlines, Lost, Pool, PoolConfig
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import ArraySpec

PATIENT = Deadlines(300, 300, 300)
METHODS = ("spawn", "forkserver")
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "fake": ("embodied.testing.FakeEnv", {}),
    "libero_10": ("embodied.envs.libero.LiberoEnv", {"task_suite_name": "libero_10"}),
    "maniskill_pickcube": ("embodied.envs.maniskill.ManiSkillEnv", {"init_params": {"id": "PickCube-v1"}}),
}
CHUNKS = 200
NO_LIMIT = 10**6
TICK = os.sysconf("SC_CLK_TCK")


def tree_cpu(pid: int) -> float:
    """CPU seconds of the processes below ``pid`` and of those that they have waited for."""
    return sum(sum(_ticks(child)) for child in descendants(pid)[1:]) / TICK


def _ticks(pid: int) -> list[int]:
    return [
        int(ticks) for ticks in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:15]
    ]


@contextmanager
def opened(env: str, workers: int, folder: Path, server: ForkServer | None) -> Iterator[tuple[Pool, Slab]]:
    target, kwargs = ENVS[env]
    spec = load_target(target, "env")(**kwargs).spec
    slab = Slab.create({**spec.obs, "actions": ArraySpec((1, spec.action_dim), "float32"), **runtime_fields(1)}, 2)
    config = PoolConfig(
        workers, workers, target, kwargs, ShapedReward(), PATIENT, folder, max_restarts=3, server=server
    )  # fmt: skip
    pool = Pool(config, slab)
    try:
        yield pool, slab
    finally:
        pool.close()
        slab.close()


def measure(env: str, workers: int, method: str) -> dict[str, float]:
    """All figures once."""
    folder = Path(tempfile.mkdtemp())
    cpu, began = tree_cpu(os.getpid()), time.perf_counter()
    server = ForkServer([ENVS[env]], folder, 300.0, say=print) if method == "forkserver" else None
    try:
        with opened(env, workers, folder, server) as (pool, _):
            found = {"ready_s": time.perf_counter() - began, "cpu_s": tree_cpu(os.getpid()) - cpu}
            found["pss_mb"] = pss_bytes(pool.pids) / workers / 2**20
            if server is not None:
                found["server_pss_mb"] = pss_bytes([server.pid]) / 2**20
            again = time.perf_counter()
            with opened(env, workers, folder / "again", server):
                found["again_s"] = time.perf_counter() - again
            if env == "fake":
                found["faults"] = faults(pool)
            return {**found, **death(pool)}
    finally:
        if server is not None:
            server.close()


def death(pool: Pool) -> dict[str, float]:
    began = time.perf_counter()
    os.kill(pool.pids[0], signal.SIGKILL)
    lost = _await(pool, Lost)
    assert "was killed by SIGKILL" in str(lost.error), lost.error
    seen = time.perf_counter()
    _await(pool, Back)
    return {"detect_ms": 1000 * (seen - began), "replaced_s": time.perf_counter() - seen}


def _await(pool: Pool, kind: type) -> Any:
    while True:
        for event in pool.recv(1):
            if isinstance(event, kind):
                return event
        time.sleep(0.0005)  # recv returns at once while no command is in flight


def faults(pool: Pool) -> float:
    """Of worker 0 a chunk, once warm."""
    start = Command(
        Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, max_steps=NO_LIMIT, ignore_terminations=True
    )  # fmt: skip
    pool.send(start)
    pool.recv(1)
    before = 0
    for number in range(2 * CHUNKS):
        if number == CHUNKS:
            before = minor_faults(pool.pids[:1])
        pool.send(Command(Kind.STEP, 0, row=number % 2, next_row=1 - number % 2))
        pool.recv(1)
    return (minor_faults(pool.pids[:1]) - before) / CHUNKS


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=["fake", "libero_10"])
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(["numpy"])
    cells: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    for number in range(args.rounds):
        for env in args.envs:
            for workers in args.workers:
                for method in METHODS:
                    found = measure(env, workers, method)
                    kept = cells.setdefault(env, {}).setdefault(str(workers), {}).setdefault(method, {})
                    for figure, value in found.items():
                        kept.setdefault(figure, []).append(value)
                    shown = "  ".join(f"{figure} {value:.4g}" for figure, value in found.items())
                    print(f"round {number + 1}  {env} {workers} {method:10s} {shown}", flush=True)
        facts["load_after"], facts["rounds_done"] = os.getloadavg()[0], number + 1
        path = save("start", {"machine": facts, "settings": vars(args), "cells": summarised(cells)})
    print("wrote", path)


def summarised(cells: Mapping[str, Any] | list[float]) -> dict[str, Any]:
    """The same with the spread of each list."""
    return spread(cells) if isinstance(cells, list) else {name: summarised(inner) for name, inner in cells.items()}


if __name__ == "__main__":
    main()
