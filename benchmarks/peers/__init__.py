"""Other libraries' ways to step many envs, in the configuration of each that was fastest here or that it recommends.

Each peer is a module that imports its library; one that is not installed is left out. What they have in common: the env
of ``_envs.py`` behind the interface that the library asks for; an answer is either ``steps`` vector steps from outside,
each with its observation, or ``chunk`` control steps inside the env's ``step`` and one observation.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Peer:
    """A row of the comparison.

    Args:
        distribution: what pip installs.
        way: module and class, see :func:`Peer.open`.
        how: the configuration, for the reader of a result.
        spins: it busy-waits, so it wants cores that nothing else uses.
    """

    name: str
    distribution: str
    way: tuple[str, str]
    how: str
    options: Mapping[str, Any] = field(default_factory=dict)
    spins: bool = False

    def open(self, env: dict[str, Any], envs: int, workers: int, steps: int = 1, chunk: int = 1) -> Any:
        """A ``_ways.Way`` of ``envs`` envs."""
        module, name = self.way
        options = {"workers": workers, **self.options}
        return getattr(importlib.import_module(f"peers.{module}"), name)(env, envs, steps=steps, chunk=chunk, **options)


PEERS = (
    Peer(
        "SB3", "stable-baselines3", ("sb3", "SubprocWay"),
        "SubprocVecEnv, forked; one process an env (it has no other mode); observations pickled through pipes, stacked",
    ),
    Peer(
        "torchrl", "torchrl", ("torchrl_parallel", "ParallelWay"),
        "ParallelEnv of a SerialEnv a worker, forked, shared-memory buffers, one thread each; step(); "
        "the parent busy-waits for its workers; observations are cloned out of the buffers",
        spins=True,
    ),
    Peer(
        "PufferLib emulated", "pufferlib", ("puffer", "PufferWay"),
        "vector.Multiprocessing, zero_copy, a gymnasium Dict env through GymnasiumPufferEnv; "
        "parent and workers busy-wait; no observation is copied out of shared memory",
        spins=True,
    ),
    Peer(
        "PufferLib native", "pufferlib", ("puffer", "PufferWay"),
        "the same with a PufferEnv that draws into the shared memory itself",
        {"native": True}, spins=True,
    ),
    Peer(
        "PufferLib native, 1 worker", "pufferlib", ("puffer", "PufferWay"),
        "the same with one worker, so that it and the parent have a core each to busy-wait on",
        {"native": True, "workers": 1}, spins=True,
    ),
    Peer(
        "Ray", "ray", ("ray_actors", "ActorsWay"),
        "one actor a worker steps its envs into one array and returns it through the object store; read in place, the "
        "workers' parts are not put together",
    ),
)  # fmt: skip


def installed() -> list[Peer]:
    """Those whose library is here, the others are named with what installs them. Ray comes last: its threads must not
    be there when others fork."""
    found, missing = [], {}
    for peer in PEERS:
        try:
            importlib.import_module(f"peers.{peer.way[0]}")
        except ImportError as error:
            missing[peer.distribution] = str(error)
        else:
            found.append(peer)
    multiprocessing.set_start_method("fork", force=True)  # torchrl's import makes it spawn, for the others as well
    for distribution, why in missing.items():
        print(f"  without {distribution}: {why} (pip install {distribution})")
    return found


def versions(peers: list[Peer]) -> dict[str, str]:
    return {peer.distribution: importlib.metadata.version(peer.distribution) for peer in peers}
