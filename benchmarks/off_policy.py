"""Soft actor-critic against Stable-Baselines3: CPU time of an update, and returns on Pendulum-v1 by env steps.

Both sides have the same sizes: two hidden layers of 256 in actor and two critics without layer norm, batches of 256,
one update an env step after 1000 random ones, the same learning rates. Sides take turns, so that what else the machine
does meets both. CPU time is that of one process with one thread.

    python benchmarks/off_policy.py --sb3 PYTHON   # an interpreter that has stable-baselines3
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import torch
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
    "env@env.train=gym", "env@env.eval=gym", "env.train.id=Pendulum-v1", "algorithm=sac", "experiment=null",
    'env.train.success="reward>=-0.05"', "env.train.end_on_success=false", "env.train.progress=return",
    "env.train.images=[]", "env.train.max_episode_steps=200", "env.eval.max_episode_steps=200",
     "env.train.reward_mode=dense", "env.eval.reward_mode=dense", "env.train.total_num_envs=1",
    "env.eval.total_num_envs=1", "env.eval.video_cfg.save_video=false", "actor.model.critic_layer_norm=false",
)  # fmt: skip


def learner() -> ActorCriticLearner:
    """Makes a learner with a full enough memory."""
    policy = HeadPolicy(critic_layer_norm=False)
    policy.bind(PENDULUM)
    optim = OptimConfig(lr=3e-4, value_lr=3e-4, optimizer="adam", adam_eps=1e-8, clip_grad=1000.0, impl="fused")
    actor = ActorConfig.model_validate(
        {"model": {"_target_": "-"}, "global_batch_size": 256, "micro_batch_size": 256, "optim": optim}
    )
    made = ActorCriticLearner(
        policy, PENDULUM, actor, AlgorithmConfig(learner="sac"), torch.device("cpu"), seed=0, max_bad_updates=10
    )
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


def own_run(seed: int, steps: int, episodes: int) -> float:
    """Trains by the command line; returns the mean return of greedy episodes."""
    folder = Path(tempfile.mkdtemp())
    try:
        command = [
            sys.executable, "-m", "embodied.train", *RUN, f"runner.output_dir={folder}", "runner.experiment_name=run",
            f"runner.seed={seed}", f"runner.max_epochs={steps // 200}", f"runner.val_check_interval={steps // 200}",
            f"env.eval.episodes_per_task={episodes}", f"runner.save_interval={steps // 200}",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE.parent, encoding="utf-8")
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
    parser.add_argument("--steps", type=int, default=6000, help="env steps of a training")
    parser.add_argument("--episodes", type=int, default=10, help="of its evaluation")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "off_policy.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    made, found = learner(), dict[str, Any]()
    ours, theirs = list[float](), list[float]()
    for _ in range(given.rounds):
        theirs.append(of_sb3(given.sb3, "updates", given.updates)["ms"])
        ours.append(own_updates(made, given.updates))
    found["update_cpu_ms"] = {"ours": ours, "sb3": theirs, "ratio": median(ours) / median(theirs)}
    print(json.dumps(found), flush=True)
    returns: dict[str, list[float]] = {"ours": [], "sb3": []}
    for seed in range(given.seeds):
        returns["ours"].append(own_run(seed, given.steps, given.episodes))
        returns["sb3"].append(of_sb3(given.sb3, "learnt", seed, given.steps, given.episodes)["return"])
        found["returns"] = {"env_steps": given.steps, **{side: interval(each) for side, each in returns.items()}}
        print(json.dumps(found["returns"]), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
