"""Section ``cluster``: machines, processes, and what runs where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from embodied.schema.keys.base import Section
from embodied.schema.keys.sections.node_groups import NodeGroupConfig, Where


class ClusterConfig(Section):
    launcher: Literal["local", "torchrun", "ray"] | None = Field(
        None,
        description="Who starts the processes of the run: local (num_gpus_per_node processes of this machine), "
        "torchrun, or ray (on the nodes of a Ray cluster, from any of them). local and ray need no other command than "
        "python -m embodied.train; null = torchrun, if it has started this process, else there is one process.",
    )
    address: str = Field(
        "auto",
        min_length=1,
        description="launcher=ray: HOST:PORT of the cluster's head; auto = what RAY_ADDRESS says, else the cluster "
        "that this machine is a node of.",
    )
    max_restarts: int = Field(
        0,
        ge=0,
        description="launcher=local and ray: how often a run that lost a process or a node starts again from its "
        "newest checkpoint: with as many processes if the nodes that are left have room for them, else with fewer that "
        "can share the slots and groups. An error that would come again is not retried.",
    )
    agent_timeout_s: float = Field(
        5.0,
        gt=0,
        description="launcher=ray: how long a node may leave a call without an answer before it counts as lost. A "
        "longer time lets a run outlive longer cuts of its network.",
    )
    timeout_s: float = Field(
        1800.0,
        gt=0,
        description="How long a process waits for the others of its run before it gives up; longer than any "
        "rollout takes.",
    )
    distributed_timeout_minutes: float | None = Field(
        None, gt=0, description="The same in minutes; null = what timeout_s says."
    )
    init_timeout_s: float | None = Field(
        None,
        gt=0,
        description="How long the first process waits for the others to come before it gives up; null = timeout_s.",
    )
    distributed_backend: Literal["gloo", "nccl"] | None = Field(
        None,
        description="What connects the processes. It follows from the device, nccl between GPUs and gloo between CPUs, "
        "and another value is refused; null = not said.",
    )
    num_nodes: int | None = Field(
        None,
        ge=1,
        description="Machines of the run. torchrun starts a process on each, and another number is refused; null = not "
        "said.",
    )
    num_gpus_per_node: int | None = Field(
        None,
        ge=1,
        description="Processes on each machine, one a GPU. torchrun starts them, and another number is refused. With "
        "component_placement: devices of each machine, some of which may have no process; null = not said.",
    )
    component_placement: Where | dict[str, Where | dict[str, Where]] | None = Field(
        None,
        description="Which devices do what: all, or {actor: 0-3, rollout: 4-7, env: 4-7}, with ranges and lists, or "
        "{node_group: LABEL, placement: 0-3}. actor trains, rollout acts, env are the simulators, on devices of the "
        "nodes of rollout or, with launcher=ray, on nodes without any; inference, critic and reference go with "
        "actor, reward with rollout. null = each device does everything.",
    )
    node_groups: list[NodeGroupConfig] | None = Field(
        None,
        description="Labels for nodes, as RLinf has them: [{label: cpu, node_ranks: 1-3, ignore_hardware: true, "
        "env_configs: [{node_ranks: 1, python_interpreter_path: /opt/py/bin/python, env_vars: [{NAME: value}]}]}]; "
        "null = none.",
    )
    simulator_hosts: int = Field(
        0,
        ge=0,
        description="Simulator hosts of each process, which have its env slots and workers and send observations over "
        "TCP: with launcher=ray on nodes with free CPUs, those without a process first, else child processes of this "
        "machine. Results are the same to the bit. 0 = the process has its workers itself.",
    )
    node_timeout_s: float = Field(
        30.0,
        gt=0,
        description="How long a simulator host may be silent. A shorter interruption of the network loses nothing; "
        "after a longer one the host's episodes are redone elsewhere, another host takes its place, and the lost one "
        "ends itself.",
    )
    network_gbps: float | None = Field(
        None,
        gt=0,
        description="dry_run: speed of each node's network in each direction, 10⁹ bits a second. A dry run then says "
        "how many seconds of an iteration each link takes at least; null = the bytes alone.",
    )
