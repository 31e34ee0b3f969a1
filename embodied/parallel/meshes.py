"""Meshes of processes for FSDP2: one axis of shards, or one of replicas and one of shards."""

from __future__ import annotations

from typing import Any

from embodied.parallel.group import Group


def mesh_of(group: Group, share: int, device: str) -> Any:
    """Makes the mesh of the processes of ``group``, whose shards lie on ``share`` neighbours. A collective of all
    processes of the run, of which others call :func:`join`."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    shape, names = (group.size // share, share), ("replicate", "shard")
    if share == group.size:
        shape, names = shape[1:], names[1:]  # type: ignore[assignment]
    if group.is_all:
        return init_device_mesh(device, shape, mesh_dim_names=names)
    if share == group.size:
        return DeviceMesh.from_group(group.processes, device, mesh_dim_names=names)
    processes = [part.processes for part in join(group, share)]
    mesh = torch.tensor(group.members).view(shape)
    return DeviceMesh.from_group(processes, device, mesh=mesh, mesh_dim_names=names)


def join(group: Group, share: int) -> list[Group]:
    """Takes part in making the groups of a mesh of ``group``; returns those of this process, of replicas and shards."""
    if share == group.size:
        return []
    replicas = [range(place, group.size, share) for place in range(share)]
    return [group.part(replicas), group.part([range(first, first + share) for first in range(0, group.size, share)])]
