"""Draws meshes with fewer triangles: for small pictures on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_INDICES = ("mesh_face", "mesh_facenormal", "mesh_facetexcoord")  # a triangle's corners, int32 [nmeshface, 3] each


@contextmanager
def coarser(model: Any, cell: float) -> Iterator[None]:
    """Context in which a MuJoCo model's meshes are coarser: vertices that lie in one cube are merged.

    A GL context that is made meanwhile draws what remains. Triangles that lose a corner are left out; the others keep
    their normals and their places in the texture. Physics never sees any of it.

    Args:
        cell: edge of the cubes, m; 0 = nothing is merged.
    """
    if not cell:
        yield
        return
    kept = {name: getattr(model, name).copy() for name in (*_INDICES, "mesh_facenum")}
    try:
        for mesh in range(model.nmesh):
            _merge(model, mesh, cell)
        yield
    finally:
        for name, values in kept.items():
            getattr(model, name)[:] = values


def _merge(model: Any, mesh: int, cell: float) -> None:
    vertices = _part(model.mesh_vert, model.mesh_vertadr[mesh], model.mesh_vertnum[mesh])
    first, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    faces = _part(model.mesh_face, first, count)
    for _ in range(8):
        chosen, corners = merged(vertices, faces, cell)
        if len(chosen):
            break
        cell /= 2  # smaller than a cube as a whole
    else:
        return
    for name in _INDICES[1:]:
        indices = _part(getattr(model, name), first, count)
        indices[: len(chosen)] = indices[chosen]
    faces[: len(chosen)] = corners
    model.mesh_facenum[mesh] = len(chosen)


def _part(array: np.ndarray, first: int, count: int) -> np.ndarray:
    return array[first : first + count]


def merged(vertices: np.ndarray, faces: np.ndarray, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """Merges the vertices of a mesh in each cube of a grid into the first of them; returns vertices and faces.

    Args:
        vertices: m, [V, 3].
        faces: int [F, 3].
        cell: edge of the cubes, m.

    Returns:
        Which triangles remain, int [K] ascending, and their corners, int [K, 3]. Of triangles with the same corners,
        in any order, the first remains.
    """
    places = np.floor(vertices / cell).astype(np.int64)
    places -= places.min(axis=0)
    width = places.max(axis=0) + 1
    number = (places[:, 0] * width[1] + places[:, 1]) * width[2] + places[:, 2]
    _, representatives, of_vertex = np.unique(number, return_index=True, return_inverse=True)
    corners = of_vertex[faces]
    low, middle, high = np.sort(corners, axis=1).T.astype(np.int64)
    whole = np.flatnonzero((low != middle) & (middle != high))
    cubes = len(representatives)
    same = (low * cubes + middle) * cubes + high
    _, once = np.unique(same[whole], return_index=True)
    chosen = np.sort(whole[once])
    return chosen, representatives[corners[chosen]]
