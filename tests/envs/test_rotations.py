"""Quaternions of ``envs/shared/rotations.py`` against matrices."""

import numpy as np
import pytest
from embodied.envs.shared.rotations import axis_angle, product, quaternion_of, turned

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(5, 3))


def matrix(vector: np.ndarray) -> np.ndarray:
    """The rotation matrix of a rotation vector, by Rodrigues' formula."""
    angle = np.linalg.norm(vector)
    x, y, z = vector / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


@pytest.mark.parametrize("vector", VECTORS)
def test_a_quaternion_turns_as_its_matrix_does(vector):
    quaternion = quaternion_of(vector)
    for other in VECTORS:
        assert turned(quaternion, other) == pytest.approx(matrix(vector) @ other)
        assert turned(product(quaternion, quaternion_of(other)), vector) == pytest.approx(
            matrix(vector) @ matrix(other) @ vector
        )
    w, x, y, z = quaternion
    assert axis_angle(x, y, z, w) == pytest.approx(vector)


def test_no_rotation_changes_no_bit():
    none = quaternion_of(np.zeros(3))
    assert none.tolist() == [1, 0, 0, 0]
    quaternion = quaternion_of(VECTORS[0])
    assert np.array_equal(product(quaternion, none), quaternion)
    assert np.array_equal(turned(quaternion, np.zeros(3)), np.zeros(3))
