"""Memory and speed of a long LIBERO-Plus evaluation, which may be stopped and started again on its way.

    python benchmarks/libero_plus_long.py --tasks 600 --stop-at 150
    python benchmarks/libero_plus_long.py --suite libero_plus_10 --tasks 2519 --slots 8 --workers 2

It starts ``embodied.eval`` with the small policy of ``make train`` and short episodes. Every ``--every`` seconds it
reads how many tasks are done and what all processes of the evaluation take together: RSS, PSS (shared pages divided
among their users) and CPU time. With ``--stop-at N`` the evaluation gets a SIGTERM after N tasks, and the same command
goes on. Memory is flat if its mean over the last quarter of the time is at most ``--most-rise`` above that over the
third.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from _measure import cpu_seconds, descendants, judge, machine, read_proc, save

POLICY = "package:embodied.models.openvla_oft/policies/libero_object"
CAMERAS = "[agentview,robot0_eye_in_hand]"
OWN_SCENES = ("light", "background", "layout")


def main() -> None:
    args = _arguments().parse_args()
    facts = machine(["mujoco", "robosuite", "numpy"])
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = _command(args, run)
        curve, runs = list[dict[str, float]](), list[dict[str, Any]]()
        for stop_at in [*args.stop_at, None]:
            runs.append(_watched(command, run, stop_at, args.every, curve, Path(folder) / "log"))
        log = (Path(folder) / "log").read_text(encoding="utf-8", errors="replace")
        _check(runs, log)
        result = json.loads((run / "eval" / "000000.json").read_text(encoding="utf-8"))
    kinds = [result["task_kinds"][episode["start"]["task_id"]] for episode in result["episodes"]]
    found = _summed_up(args, curve, runs, sum(kind not in OWN_SCENES for kind in kinds))
    kept = judge(found, {"rise": ("<=", args.most_rise)})
    asked = {name: value for name, value in vars(args).items() if name != "evaluation"}
    whole = {"arguments": asked, "machine": facts, **found, "flat": kept["rise"], "runs": runs, "curve": curve}
    print(save("libero_plus_long", whole))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="libero_plus_object")
    parser.add_argument("--tasks", type=int, default=600)
    parser.add_argument("--steps", type=int, default=8, help="control steps of an episode")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kept", type=int, default=10, help="scenes that a worker keeps")
    parser.add_argument("--side", type=int, default=64, help="pixels of a picture's edge")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two measurements")
    parser.add_argument("--stop-at", type=int, nargs="*", default=[], help="stop after so many tasks, and go on")
    parser.add_argument("--most-rise", type=float, default=0.1, help="share of the last quarter that still is flat")
    parser.add_argument("--evaluation", nargs="*", default=[], help="further keys of embodied.eval")
    return parser


def _command(args: argparse.Namespace, run: Path) -> list[str]:
    both = [f"env.{side}.{key}" for side in ("train", "eval") for key in (
        f"init_params.camera_names={CAMERAS}", f"init_params.camera_heights={args.side}",
        f"init_params.camera_widths={args.side}", "init_params.mesh_cell=0.01")]  # fmt: skip
    return [
        sys.executable, "-m", "embodied.eval", f"env={args.suite}", "env.eval.skip_missing=true",
        "protocol=libero_plus", "model=openvla_oft_quickstart_libero", f"actor.model.model_path={POLICY}",
        "actor.model.center_crop=false", "actor.model.image_preset=rlinf", "actor.model.max_prompt_length=200", *both,
        f"env.eval.sample={args.tasks}", f"env.eval.max_episode_steps={args.steps}",
        f"env.eval.total_num_envs={args.slots}", f"env.num_workers={args.workers}",
        f"env.eval.max_cached_simulators={args.kept}", "env.eval.video_cfg.save_video=false",
        "runner.logger.report=false", f"runner.logger.log_path={run}", *args.evaluation,
    ]  # fmt: skip


def _watched(
    command: Sequence[str], run: Path, stop_at: int | None, every: float, curve: list[dict[str, float]], log: Path
) -> dict[str, Any]:
    """Runs the evaluation, to its end or until ``stop_at`` tasks are done, and adds to the curve."""
    before, begun = curve[-1]["seconds"] if curve else 0.0, time.monotonic()
    stopped_at = None
    with log.open("a", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(every)
            done = _tasks_done(run)
            point = {"seconds": round(before + time.monotonic() - begun, 1), "tasks": done, **_taken(process.pid)}
            if point["rss_mb"] and done >= (curve[-1]["tasks"] if curve else 0):
                curve.append(point)
                print(point, flush=True)
            if stop_at is not None and stopped_at is None and done >= stop_at:
                process.send_signal(signal.SIGTERM)
                stopped_at = done
    return {"status": process.returncode, "stopped_at": stopped_at, "seconds": round(time.monotonic() - begun, 1)}


def _tasks_done(run: Path) -> int:
    lines = read_proc(run / ".unfinished" / "000000.jsonl").count("\n")
    return max(0, lines - 1)


def _taken(pid: int) -> dict[str, float]:
    """What all processes of the evaluation take now."""
    pids = descendants(pid)
    rollups = [read_proc(Path(f"/proc/{one}/smaps_rollup")) for one in pids]
    fields = {"rss_mb": "Rss:", "pss_mb": "Pss:"}
    found = {
        name: sum(int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith(field))
        for name, field in fields.items()
    }
    return {**{name: round(kb / 1024, 1) for name, kb in found.items()}, "cpu_s": round(cpu_seconds(pids), 1),
            "processes": len(pids)}  # fmt: skip


def _check(runs: Sequence[dict[str, Any]], log: str) -> None:
    """Ends the benchmark where the evaluation did not do what it was told."""
    if runs[-1]["status"] != 0 or any(one["stopped_at"] is None for one in runs[:-1]):
        sys.exit(f"the evaluation ended with {runs}:\n{log[-3000:]}")


def _summed_up(
    args: argparse.Namespace, curve: Sequence[dict[str, float]], runs: Sequence[dict[str, Any]], sharing: int
) -> Any:
    """Compares mean memory of the third and of the last quarter of the last start's time. The ``sharing`` tasks that
    share scenes come first, so both quarters are of tasks with scenes of their own, after the worker's places are
    full."""
    last = [point for point in curve if point["tasks"] > (runs[-2]["stopped_at"] if len(runs) > 1 else 0)]
    begin, end = curve[-1]["seconds"] - runs[-1]["seconds"], curve[-1]["seconds"]
    share = {point["seconds"]: (point["seconds"] - begin) / (end - begin) for point in last}
    third, fourth = (
        [point["pss_mb"] for point in last if low <= share[point["seconds"]] <= low + 0.25] for low in (0.5, 0.75)
    )
    shared = [point["pss_mb"] for point in last if point["tasks"] < sharing]
    seconds = sum(one["seconds"] for one in runs)
    return {
        "tasks_s": args.tasks / seconds, "seconds": seconds, "shared_scenes_pss_mb": fmean(shared),
        "third_quarter_pss_mb": fmean(third), "last_quarter_pss_mb": fmean(fourth),
        "most_pss_mb": max(p["pss_mb"] for p in last), "rise": fmean(fourth) / fmean(third) - 1,
    }  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
