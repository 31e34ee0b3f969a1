"""Ray: one actor a worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import ray
from _measure import descendants
from _ways import Answers


class Host:
    """Some envs, whose observations are slices of one array a field."""

    def __init__(self, env: dict[str, Any], envs: int, chunk: int) -> None:
        self._envs = [Answers(env, chunk) for _ in range(envs)]
        self._all = {name: np.zeros((envs, *spec.shape), spec.dtype) for name, spec in self._envs[0].obs.items()}
        self._out = [{name: array[i] for name, array in self._all.items()} for i in range(envs)]

    def reset(self) -> dict[str, np.ndarray]:
        for seed, (env, out) in enumerate(zip(self._envs, self._out, strict=True)):
            env.reset(seed)
            env.observe(out)
        return self._all

    def step(self, actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        rewards = np.zeros(len(self._envs), np.float32)
        for index, (env, out) in enumerate(zip(self._envs, self._out, strict=True)):
            rewards[index] = env.step(actions[index])
            env.observe(out)
        return self._all, rewards


class Cluster:
    """Ray's own processes, shared by all ways that are open."""

    users = 0
    roots: tuple[int, ...] = ()

    @classmethod
    def join(cls) -> None:
        if cls.users == 0:
            before = set(descendants(os.getpid()))
            path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
            ray.init(
                num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=2**29,
                logging_level="error", runtime_env={"env_vars": {"PYTHONPATH": path}},
            )  # fmt: skip
            cls.roots = tuple(set(descendants(os.getpid())) - before)
        cls.users += 1

    @classmethod
    def leave(cls) -> None:
        cls.users -= 1
        if cls.users == 0:
            ray.shutdown()

    @classmethod
    def pids(cls) -> list[int]:
        alive = (root for root in cls.roots if Path(f"/proc/{root}").exists())
        return sorted({pid for root in alive for pid in descendants(root)})


class ActorsWay:
    rest_s = 0.0

    def __init__(self, env: dict[str, Any], envs: int, workers: int, steps: int, chunk: int) -> None:
        Cluster.join()
        self._hosts = [ray.remote(num_cpus=0)(Host).remote(env, envs // workers, chunk) for _ in range(workers)]
        ray.get([host.reset.remote() for host in self._hosts])
        self._envs, self._steps = envs, steps
        self._actions = np.zeros((envs // workers, Answers(env, chunk).num_actions), np.float32)

    def round(self) -> int:
        for _ in range(self._steps):
            ray.get([host.step.remote(self._actions) for host in self._hosts])
        return self._envs

    def pids(self) -> list[int]:
        """All processes of Ray."""
        return Cluster.pids()

    def close(self) -> None:
        for host in self._hosts:
            ray.kill(host)
        Cluster.leave()
