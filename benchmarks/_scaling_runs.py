"""Whole runs of several processes over gloo, on envs that sleep: what more processes save, and what they send."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from _measure import prioritised, spread

ROOT = Path(__file__).parents[1]
FAKES = ROOT / "tests" / "config"
RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.save_interval=-1",
    "runner.val_check_interval=-1", "runner.val_before_train=false", "runner.logger.report=false",
    "runner.experiment_name=run", "rollout.trace=false", "env.eval.video_cfg.save_video=false",
    "env.train.reward_mode=dense", "env.train.success_distance=0", "actor.fsdp_config.strategy=replicate",
    "runner.num_threads=1", "actor.num_threads=1", "env.eval.total_num_envs=4",
)  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers"), str(ROOT / "benchmarks")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def run(folder: Path, size: int, *overrides: str, script: Sequence[str] = ("-m", "embodied.train")) -> None:
    """Makes a run of ``size`` processes in a folder."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"] if size > 1 else []
    words = [sys.executable, *torchrun, *script, *RUN, *overrides, "--config-dir", str(FAKES)]
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment(), stdout=log, stderr=log)
    with prioritised(lambda: [process.pid]):
        status = process.wait()
    if status:
        raise SystemExit(f"the run failed:\n{(folder / 'log').read_text(encoding='utf-8')[-3000:]}")


def rows(folder: Path) -> list[dict[str, float]]:
    """Metrics of a run's iterations."""
    text = (folder / "runs/run/metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def ranks(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an iteration with 1, 2 and 4 processes, each with as many env slots and episodes."""
    found: dict[str, list[float]] = {f"{size} ranks": [] for size in args.ranks}
    for number in range(args.run_rounds):
        for size in args.ranks if number % 2 == 0 else reversed(args.ranks):
            slots = args.slots_of_rank * size
            each = args.slots_of_rank
            shape = (
                f"env.train.total_num_envs={slots}", f"env.eval.total_num_envs={slots}",
                f"algorithm.group_size={each}", f"env.num_workers={each}", f"env.train.step_s={args.step_s}",
                "env.train.max_episode_steps=24", "algorithm.rollout_epoch=1", "runner.max_epochs=6",
                "env.train._target_=_even_env.Even", "env.eval._target_=_even_env.Even",
            )  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                run(Path(folder), size, *shape)
                seconds = [row["time/iteration_s"] for row in rows(Path(folder))[1:]]
            found[f"{size} ranks"].append(median(seconds))
            print(f"  round {number + 1}  {size} ranks  {median(seconds):.3f} s an iteration", flush=True)
    first = median(found[f"{args.ranks[0]} ranks"])
    bars = {f"{size} ranks: weak scaling": first / median(found[f"{size} ranks"]) for size in args.ranks[1:]}
    return {"found": {way: {"iteration_s": spread(values)} for way, values in found.items()}, "bars": bars}


SENDS = (
    "env.train.total_num_envs=8", "env.eval.total_num_envs=8", "env.train.max_episode_steps=24",
    "algorithm.group_size=4", "env.num_workers=2", "env.train.size=64", "env.eval.size=64",
    "algorithm.rollout_epoch=2", "+actor.model.num_tasks=100000", "runner.max_epochs=6",
)  # fmt: skip
HOSTED = (
    "cluster.component_placement={env:cpu}", "cluster.num_nodes=2", "cluster.num_gpus_per_node=2",
    "cluster.node_groups=[{label:cpu,node_ranks:1,ignore_hardware:true}]",
)  # fmt: skip
SPLIT = "cluster.component_placement={actor:0,rollout:1}"


def bytes_sent(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes that an iteration sends, counted by the kernel, over those that a dry run predicts."""
    hosts, predicted = _counted(("cluster.simulator_hosts=1",), HOSTED)
    ring, small = predicted["among train ranks"], predicted["everything small"]
    found = {
        "host → rollout": [sum(rank["of_hosts"] for rank in hosts), predicted["host → rollout"]],
        "among train ranks": [sum(rank["received"] - rank["of_hosts"] for rank in hosts), ring + small],
    }
    split, predicted = _counted((SPLIT,), (SPLIT, "cluster.num_gpus_per_node=2"))
    half = predicted["everything small"] / 2
    found["rollout → train"] = [split[0]["received"], predicted["rollout → train"] + half]
    found["train → rollout"] = [split[1]["received"], predicted["train → rollout"] + half]
    bars = {f"{link}: bytes counted over predicted": counted / said for link, (counted, said) in found.items()}
    named = {link: {"counted": counted, "predicted": said} for link, (counted, said) in found.items()}
    return {"found": named, "bars": {**bars, "furthest from 1": max(abs(ratio - 1) for ratio in bars.values())}}


def _counted(keys: Sequence[str], plan: Sequence[str]) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Bytes an iteration of each of two processes, and those that are predicted, by link."""
    script = str(Path(__file__).parent / "_counted.py")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, 1, *SENDS, *plan, "runner.dry_run=true", script=(script, name))
        predicted = json.loads((folder / "links").read_text(encoding="utf-8"))
        run(folder, 2, *SENDS, *keys, script=(script, name))
        lines = [[json.loads(line) for line in (folder / str(rank)).read_text(encoding="utf-8").splitlines()]
                 for rank in range(2)]  # fmt: skip
        skipped = sum(row["train/skipped_records"] for row in rows(folder))
    assert not skipped, f"{skipped} records carried no gradient, and the dry run counts all"
    each: list[dict[str, float]] = [
        {key: (own[-1][key] - own[0][key]) / (len(own) - 1) for key in own[0]} for own in lines
    ]
    return each, predicted
