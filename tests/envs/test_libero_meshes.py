"""Meshes with fewer triangles for small pictures."""

from types import SimpleNamespace

import numpy as np
import pytest
from embodied.envs.libero.meshes import coarser, merged

CELL = 0.1


def sheet(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """A flat square of 1 m from 2 n² triangles."""
    axis = np.linspace(0, 1, n + 1)
    vertices = np.stack([*np.meshgrid(axis, axis, indexing="ij"), np.zeros((n + 1, n + 1))], -1).reshape(-1, 3)
    corner = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).reshape(-1)
    one = np.stack([corner, corner + n + 1, corner + 1], 1)
    other = np.stack([corner + n + 1, corner + n + 2, corner + 1], 1)
    return vertices, np.concatenate([one, other])


def area(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    return np.cross(b - a, c - a)[:, 2] / 2


def test_a_sheet_keeps_its_area_and_its_side_with_a_tenth_of_its_triangles():
    vertices, faces = sheet()
    chosen, corners = merged(vertices, faces, CELL)
    assert len(chosen) < len(faces) / 10
    assert np.all(np.diff(chosen) > 0)
    areas = area(vertices, corners)
    assert areas.min() > 0  # none is turned over
    assert areas.sum() == pytest.approx(1, abs=2 * CELL)
    moved = np.abs(vertices[corners] - vertices[faces[chosen]]).max()
    assert 0 < moved <= CELL


def test_triangles_with_the_same_corners_are_drawn_once():
    vertices = np.array([[0.01, 0, 0], [1, 0, 0], [0, 1, 0], [0.02, 0, 0]])
    faces = np.array([[0, 1, 2], [3, 1, 2], [2, 0, 1], [0, 3, 1]])
    chosen, corners = merged(vertices, faces, CELL)
    assert chosen.tolist() == [0]
    assert corners.tolist() == [[0, 1, 2]]


def model_of(*meshes: tuple[np.ndarray, np.ndarray]) -> SimpleNamespace:
    vertices, faces = [mesh[0] for mesh in meshes], [mesh[1].astype(np.int32) for mesh in meshes]
    count = [len(part) for part in faces]
    return SimpleNamespace(
        nmesh=len(meshes),
        mesh_vert=np.concatenate(vertices).astype(np.float32),
        mesh_vertadr=np.cumsum([0, *map(len, vertices)])[:-1],
        mesh_vertnum=np.array([len(part) for part in vertices]),
        mesh_face=np.concatenate(faces),
        mesh_faceadr=np.cumsum([0, *count])[:-1],
        mesh_facenum=np.array(count),
        mesh_facenormal=np.arange(3 * sum(count), dtype=np.int32).reshape(-1, 3),
        mesh_facetexcoord=np.arange(3 * sum(count), dtype=np.int32).reshape(-1, 3) + 7,
    )


def test_a_model_is_coarser_for_a_while_and_then_as_it_was():
    vertices, faces = sheet()
    model = model_of((vertices, faces), (vertices * 0.001, faces))  # the second is smaller than a cube
    before = {name: np.copy(value) for name, value in vars(model).items()}
    with coarser(model, CELL):
        assert 0 < model.mesh_facenum[1] < len(faces)
        chosen, corners = merged(model.mesh_vert[: len(vertices)], faces, CELL)
        assert model.mesh_facenum[0] == len(chosen)
        assert np.array_equal(model.mesh_face[: len(chosen)], corners)
        assert np.array_equal(model.mesh_facenormal[: len(chosen)], before["mesh_facenormal"][chosen])
        assert np.array_equal(model.mesh_facetexcoord[: len(chosen)], before["mesh_facetexcoord"][chosen])
    for name, value in vars(model).items():
        assert np.array_equal(value, before[name]), name


def test_nothing_is_touched_without_a_cell():
    model = model_of(sheet())
    with coarser(model, 0.0):
        assert model.mesh_facenum[0] == 3200
