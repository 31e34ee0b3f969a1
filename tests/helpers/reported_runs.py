"""Folders as runs leave them, made without a run: what tests of the report read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from embodied import schema
from embodied.observe.video.video import VideoWriter

TASKS = ("stack the cubes", "open the drawer")


@cache
def video(folder: Path) -> Path:
    """A small mp4 as runs write it."""
    file = folder / "one.mp4"
    with VideoWriter(file, 10, "stack the cubes") as writer:
        for step in range(12):
            writer.add(np.full((64, 64, 3), 15 * step, np.uint8), step, 0.0, False)
    return file


def write_run(
    folder: Path, iterations: int = 6, evaluations: Sequence[int] = (0, 6), per_task: int = 4, seed: int = 1,
    tasks: Sequence[str] = TASKS, recording: Path | None = None, **changes: Any,
) -> Path:  # fmt: skip
    """Writes the folder ``folder`` of a run that succeeds more often the longer it is trained.

    Args:
        recording: the video of every episode, copied beside the run's folder; None = no videos.
        changes: keys of the section ``algorithm`` that are not as usual.
    """
    folder.mkdir(parents=True)
    config = schema.defaults()
    config["runner"] |= {"seed": seed, "max_epochs": iterations, "experiment_name": folder.name}
    config["algorithm"] |= changes
    (folder / "config.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(config, default=str))), encoding="utf-8")
    start = {"time": "2026-01-31T12:00:00+00:00", "command": "python -m embodied.train env=fake", "processes": 1,
             "versions": {"embodied": "0.1.0", "torch": "2.13.0"}}  # fmt: skip
    (folder / "starts.jsonl").write_text(json.dumps(start) + "\n", encoding="utf-8")
    rows = [_row(step, iterations, seed) for step in range(1, iterations + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for iteration in evaluations:
        _evaluation(folder, iteration, iterations, per_task, tasks, recording)
    return folder


def _row(step: int, iterations: int, seed: int) -> dict[str, float]:
    rate = 0.2 + 0.6 * step / iterations + 0.01 * seed
    return {
        "step": step, "rollout/success_rate": rate, "rollout/success_low": rate - 0.1,
        "rollout/success_high": rate + 0.1, "rollout/return_mean": 2 * rate, "rollout/episodes": 16,
        "train/approx_kl": 0.01, "train/clip_share": 0.05, "train/clip_share_low": 0.02, "train/clip_share_high": 0.03,
        "train/entropy": 2.0 - rate, "train/staleness_mean": 0.5, "train/staleness_max": 1, "train/loss": 0.1,
        "time/rollout_s": 3.0, "time/train_s": 1.0, "time/iteration_s": 5.0, "time/worker_step_s": 2.0,
    }  # fmt: skip


def _evaluation(
    folder: Path, iteration: int, iterations: int, per_task: int, tasks: Sequence[str], recording: Path | None
) -> None:
    episodes = []
    solved = per_task * (1 + iteration) // (2 + iterations)
    for task in range(len(tasks)):
        for number in range(per_task):
            file = None
            if recording is not None:
                file = Path("videos", folder.name, f"{iteration:06d}", f"{task}_{number}.mp4")
                (folder.parent / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(recording, folder.parent / file)
            episodes.append({
                "start": {"task_id": task, "init_state_id": number, "seed": 7}, "success": number < solved,
                "return": 0.5, "steps": 20, "video": None if file is None else str(file),
            })  # fmt: skip
    rows = [{"task_id": task, "instruction": name} for task, name in enumerate(tasks)]
    found = {"iteration": iteration, "conditions": {"weights": folder.name, "episodes_per_task": per_task},
             "env": {"_target_": "fake"}, "tasks": rows, "rates": {}, "episodes": episodes}  # fmt: skip
    file = folder / "eval" / f"{iteration:06d}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(found), encoding="utf-8")


def change_evaluation(folder: Path, iteration: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes an evaluation's file anew, with ``change``."""
    file = folder / "eval" / f"{iteration:06d}.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    change(found)
    file.write_text(json.dumps(found), encoding="utf-8")


def under(name: str | None, digest: str) -> Callable[[dict[str, Any]], object]:
    """Changes an evaluation to one of the protocol ``name`` with this hash."""
    return lambda found: found.update(protocol={"name": name, "hash": digest, "changed": {}, "keys": {"tasks": digest}})


def write_trace(folder: Path, spans: int = 40) -> None:
    """Writes a rollout's timeline of a policy and two env slots."""
    names = [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
        for pid, tid, name in ((1, 0, "policy"), (2, 0, "slot 0"), (2, 1, "slot 1"))
    ]
    work = [
        {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": 1000 * place, "dur": 600, "args": {}}
        for place in range(spans) for pid, tid, name in ((1, 0, "policy, 2 rows"), (2, 0, "step"), (2, 1, "render"))
    ]  # fmt: skip
    file = folder / "trace" / "000001-train.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *work]}), encoding="utf-8")


def cut_at(folder: Path, steps: int, **train: object) -> Path:
    """The run with training episodes of ``steps`` control steps, none of which succeeds; evaluations take 97."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    for side, own in (("train", {"max_episode_steps": steps, **train}), ("eval", {"max_episode_steps": 144})):
        config.setdefault("env", {}).setdefault(side, {}).update({"reward_mode": "sparse", **own})
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    none = {"rollout/success_rate": 0.0, "rollout/success_low": 0.0, "rollout/success_high": 0.2}
    texts = [json.dumps({**row, **none, "rollout/progress_mean": 0.3}) + "\n" for row in rows]
    (folder / "metrics.jsonl").write_text("".join(texts), encoding="utf-8")
    for file in (folder / "eval").glob("*.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        for place, one in enumerate(found["episodes"]):
            one["steps_to_success"] = 97 + place if one["success"] else None
        file.write_text(json.dumps(found), encoding="utf-8")
    return folder
