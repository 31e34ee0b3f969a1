"""Stable-Baselines3's side of ``off_policy.py``; runs in an environment that has it. Prints a line of JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from _off_policy_tasks import pull_cube
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

TASKS = {"pendulum": (lambda: gymnasium.make("Pendulum-v1"), 0.99), "pull_cube": (pull_cube, 0.8)}  # and discounts


def made(task: str, seed: int, starts: int) -> Any:
    """Makes the learner: networks, batch and rates as the other side has them."""
    make, gamma = TASKS[task]
    return SAC(
        "MlpPolicy", make(), learning_rate=3e-4, batch_size=256, learning_starts=starts, train_freq=1,
        gradient_steps=1, gamma=gamma, tau=0.005, policy_kwargs={"net_arch": [256, 256]}, seed=seed, device="cpu",
    )  # fmt: skip


def updates(count: int) -> dict[str, float]:
    """Times updates alone: the best of five rounds of ``count``, CPU-ms each."""
    model, found = made("pendulum", 0, 1000), list[float]()
    model.learn(1000)
    model.train(gradient_steps=50, batch_size=256)
    for _ in range(5):
        begun = time.process_time()
        model.train(gradient_steps=count, batch_size=256)
        found.append((time.process_time() - begun) / count * 1e3)
    return {"ms": min(found)}


def learnt(task: str, seed: int, steps: int, episodes: int) -> dict[str, float]:
    """Trains for so many env steps; returns mean return of greedy episodes, and CPU seconds."""
    begun, model = time.process_time(), made(task, seed, 1000)
    model.learn(steps)
    took = time.process_time() - begun
    returns, _ = evaluate_policy(
        model, TASKS[task][0](), n_eval_episodes=episodes, return_episode_rewards=True, warn=False
    )
    return {"return": float(np.mean(returns)), "cpu_s": took}


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *given = sys.argv[1:]
    if what == "updates":
        print(json.dumps(updates(int(given[0]))))
    else:
        print(json.dumps(learnt(given[0], *map(int, given[1:]))))
