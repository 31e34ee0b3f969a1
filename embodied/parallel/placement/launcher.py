"""Says who starts the processes of a run, and the command that starts others."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

Launcher = Literal["local", "torchrun", "ray"]
VARIABLE = "EMBODIED_LAUNCHER"
"""Names the launcher to processes that this package starts (``embodied.cluster``); torchrun does not set it."""

NODE = "EMBODIED_NODE"
"""Address of the node that a process of Ray's launcher stands on; RAY_ADDRESS is that of the cluster's head."""

NUMBER: dict[Launcher, str] = {
    "torchrun": "torchrun --nproc-per-node",
    "local": "cluster.num_gpus_per_node",
    "ray": "cluster.num_nodes, cluster.num_gpus_per_node",
}
"""What sets the number of processes."""


def launched_by(environment: Mapping[str, str]) -> Launcher | None:
    """Returns who has started a process as a rank, by its environment; None: nobody, it was called by itself.

    >>> launched_by({"EMBODIED_LAUNCHER": "ray"}), launched_by({"WORLD_SIZE": "2"}), launched_by({})
    ('ray', 'torchrun', None)
    """
    match environment.get(VARIABLE):
        case "local":
            return "local"
        case "ray":
            return "ray"
    return "torchrun" if "WORLD_SIZE" in environment else None


def start_command(launcher: Launcher, nodes: int, each: int, words: Sequence[str] = ()) -> str:
    """Returns the command line that starts ``each`` processes on each of ``nodes`` machines.

    Args:
        words: module and arguments; () = those of a training, cut short.

    >>> start_command("torchrun", 2, 8)
    'torchrun --nnodes=2 --nproc-per-node=8 -m embodied.train …'
    >>> start_command("ray", 2, 8)
    'python -m embodied.train … cluster.launcher=ray cluster.num_nodes=2 cluster.num_gpus_per_node=8'
    """
    called = shlex.join(words) or "embodied.train …"
    if launcher == "torchrun":
        return f"torchrun --nnodes={nodes} --nproc-per-node={each} -m {called}"
    if words:
        return f"python -m {called}"
    return f"python -m {called} cluster.launcher={launcher} cluster.num_nodes={nodes} cluster.num_gpus_per_node={each}"
