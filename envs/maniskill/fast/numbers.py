"""The arithmetic of ManiSkill's tensors of one row, on float32 numbers. Imports torch when it is used.

Rounding is that of torch, bit by bit. Sums, products, quotients and comparisons of float32 are the same wherever they
are computed, so numpy's scalars compute them: 0.05 µs each, where torch takes 1 to 5. What each library rounds in its
own way (norms, matrix products, tanh, cos, …) is left to torch, on memory that numpy reads and writes too.

Quaternions are wxyz. A pose is ``(position [3], quaternion [4])``, both tuples of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Number: TypeAlias = Any  # np.float32
Numbers: TypeAlias = tuple[Any, ...]
Pose: TypeAlias = tuple[Numbers, Numbers]

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)


class Norm:
    """Computes the 2-norm of a row of ``size`` numbers with the bits of ``torch.linalg.norm(row, axis=1)``."""

    def __init__(self, size: int) -> None:
        import torch

        self.row = np.zeros((1, size), np.float32)  # may be written to directly
        self._result = np.zeros(1, np.float32)
        self._row, self._out = torch.from_numpy(self.row), torch.from_numpy(self._result)
        self._norm = torch.linalg.vector_norm

    def __call__(self, values: Any) -> Number:
        self.row[0] = values
        return self.of_row()

    def of_row(self) -> Number:
        """Returns the norm of :attr:`row`, which may be written to."""
        self._norm(self._row, 2, 1, out=self._out)
        return self._result[0]

    def of_difference(self, left: np.ndarray, right: np.ndarray) -> Number:
        """Returns the norm of ``left − right``."""
        np.subtract(left, right, out=self.row[0])
        return self.of_row()


class Function:
    """A function of torch, applied to single numbers with the same bits, e.g. ``Function("tanh")``."""

    def __init__(self, name: str) -> None:
        import torch

        self._value = np.zeros(1, np.float32)
        self._tensor = torch.from_numpy(self._value)
        self._function: Callable[..., Any] = getattr(torch, name)

    def __call__(self, value: Number) -> Number:
        self._value[0] = value
        self._function(self._tensor, out=self._tensor)
        return self._value[0]


class Quaternions:
    """Converts Euler angles ("XYZ") to quaternions with the bits of ManiSkill's ``euler_angles_to_matrix`` and
    ``matrix_to_quaternion``."""

    def __init__(self) -> None:
        import torch
        from mani_skill.utils.geometry import rotation_conversions

        self._cos, self._sin, self._sqrt = Function("cos"), Function("sin"), Function("sqrt")
        self._axes = [np.eye(3, dtype=np.float32)[None] for _ in range(3)]
        self._tensors = [torch.from_numpy(axis) for axis in self._axes]
        self._matmul, self._slow = torch.matmul, rotation_conversions.matrix_to_quaternion

    def of_euler(self, angles: Numbers) -> Numbers:
        """Returns the quaternion (w, x, y, z) of three angles in rad."""
        for number, angle in enumerate(angles):
            first, second = ((1, 2), (2, 0), (0, 1))[number]  # the axes that turn into each other
            axis, cos, sin = self._axes[number][0], self._cos(angle), self._sin(angle)
            axis[first, first] = axis[second, second] = cos
            axis[first, second], axis[second, first] = -sin, sin
        x, y, z = self._tensors
        matrix = self._matmul(self._matmul(x, y), z)
        m00, m01, m02, m10, m11, m12, m20, m21, m22 = matrix.numpy().ravel()
        real = ONE + m00 + m11 + m22
        if not real > 2.5:  # another component may be the largest, which only large angles make it
            return tuple(self._slow(matrix)[0].numpy())
        root = self._sqrt(real)
        twice = TWO * root
        return root * root / twice, (m21 - m12) / twice, (m02 - m20) / twice, (m10 - m01) / twice


def pose_of(pose: Any) -> Pose:
    """Converts a SAPIEN pose to position and quaternion."""
    return tuple(pose.p), tuple(pose.q)


def pose_of_row(pose: Any) -> Pose:
    """Converts a ManiSkill pose of batch size 1 to position and quaternion."""
    numbers = pose.raw_pose[0].cpu().numpy().copy()
    return tuple(numbers[:3]), tuple(numbers[3:])


def raw_multiply(a: Numbers, b: Numbers) -> Numbers:
    """Multiplies two quaternions (w, x, y, z)."""
    aw, ax, ay, az = a
    bw, bx, by, bz = b
    return (
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )


def multiply(a: Numbers, b: Numbers) -> Numbers:
    """Multiplies two quaternions as ``quaternion_multiply`` does: the product whose real part is not negative."""
    w, x, y, z = raw_multiply(a, b)
    return (-w, -x, -y, -z) if w < 0 else (w, x, y, z)


def rotate(q: Numbers, point: Numbers) -> Numbers:
    """Rotates a point by a quaternion, as ``quaternion_apply`` does."""
    w, x, y, z = q
    turned = raw_multiply(raw_multiply(q, (ZERO, *point)), (w, -x, -y, -z))
    return turned[1:]


def add(a: Numbers, b: Numbers) -> Numbers:
    """Adds two vectors number by number."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def position_of_product(a: Pose, b: Pose) -> Numbers:
    """Computes the position of the pose ``a * b``."""
    return add(a[0], rotate(a[1], b[0]))


def product(a: Pose, b: Pose) -> Pose:
    """Multiplies poses as ManiSkill's ``a * b`` does."""
    return position_of_product(a, b), multiply(a[1], b[1])


def inverse(pose: Pose) -> Pose:
    """Inverts a pose as ManiSkill's ``pose.inv()`` does."""
    (px, py, pz), (w, x, y, z) = pose
    inverted = (w, -x, -y, -z)
    return rotate(inverted, (-px, -py, -pz)), inverted


class Remembered:
    """Caches a function of SAPIEN's pose of a body that hardly ever moves, until the body has moved."""

    def __init__(self, function: Callable[[Pose], Any]) -> None:
        self._function = function
        self._seen = (b"", b"")
        self._result: Any = None

    def __call__(self, pose: Any) -> Any:
        p, q = pose.p, pose.q
        seen = p.tobytes(), q.tobytes()
        if seen != self._seen:
            self._seen, self._result = seen, self._function((tuple(p), tuple(q)))
        return self._result
