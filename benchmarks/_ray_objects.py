"""Rows of envs that actors of Ray on another node return as objects: ``_ray_objects.py SETTINGS``

The driver keeps a call for each env slot under way and copies what comes into rows of its own, as a rollout would have
them. It prints how many rows there were, ten times a second, until it is killed.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import ray
from _envs import NO_LIMIT, CostEnv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from embodied.types import Start

CHUNK = 8


class Worker:
    """Env slots of one process."""

    def __init__(self, size: int, slots: int) -> None:
        self._envs = [CostEnv(size=size, horizon=NO_LIMIT) for _ in range(slots)]
        for seed, env in enumerate(self._envs):
            env.reset(Start(0, 0, seed))
        self._spec = self._envs[0].spec

    def step(self, slot: int, actions: np.ndarray) -> dict[str, np.ndarray]:
        for action in actions:
            self._envs[slot].step(action)
        out = {name: np.empty(spec.shape, spec.dtype) for name, spec in self._spec.obs.items()}
        self._envs[slot].observe(out)
        return out


def main(size: int, envs: int, workers: int) -> None:
    ray.init("auto", log_to_driver=False, logging_level="ERROR")
    own = ray.get_runtime_context().get_node_id()
    other = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own)
    there = NodeAffinitySchedulingStrategy(other, soft=False)
    each = envs // workers
    actors = [ray.remote(Worker).options(num_cpus=1, scheduling_strategy=there).remote(size, each)
              for _ in range(workers)]  # fmt: skip
    spec = CostEnv(size=size).spec
    rows = {name: np.zeros((envs, *one.shape), one.dtype) for name, one in spec.obs.items()}
    actions = np.zeros((CHUNK, spec.action_dim), np.float32)
    calls = {actors[slot % workers].step.remote(slot // workers, actions): slot for slot in range(envs)}
    count, next_said = 0, 0.0
    while True:
        (ready,), _ = ray.wait(list(calls), num_returns=1)
        slot = calls.pop(ready)
        for name, value in ray.get(ready).items():
            rows[name][slot] = value
        count += 1
        calls[actors[slot % workers].step.remote(slot // workers, actions)] = slot
        if time.monotonic() > next_said:
            print(count, flush=True)
            next_said = time.monotonic() + 0.1


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
