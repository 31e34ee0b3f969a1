"""Soft actor-critic against Stable-Baselines3: CPU time of an update, and returns of a task by env steps.

Both sides have the same sizes: two hidden layers of 256 in actor and two critics without layer norm, batches of 256,
one update an env step after 1000 random ones, the same learning rates. Sides take turns, so that what else the machine
does meets both. CPU time is that of one process with one thread.

    python benchmarks/off_policy.py --sb3 PYTHON                    # an interpreter that has stable-baselines3
    python benchmarks/off_policy.py --sb3 PYTHON --task pull_cube   # ManiSkill from state; it has mani_skill as well
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from _measure import machine
from embodied.models.head import HeadPolicy

from embodied.learn.actor_critic.learner import ActorCriticLearner, UpdateSums
from embodied.learn.actor_critic.update import MEASURED
from embodied.schema import ActorConfig, AlgorithmConfig, OptimConfig
from embodied.types import ArraySpec, ContinuousAction, EnvSpec

HERE = Path(__file__).resolve().parent
PENDULUM = EnvSpec(
    {"state": ArraySpec((3,), "float32")}, (), ContinuousAction((-2.0,), (2.0,)), ("Pendulum",), (1,), 200, 20.0
)
T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile of Student's t by the number of seeds
RUN = (
    "env@env.train=gym", "env@env.eval=gym", "algorithm=sac", "experiment=null", "env.train.end_on_success=false",
    "env.train.progress=return", "env.train.images=[]", "env.train.reward_mode=dense", "env.eval.reward_mode=dense",
    "env.train.total_num_envs=1", "env.eval.total_num_envs=1", "env.eval.video_cfg.save_video=false",
    "actor.model.critic_layer_norm=false",
)  # fmt: skip


class Task(NamedTuple):
    """How our side makes the env that :mod:`_off_policy_tasks` makes for the other."""

    keys: tuple[str, ...]
    episode_steps: int
    env_steps: int  # of a training


TASKS = {
    "pendulum": Task(('env.train.success="reward>=-0.05"', "env.train.id=Pendulum-v1"), 200, 6000),
    "pull_cube": Task(
        ("env.train.entry_point=_off_policy_tasks.pull_cube", "env.train.success=info.success",
         "algorithm.gamma=0.8"), 50, 10_000
    ),
}  # fmt: skip


def learner(folder: Path) -> ActorCriticLearner:
    """Makes a learner with a full enough memory in ``folder``."""
    policy = HeadPolicy(critic_layer_norm=False)
    policy.bind(PENDULUM)
    optim = OptimConfig(lr=3e-4, value_lr=3e-4, optimizer="adam", adam_eps=1e-8, clip_grad=1000.0, impl="fused")
    actor = ActorConfig.model_validate(
        {"model": {"_target_": "-"}, "global_batch_size": 256, "micro_batch_size": 256, "optim": optim}
    )
    made = ActorCriticLearner(
        policy, PENDULUM, actor, AlgorithmConfig(learner="sac"), torch.device("cpu"), seed=0, max_bad_updates=10,
        replay=folder,
    )  # fmt: skip
    random, count = np.random.default_rng(0), 1005
    made.memory.append({
        "state": random.standard_normal((count, 3)).astype(np.float32),
        "chunk": random.uniform(-1, 1, (count, 1)).astype(np.float32),
        "rewards": -random.random((count, 1)).astype(np.float32),
        "num_steps": np.where(np.arange(count) % 201 == 200, 0, 1).astype(np.int32),
        "terminated": np.zeros(count, bool),
    })  # fmt: skip
    return made


def own_updates(made: ActorCriticLearner, count: int) -> float:
    """Times ``count`` updates: the best of five rounds, CPU-ms each."""
    share, sums = made.share(), UpdateSums(torch.zeros(len(MEASURED), dtype=torch.float64))
    found = list[float]()
    for part in range(6):
        begun = time.process_time()
        for number in range(count if part else 50):
            made.engine.set_rates(0.5)
            made.update_once(part * count + number, share, sums, lambda records: True)
        found.append((time.process_time() - begun) / count * 1e3)
    return min(found[1:])


def of_sb3(python: str, *what: object) -> dict[str, float]:
    """Runs the other side."""
    command = [python, str(HERE / "_off_policy_sb3.py"), *map(str, what)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def own_run(name: str, seed: int, steps: int, episodes: int) -> float:
    """Trains by the command line; returns the mean return of greedy episodes."""
    task, folder = TASKS[name], Path(tempfile.mkdtemp())
    iterations = steps // task.episode_steps
    try:
        command = [
            sys.executable, "-m", "embodied.train", *RUN, *task.keys, f"runner.output_dir={folder}",
            "runner.experiment_name=run", f"runner.seed={seed}", f"runner.max_epochs={iterations}",
            f"runner.val_check_interval={iterations}", f"env.eval.episodes_per_task={episodes}",
            f"runner.save_interval={iterations}", f"env.train.max_episode_steps={task.episode_steps}",
            f"env.eval.max_episode_steps={task.episode_steps}",
        ]  # fmt: skip
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])  # of the tasks
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=HERE.parent, env={**os.environ, "PYTHONPATH": path}
        )
        lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return float(json.loads(lines[-1])["eval/return_mean"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interval(values: list[float]) -> dict[str, Any]:
    """Mean and 95 % interval of the mean by Student's t."""
    if len(values) < 2:
        return {"values": values}
    half = T[len(values)] * stdev(values) / math.sqrt(len(values))
    return {"mean": mean(values), "low": mean(values) - half, "high": mean(values) + half, "values": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sb3", required=True, help="interpreter that has stable-baselines3")
    parser.add_argument("--rounds", type=int, default=3, help="of updates")
    parser.add_argument("--updates", type=int, default=100, help="of a part of a round")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--task", choices=TASKS, default="pendulum")
    parser.add_argument("--steps", type=int, help="env steps of a training; none: the task's")
    parser.add_argument("--episodes", type=int, default=10, help="of its evaluation")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "off_policy.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}

    def note(part: str, what: dict[str, Any]) -> None:
        found[part] = what
        print(part, json.dumps(what), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    ours, theirs = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        made = learner(Path(folder))
        for _ in range(given.rounds):
            theirs.append(of_sb3(given.sb3, "updates", given.updates)["ms"])
            ours.append(own_updates(made, given.updates))
            ratio = median(ours) / median(theirs)
            note("update_cpu_ms", {**machine(["torch"]), "ours": ours, "sb3": theirs, "ratio": ratio})
    steps = given.steps or TASKS[given.task].env_steps
    returns: dict[str, list[float]] = {"ours": [], "sb3": []}
    for seed in range(given.seeds):
        returns["ours"].append(own_run(given.task, seed, steps, given.episodes))
        returns["sb3"].append(of_sb3(given.sb3, "learnt", given.task, seed, steps, given.episodes)["return"])
        note(f"returns of {given.task}", {
            **machine(["torch", "gymnasium"]), "env_steps": steps, "episodes": given.episodes,
            **{side: interval(each) for side, each in returns.items()},
        })  # fmt: skip


if __name__ == "__main__":
    main()
