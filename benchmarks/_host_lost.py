"""A rollout on a node of a Ray cluster whose only simulator host is lost: ``_host_lost.py OWN_ADDRESS HEAD FOLDER``

Steps env slots over and over and prints a line of JSON for what happens: how long a local pool takes to start, on which
node the host is, that it was said to be lost, that its slots are back.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from _envs import NO_LIMIT, CostEnv
from _ways import PATIENT

from embodied.cluster.sim_host import RayStarter
from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool.pool import Pool, PoolConfig
from embodied.runtime.ports import Back, Lost
from embodied.runtime.remote.hosts import HostsConfig, RemotePool
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import ArraySpec

SLOTS = 2
ENV: dict[str, Any] = {"work": "sleep", "step_s": 0.02, "size": 64}


def node_of(pool: RemotePool) -> str:
    started = pool.hosts[0].started
    return started.node if started is not None else ""


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


def main(own: str, head: str, folder: str) -> None:
    """Runs until it is killed."""
    spec = CostEnv(**ENV).spec
    fields = {**spec.obs, "actions": ArraySpec((1, spec.action_dim), "float32"), **runtime_fields(1)}
    slab = Slab.create(fields, 2 * SLOTS)
    config = PoolConfig(SLOTS, SLOTS, "_envs.CostEnv", ENV, ShapedReward(), PATIENT, Path(folder), max_restarts=3)
    began = time.monotonic()
    Pool(config, slab).close()
    say("pool", seconds=time.monotonic() - began)
    hosts = HostsConfig(config, 1, tuple(spec.obs), gpus=(), elsewhere=True)
    pool = RemotePool(hosts, slab, RayStarter(head, own), lambda text: say("said", text=text))
    for slot in pool.up:
        reset(pool, slot)
    say("up", node=node_of(pool))
    lost, returned = set[int](), set[int]()
    while True:
        for event in pool.recv(1):
            if isinstance(event, Lost):
                lost.add(event.slot)
                say("lost")
            elif isinstance(event, Back):
                reset(pool, event.slot)
            else:
                if event.slot in lost:
                    returned.add(event.slot)
                    if len(returned) == SLOTS:
                        say("back", node=node_of(pool))
                        returned.clear()
                pool.send(Command(Kind.STEP, event.slot, row=event.slot, next_row=SLOTS + event.slot))


def reset(pool: RemotePool, slot: int) -> None:
    pool.send(Command(Kind.RESET, slot, next_row=slot, task_id=0, seed=slot, max_steps=NO_LIMIT))


if __name__ == "__main__":
    main(*sys.argv[1:])
